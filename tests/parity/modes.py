"""The ways to synchronise that are compared: each is one small class, which does the same step through both.

`ddp` is DistributedDataParallel's wrapper, `synced` binding.Synchronised, both over equal modules. A step leaves its
result in the gradients. `batches` are those of one rank and one step, as many as micro_batches.
"""
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import weft

LIMIT_BYTES = 4096  # of a bucket: several buckets in every model


class Mode:
    """Copy mode: gradients are the framework's own."""

    micro_batches = 1
    ddp_options = {}
    reducer_options = {}
    wire = None  # the type in which gradients travel, if it is not their own

    def excluded(self, model):
        """Why a model is not run in this mode, or nothing."""
        if model.sparse and self.wire:
            return "PyTorch's casts take no sparse gradients"
        return ""

    def wrap(self, ddp_class, module):
        return ddp_class(module, **{"bucket_cap_mb": LIMIT_BYTES / 2**20, **self.ddp_options,
                                    "find_unused_parameters": not module.model.uses_all})

    def bind(self, synced_class, module, comm):
        return synced_class(module, comm, **{"bucket_limits": [LIMIT_BYTES], **self.reducer_options,
                                             "absent": not module.uses_all})

    def clear(self, ddp):
        ddp.zero_grad(set_to_none=True)

    def step_ddp(self, ddp, batches):
        ddp(batches[0]).backward()

    def step_weft(self, synced, batches):
        synced.backward(synced.module.loss(batches[0]))

    def finish(self, ddp, synced):
        """What else must be equal after the last step; raises AssertionError."""


class Copy(Mode):
    pass


class View(Mode):
    """The gradients live in the buckets of both."""

    ddp_options = {"gradient_as_bucket_view": True}
    reducer_options = {"mode": "view"}

    def clear(self, ddp):
        ddp.zero_grad(set_to_none=False)


class Accumulate(Mode):
    """The framework adds up in its own gradients, and synchronises the sum (no_sync)."""

    micro_batches = 3

    def step_ddp(self, ddp, batches):
        for batch in batches[:-1]:
            with ddp.no_sync():
                ddp(batch).backward()
        ddp(batches[-1]).backward()

    def step_weft(self, synced, batches):
        for batch in batches[:-1]:
            synced.module.loss(batch).backward()
        synced.backward(synced.module.loss(batches[-1]))


class AccumulateView(Accumulate, View):
    """The same in the views."""

    def step_weft(self, synced, batches):
        for batch in batches:
            synced.backward(synced.module.loss(batch), local=batch is not batches[-1])


class AccumulateLocal(Accumulate):
    """The reducer adds up: every micro-batch hands over a gradient of its own."""

    def step_weft(self, synced, batches):
        for batch in batches:
            synced.zero_grad()
            synced.backward(synced.module.loss(batch), local=batch is not batches[-1])


class OneBucket(Mode):
    """One bucket a type: what DDP does in its first step."""

    ddp_options = {"bucket_cap_mb": 1000}
    reducer_options = {"bucket_limits": [10**9]}


class Retained(Mode):
    """With what recovery keeps."""

    reducer_options = {"retain": True}


class Replan(Mode):
    """Buckets in the order of readiness after the first step, as DDP rebuilds its own."""

    first = True

    def step_weft(self, synced, batches):
        super().step_weft(synced, batches)
        if self.first:
            self.first = False
            held = [parameter.grad.clone() for parameter in synced.parameters if parameter.grad is not None]
            synced.replan()
            kept = [parameter.grad for parameter in synced.parameters if parameter.grad is not None]
            assert all(torch.equal(a.to_dense(), b.to_dense()) for a, b in zip(held, kept)), "gradients changed when buckets did"

    def finish(self, ddp, synced):
        if "rebuilt_per_bucket_param_indices" not in ddp._get_ddp_logging_data():
            return  # with parameters that may be unused DDP does not
        theirs = ddp._get_ddp_logging_data()["rebuilt_per_bucket_param_indices"].split(",")
        theirs = [tuple(map(int, bucket.split())) for bucket in theirs]
        ours = [bucket.params for bucket in synced.reducer.buckets()]
        if len({parameter.dtype for parameter in synced.parameters}) > 1 or synced.sparse_indices:
            # What is left over of each type comes last there, in the order of a hash map, and so behind sparse ones.
            theirs, ours = sorted(theirs), sorted(ours)
        assert ours == theirs, f"buckets {ours}, DDP's {theirs}"


class ReplanView(Replan, View):
    pass


class CastHook(Mode):
    """Gradients travel in 16 bits."""

    def excluded(self, model):
        if model.has_complex:
            return "DDP's hooks take complex numbers for their real parts"
        return super().excluded(model)

    name = theirs = None

    def wrap(self, ddp_class, module):
        ddp = super().wrap(ddp_class, module)
        ddp.register_comm_hook(None, type(self).theirs)
        return ddp

    def bind(self, synced_class, module, comm):
        with weft.Hook(comm.context, self.name, order="ddp") as hook:
            self.reducer_options = {"hook": hook}
            return super().bind(synced_class, module, comm)


class Static(Mode):
    """The first step shows the pattern of uses, which stays."""

    ddp_options = {"static_graph": True}
    reducer_options = {"static": True}

    def excluded(self, model):
        if not model.uses_all:
            return "a static pattern may not change, and this model's branches do"
        return super().excluded(model)


class StaticView(Static, View):
    ddp_options = {**Static.ddp_options, **View.ddp_options}
    reducer_options = {**Static.reducer_options, **View.reducer_options}


class Buffers(Mode):
    """Rank 0's buffers go to all before every forward pass; the forward pass is inside the step."""

    ddp_options = {"broadcast_buffers": True}
    reducer_options = {"buffers": True}

    def step_weft(self, synced, batches):
        with synced.step():
            synced.module.loss(batches[0]).backward()

    def finish(self, ddp, synced):
        for (name, ours), (_, theirs) in zip(synced.module.named_buffers(), ddp.module.model.named_buffers()):
            assert torch.equal(ours, theirs), f"buffer {name}: ours {ours}, DDP's {theirs}"


def reduced_as(dtype):
    """A hook for DDP's side: gradients travel as this type, but for f64, and are divided before they are added."""
    def hook(_, bucket):
        gradients = bucket.buffer()
        as_real = torch.view_as_real(gradients) if gradients.is_complex() else gradients
        wire = (as_real if as_real.dtype == torch.float64 else as_real.to(dtype)) / dist.get_world_size()
        future = dist.all_reduce(wire, async_op=True).get_future()

        def back(done):
            as_real.copy_(done.value()[0])
            return gradients
        return future.then(back)
    return hook


class ReduceBf16(Mode):
    """Gradients travel as another type, without a hook: PyTorch's MixedPrecision(reduce_dtype)."""

    wire = "bf16"
    travels_as = torch.bfloat16

    def wrap(self, ddp_class, module):
        ddp = super().wrap(ddp_class, module)
        ddp.register_comm_hook(None, reduced_as(type(self).travels_as))
        return ddp

    def bind(self, synced_class, module, comm):
        self.reducer_options = {**self.reducer_options, "reduce_dtype": self.wire}
        return super().bind(synced_class, module, comm)


class ReduceF32(ReduceBf16):
    wire, travels_as = "f32", torch.float32


class ReduceBf16View(ReduceBf16, View):
    pass


class ReduceF32View(ReduceF32, View):
    pass


class Fp16Hook(CastHook):
    name, wire, theirs = "fp16", "f16", default_hooks.fp16_compress_hook


class Bf16Hook(CastHook):
    name, wire = "bf16", "bf16"

    @staticmethod
    def theirs(state, bucket):  # by its own name DDP takes it with NCCL alone
        return default_hooks.bf16_compress_hook(state, bucket)


class Fp16WrapperHook(CastHook):
    name, wire, theirs = "fp16", "f16", default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)


MODES = {"copy": Copy, "view": View, "accumulate": Accumulate, "accumulate-view": AccumulateView,
         "accumulate-local": AccumulateLocal, "one-bucket": OneBucket, "retained": Retained, "replan": Replan,
         "replan-view": ReplanView, "static": Static, "static-view": StaticView, "buffers": Buffers,
         "fp16": Fp16Hook, "bf16": Bf16Hook,
         "fp16-wrapper": Fp16WrapperHook, "reduce-bf16": ReduceBf16, "reduce-f32": ReduceF32,
         "reduce-bf16-view": ReduceBf16View, "reduce-f32-view": ReduceF32View}
