"""Bad input of weftsync.torch.DistributedDataParallel. rank.py runs each case on all ranks, in a process group of Weft."""
import copy
import io
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from behaviours import expect, expect_raises, expect_refused
from ddp import Fails, Weft, expect_same, gradients, of_rank, plain, train
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

import weftsync


def versions():
    """two versions of Weft in one job are one error on all ranks, over a group of another backend too"""
    from weftsync.torch import _bootstrap
    own, last = _bootstrap.version(), dist.get_world_size() - 1
    gloo = dist.new_group(backend="gloo", timeout=timedelta(seconds=30))
    if dist.get_rank() == last:
        _bootstrap.version = lambda: 90900
    try:
        expect_raises(f" on rank 0, 9.9.0 on rank {last}", lambda: Weft(of_rank(plain), process_group=gloo))
    finally:
        _bootstrap.version = lambda: own
    train(Weft(of_rank(plain), process_group=gloo), steps=1)


def other_parameter():
    """a parameter that differs on one rank is named on all ranks"""
    last = dist.get_world_size() - 1
    differs = dist.get_rank() == last
    for module, text in (
            (nn.Linear(4, 4, dtype=torch.float64 if differs else None),
             f"'weight' is f64 [4, 4] on rank {last} and f32 [4, 4] on rank 0"),
            (nn.Linear(4, 5 if differs else 4), f"'weight' is f32 [5, 4] on rank {last} and f32 [4, 4] on rank 0"),
            (nn.Linear(4, 4, bias=differs), f"'bias' f32 [4] is on rank {last} only")):
        expect_raises(text, Weft, module)
    train(Weft(of_rank(plain)), steps=1)


class FailsWithUnused(Fails):
    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(4, 4)


def static_first_step():
    """a static graph whose first step failed on one rank learns the graph from the next step"""
    x = torch.ones(2, 4)
    for view, rounds in ((False, 1), (True, 1), (True, 2)):
        ddp, since = Weft(of_rank(FailsWithUnused), gradient_as_bucket_view=view, static_graph=True), time.monotonic()
        ddp.module.fails = dist.get_rank() == 0
        for _ in range(rounds):
            if ddp.module.fails:
                expect_refused("bad batch", lambda: ddp(x).sum().backward())
                expect_raises("did not receive grad", ddp, x)
            else:
                expect_raises("did not receive grad for rank 0: first.weight", lambda: ddp(x).sum().backward())
        expect(time.monotonic() - since < 20 * rounds, "in time")
        ddp.module.fails = False
        for step in range(3):
            ddp.zero_grad()
            ddp(x * (dist.get_rank() + step)).sum().backward()
        found = gradients(ddp.module)
        expect(found["unused.weight"] is None, "no gradient", found["unused.weight"])
        mean = sum(range(dist.get_world_size())) / dist.get_world_size() + 2  # of the inputs of the last step
        expect(torch.allclose(found["first.weight"], mean * found["first.bias"][:, None]), "the mean", found["first.weight"])


def halved(state, bucket):
    """A hook of a program: half of the mean."""
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0] / dist.get_world_size() / 2)


def pickled(ddp):
    """Save an object and load it."""
    stored = io.BytesIO()
    torch.save(ddp, stored)
    stored.seek(0)
    return torch.load(stored, weights_only=False)


def copied_hooks():
    """a pickled or deep-copied object has the hook of its original, and a Hook object is refused by name"""
    hooks = {"function": (None, halved), "cast": (None, default_hooks.bf16_compress_hook),
             "name": ({"rank": 1, "start": 2}, "powersgd"), "built in": (None, dist.BuiltinCommHookType.FP16_COMPRESS),
             "PowerSGD": (powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)}
    for what, (state, hook) in hooks.items():
        for again in (copy.deepcopy, pickled):
            ddp = Weft(of_rank(plain))
            ddp.register_comm_hook(state, hook)
            other = again(ddp)
            expect((other.comm_hook is None) == (ddp.comm_hook is None), f"{what}: the hook", other.comm_hook)
            expect_same(train(other), train(ddp), f"{what}, {again.__name__}")
            expect_raises("can only be called once", other.register_comm_hook, state, hook)
    ddp = Weft(of_rank(plain))
    with weftsync.Hook(ddp.reducer.steps.reducer.comm.context, "bf16") as hook:
        ddp.register_comm_hook(None, hook)
        for again in (copy.deepcopy, pickled):
            try:
                again(ddp)
            except TypeError as error:
                expect("weftsync.Hook" in str(error) and "module" in str(error), "the text", error)
            else:
                raise AssertionError("a Hook was copied")
        train(ddp, steps=1)


def copied_settings():
    """a pickled or deep-copied object has the settings of its original"""
    config = torch.nn.parallel.distributed._MixedPrecision(reduce_dtype=torch.bfloat16)
    for options in ({"static_graph": True}, {"find_unused_parameters": True, "gradient_as_bucket_view": False},
                    {"mixed_precision": config}, {"bucket_cap_mb": 0.0005}):
        for again in (copy.deepcopy, pickled):
            ddp = Weft(of_rank(plain), **options)
            train(ddp, steps=2)
            ddp.zero_grad()
            other = again(ddp)
            expect(other.reducer.settings == ddp.reducer.settings, f"{options}", other.reducer.settings, ddp.reducer.settings)
            expect_same(train(other), train(ddp), f"{options}, {again.__name__}")


CASES = {f"ddp_{case.__name__}": case for case in (versions, other_parameter, static_first_step, copied_hooks, copied_settings)}
