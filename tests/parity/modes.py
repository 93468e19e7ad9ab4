"""The compared ways to synchronise. Each is a small class that makes the same step through both.

`ddp` is DistributedDataParallel's wrapper, `synced` is binding.Synchronised, both over equal modules. A step
leaves its result in the gradients. `batches` are those of one rank and one step, micro_batches of them.
"""
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.func import functional_call

import weftsync as weft
from models import Loss

LIMIT_BYTES = 4096  # bucket limit: several buckets in every model


class Mode:
    """Copy mode: gradients are the framework's own."""

    micro_batches = 1
    ddp_options = {}
    reducer_options = {}
    wire = None  # the type in which gradients are communicated, if not their own
    joins = False  # True: ranks end at different steps

    def excluded(self, model):
        """Return why a model is not run in this mode, or ""."""
        return ""

    def wrap(self, ddp_class, module):
        return ddp_class(module, **{"bucket_cap_mb": LIMIT_BYTES / 2**20, **self.ddp_options,
                                    "find_unused_parameters": not module.model.uses_all})

    def bind(self, synced_class, module, comm):
        return synced_class(module, comm, **{"bucket_limits": [LIMIT_BYTES], "ddp_buckets": True, **self.reducer_options,
                                             "absent": not module.uses_all})

    def clear(self, ddp):
        ddp.zero_grad(set_to_none=True)

    def loss(self, module, batch):
        """module: a Loss, or a DDP around one."""
        return module(batch)

    def step_ddp(self, ddp, batches):
        self.loss(ddp, batches[0]).backward()

    def step_weft(self, synced, batches):
        synced.backward(self.loss(Loss(synced.module), batches[0]))

    def finish(self, ddp, synced):
        """Check what else must be equal after the last step; raise AssertionError if it is not."""


class Copy(Mode):
    pass


class View(Mode):
    """The gradients lie in the buckets of both."""

    ddp_options = {"gradient_as_bucket_view": True}
    reducer_options = {"mode": "view"}

    def clear(self, ddp):
        ddp.zero_grad(set_to_none=False)


class Accumulate(Mode):
    """The framework accumulates in its own gradients, and synchronises the sum (no_sync)."""

    micro_batches = 3

    def step_ddp(self, ddp, batches):
        for batch in batches[:-1]:
            with ddp.no_sync():
                self.loss(ddp, batch).backward()
        self.loss(ddp, batches[-1]).backward()

    def step_weft(self, synced, batches):
        for batch in batches[:-1]:
            self.loss(Loss(synced.module), batch).backward()
        synced.backward(self.loss(Loss(synced.module), batches[-1]))


class AccumulateProgram(Accumulate):
    """The framework accumulates in its own gradients, and every micro-batch is a step."""

    reducer_options = {"accumulate": "program"}

    def step_weft(self, synced, batches):
        for batch in batches:
            synced.backward(self.loss(Loss(synced.module), batch), local=batch is not batches[-1])


class AccumulateView(AccumulateProgram, View):
    """The framework accumulates in the views."""

    reducer_options = {**AccumulateProgram.reducer_options, **View.reducer_options}


class AccumulateLocal(Accumulate):
    """The reducer accumulates: every micro-batch passes a gradient of its own."""

    reducer_options = {"accumulate": "reducer"}

    def step_weft(self, synced, batches):
        for batch in batches:
            synced.zero_grad()
            synced.backward(self.loss(Loss(synced.module), batch), local=batch is not batches[-1])


class OneBucket(Mode):
    """One bucket for each type, as DDP does in its first step."""

    ddp_options = {"bucket_cap_mb": 1000}
    reducer_options = {"bucket_limits": [10**9]}


class Retained(Mode):
    """The reducer retains gradients for recovery."""

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
            return  # DDP does not rebuild buckets with parameters that may be unused
        theirs = ddp._get_ddp_logging_data()["rebuilt_per_bucket_param_indices"].split(",")
        theirs = [tuple(map(int, bucket.split())) for bucket in theirs]
        ours = [bucket.params for bucket in synced.reducer.buckets()]
        if len({parameter.dtype for parameter in synced.parameters}) > 1 or synced.sparse_indices:
            # At the end, DDP places the remaining gradients of each type in the order of a hash map, and so
            # behind sparse ones.
            theirs, ours = sorted(theirs), sorted(ours)
        assert ours == theirs, f"buckets {ours}, DDP's {theirs}"


class ReplanView(Replan, View):
    pass


def dense_only(hook):
    """A hook for DDP that leaves sparse gradients unchanged, because PyTorch's casts do not accept them."""
    def plain(state, bucket):
        if not bucket.buffer().is_sparse:
            return hook(state, bucket)
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / dist.get_world_size())
    return plain


class CastHook(Mode):
    """Gradients are communicated in 16 bits."""

    def excluded(self, model):
        if model.has_complex:
            return "DDP's hooks take complex numbers for their real parts"
        return super().excluded(model)

    name = theirs = None

    def wrap(self, ddp_class, module):
        ddp = super().wrap(ddp_class, module)
        ddp.register_comm_hook(self, dense_only(type(self).theirs))
        return ddp

    def bind(self, synced_class, module, comm):
        with weft.Hook(comm.context, self.name, order="ddp") as hook:
            self.reducer_options = {**self.reducer_options, "hook": hook}
            return super().bind(synced_class, module, comm)


class Static(Mode):
    """The first step defines the pattern of uses, which stays."""

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
    """Rank 0's buffers are broadcast before every forward pass; the forward pass is inside the step."""

    ddp_options = {"broadcast_buffers": True}
    reducer_options = {"buffers": True}

    def step_weft(self, synced, batches):
        with synced.step():
            self.loss(Loss(synced.module), batches[0]).backward()

    def finish(self, ddp, synced):
        for (name, ours), (_, theirs) in zip(synced.module.named_buffers(), ddp.module.model.named_buffers()):
            assert torch.equal(ours, theirs), f"buffer {name}: ours {ours}, DDP's {theirs}"


def reduced_as(dtype):
    """A hook for DDP: gradients are communicated in this type, except f64, and divided before they are added.
    """
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
    """Gradients are communicated in another type, without a hook: PyTorch's MixedPrecision(reduce_dtype)."""

    wire = "bf16"
    travels_as = torch.bfloat16

    def wrap(self, ddp_class, module):
        ddp = super().wrap(ddp_class, module)
        ddp.register_comm_hook(None, dense_only(reduced_as(type(self).travels_as)))
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
    name, wire = "fp16", "f16"

    @staticmethod
    def theirs(state, bucket):
        return default_hooks.fp16_compress_hook(None, bucket)


class Bf16Hook(CastHook):
    name, wire = "bf16", "bf16"

    @staticmethod
    def theirs(state, bucket):  # DDP accepts bf16_compress_hook itself only with NCCL
        return default_hooks.bf16_compress_hook(None, bucket)


class Fp16WrapperHook(CastHook):
    name, wire = "fp16", "f16"

    @staticmethod
    def theirs(state, bucket):
        return default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)(None, bucket)


class Bf16WrapperHook(CastHook):
    name, wire = "bf16", "bf16"

    @staticmethod
    def theirs(state, bucket):
        return default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook)(None, bucket)


class AccumulateFp16(Accumulate, Fp16Hook):
    """The sum of several backward passes is cast, once."""


class AccumulateProgramFp16(AccumulateProgram, Fp16Hook):
    pass


class AccumulateLocalFp16(AccumulateLocal, Fp16Hook):
    pass


class Absent(Mode):
    """Some parameters are constants in a step, on some ranks or on all: the program declares some of them
    absent, finish the rest."""

    def bind(self, synced_class, module, comm):
        return synced_class(module, comm, **{"bucket_limits": [LIMIT_BYTES], "ddp_buckets": True, **self.reducer_options, "absent": True})

    def wrap(self, ddp_class, module):
        return ddp_class(module, bucket_cap_mb=LIMIT_BYTES / 2**20, find_unused_parameters=True, **self.ddp_options)

    def constants(self, model):
        """Return indices of parameters. DDP has no absent sparse gradients."""
        sparse = {id(layer.weight) for layer in model.modules() if getattr(layer, "sparse", False) is True and hasattr(layer, "weight")}
        return [index for index, parameter in enumerate(model.parameters()) if id(parameter) not in sparse and
                ((index + model.step) % 4 == 0 or (index + model.step + model.rank) % 3 == 0)]

    def loss(self, module, batch):
        model, prefix = (module.model, "model.") if isinstance(module, Loss) else (module.module.model, "module.model.")
        named, constants = list(model.named_parameters()), self.constants(model)
        return functional_call(module, {prefix + named[index][0]: named[index][1].detach() for index in constants}, (batch,))

    def step_weft(self, synced, batches):
        with synced.step():
            synced.reducer.absent(*self.constants(synced.module))
            self.loss(Loss(synced.module), batches[0]).backward()


class AbsentView(Absent, View):
    pass


class Join(Mode):
    """Ranks have different numbers of steps. Sums are divided by all ranks."""

    joins = True
    initial = True  # divided by the initial number of ranks
    active = 0  # ranks with data in DDP's step

    def excluded(self, model):
        if model.sparse:
            return "for sparse gradients, ranks that have joined DDP's call collectives that do not match"
        return super().excluded(model)

    def bind(self, synced_class, module, comm):
        self.reducer_options = {**self.reducer_options, "uneven": True, "divide_by": "world" if self.initial else "active"}
        return super().bind(synced_class, module, comm)


class JoinView(Join, View):
    pass


class JoinActive(Join):
    """Sums are divided by the ranks that still have data."""

    initial = False


class JoinReplan(Join):
    """Buckets change while some ranks have joined."""

    reducer_options = {"replan": True}


class JoinAccumulate(Join, AccumulateLocal):
    """Joining ranks with local steps."""


class JoinFp16(Join, Fp16Hook):
    pass


class JoinActiveFp16(JoinActive, Fp16Hook):
    """DDP's own hook divides by all ranks, whatever join's divisor. This hook divides by join's divisor."""

    @staticmethod
    def theirs(mode, bucket):
        wire = bucket.buffer().to(torch.float16).div_(mode.active or 1)
        future = dist.all_reduce(wire, async_op=True).get_future()
        return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))


MODES = {"copy": Copy, "view": View, "accumulate": Accumulate, "accumulate-view": AccumulateView,
         "accumulate-program": AccumulateProgram, "accumulate-local": AccumulateLocal, "one-bucket": OneBucket, "retained": Retained, "replan": Replan,
         "replan-view": ReplanView, "static": Static, "static-view": StaticView, "buffers": Buffers,
         "absent": Absent, "absent-view": AbsentView, "join": Join, "join-view": JoinView, "join-active": JoinActive,
         "join-replan": JoinReplan, "join-accumulate": JoinAccumulate, "join-fp16": JoinFp16,
         "join-active-fp16": JoinActiveFp16, "fp16": Fp16Hook, "bf16": Bf16Hook, "fp16-wrapper": Fp16WrapperHook,
         "bf16-wrapper": Bf16WrapperHook, "accumulate-fp16": AccumulateFp16,
         "accumulate-program-fp16": AccumulateProgramFp16, "accumulate-local-fp16": AccumulateLocalFp16,
         "reduce-bf16": ReduceBf16, "reduce-f32": ReduceF32,
         "reduce-bf16-view": ReduceBf16View, "reduce-f32-view": ReduceF32View}
