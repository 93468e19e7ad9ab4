"""Cases of weftsync.torch.DistributedDataParallel. rank.py runs each on all ranks, in a process group of Weft.

Most cases train the same model with torch's class and compare the gradients of every step bit by bit.
"""
import gc
import io
import itertools
import math
import pickle
import time
import weakref
from types import SimpleNamespace

import torch
import torch.distributed as dist
from behaviours import expect, expect_raises, expect_refused
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join

import weftsync
from weftsync.torch import DistributedDataParallel as Weft

Torch = nn.parallel.DistributedDataParallel
STEPS = 4


class Mixed(nn.Module):
    """Parameters of several types and layouts, one without elements, one that is used twice, and buffers."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(4)
        self.shared = nn.Linear(16, 16)
        self.wide = nn.Linear(16, 3, dtype=torch.float64)
        self.narrow = nn.Linear(16, 3, dtype=torch.bfloat16)
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.scale = nn.Parameter(torch.ones(()))
        self.transposed = nn.Parameter(torch.randn(16, 8).t())
        self.phase = nn.Parameter(torch.randn(3, dtype=torch.complex64))

    def forward(self, x):
        x = self.norm(self.conv(x)).flatten(1)
        x = self.shared(torch.relu(self.shared(x))) * self.scale
        parts = self.wide(x.double()).sum(1) + self.narrow(x.bfloat16()).sum(1).double()
        return parts + (x @ self.transposed.t()).sum(1) + self.empty.sum() + (self.phase * x[:, :3]).abs().sum(1)


class Branches(nn.Module):
    """Which layers a step uses depends on the step and on the rank. `never` is used in no step."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(4))
        self.never = nn.Linear(5, 5)

    def forward(self, x, used):
        return sum(self.layers[index](x) for index in used).sum(1)


class Words(nn.Module):
    """A sparse embedding."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 6, sparse=True)
        self.out = nn.Linear(6, 2)

    def forward(self, x):
        return self.out(self.words(x)).sum((1, 2))


def inputs(module, step, rank):
    """Return the arguments of the forward pass of a step."""
    torch.manual_seed(1000 * step + rank)
    if isinstance(module, Words):
        return (torch.randint(50, (4, 3)),)
    if isinstance(module, Branches):
        return torch.randn(3, 5), sorted({step % 4, (step + rank) % 4, 1})
    if isinstance(module, Mixed):
        return (torch.randn(6, 2, 4, 4),)
    return (torch.randn(6, 8),)


def plain():
    return nn.Sequential(nn.Linear(8, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 2))


def of_rank(kind):
    """Make a module whose values differ between ranks."""
    torch.manual_seed(dist.get_rank())
    return kind()


def gradients(module):
    return {name: None if parameter.grad is None else parameter.grad.detach().to_dense().clone()
            for name, parameter in module.named_parameters()}


def train(ddp, steps=STEPS, none=True, accumulate=1, optimizer=True):
    """Train. Returns the gradients of each step, and the state at the end."""
    module, found = ddp.module, []
    tune = torch.optim.SGD(module.parameters(), lr=0.01)
    for step in range(steps):
        tune.zero_grad(set_to_none=none)
        for part in range(accumulate - 1):
            with ddp.no_sync():
                ddp(*inputs(module, 100 + step + part, dist.get_rank())).square().mean().backward()
        ddp(*inputs(module, step, dist.get_rank())).square().mean().backward()
        found.append(gradients(module))
        if optimizer:
            tune.step()
    return found, {name: value.clone() for name, value in ddp.state_dict().items()}


def same(one, other, exact=True):
    """Compare the bits, or with exact=False up to rounding."""
    if one is None or other is None:
        return one is other
    if not exact and one.is_floating_point():
        return torch.allclose(one, other, rtol=1e-4, atol=1e-6)
    return one.dtype == other.dtype and torch.equal(one.nan_to_num() if one.is_floating_point() else one,
                                                    other.nan_to_num() if other.is_floating_point() else other)


def expect_same(made, expected, what, exact=True):
    (steps, state), (other_steps, other_state) = made, expected
    for step, (one, other) in enumerate(zip(steps, other_steps)):
        for name in other:
            expect(same(one[name], other[name], exact), f"{what}: the gradient of {name} in step {step}", one[name], other[name])
    expect(list(state) == list(other_state), f"{what}: keys of the state", list(state), list(other_state))
    for name in other_state:
        expect(same(state[name], other_state[name], exact), f"{what}: {name} at the end", state[name], other_state[name])


def compare(kind, what, torch_options=None, hook=None, exact=True, **train_options):
    """Compare both classes, in view mode and in copy mode."""
    options = torch_options or {}
    for view in (False, True):
        made = []
        for ddp_class in (Torch, Weft):
            ddp = ddp_class(of_rank(kind), gradient_as_bucket_view=view, **options)
            if hook is not None:
                hook(ddp)
            made.append(train(ddp, **train_options))
        expect_same(made[1], made[0], f"{what}, {'view' if view else 'copy'} mode", exact)


def models():
    """modules of many types and layouts have the bits of torch's class, with gradients that are zeroed or dropped"""
    for kind, none in itertools.product((plain, Mixed, Words), (True, False)):
        if kind is Words and not none:
            continue  # an optimizer cannot zero a sparse gradient in place of its own
        compare(kind, f"{kind.__name__}, set_to_none={none}", none=none)


def small_buckets():
    """small buckets, and limits for each bucket"""
    compare(Mixed, "bucket_cap_mb", {"bucket_cap_mb": 0.001})
    compare(plain, "bucket_cap_mb_list", {"bucket_cap_mb_list": [0.0005, 0.001]})


class Backwards(nn.Module):
    """Layers that are used in another order than they are listed."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))

    def forward(self, x):
        for index in (3, 0, 4, 1, 2):
            x = self.layers[index](x).tanh()
        return x


def moved_gradients():
    """the second step moves gradients that lie in the buckets to buckets by the order of readiness"""
    for none, accumulate in itertools.product((True, False), (1, 3)):
        compare(Backwards, f"moved, set_to_none={none}, {accumulate} micro-batches", {"bucket_cap_mb_list": [0.0005, 0.0005]}, none=none,
                accumulate=accumulate)
    ddp = Weft(of_rank(Backwards), bucket_cap_mb_list=[0.0005, 0.0005])
    steps = ddp.reducer.steps
    first = steps.buckets()
    for generation in (0, 1, 1):
        for parameter in ddp.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        ddp(*inputs(ddp.module, 1, dist.get_rank())).square().mean().backward()
        expect(steps.reducer.stats().plan_generation == generation, "re-plans", steps.reducer.stats().plan_generation, generation)
        for view, parameter in zip(steps.reducer.views, ddp.parameters()):
            expect(parameter.grad.data_ptr() == view.ctypes.data, "a gradient in its bucket")
    expect(first[0] == (6, 7, 8, 9) and steps.buckets()[0][:2] == (5, 4), "the layer that is used last is launched first", first,
           steps.buckets())


def unused():
    """parameters that are unused on some ranks, or on all"""
    for none, accumulate in itertools.product((True, False), (1, 3)):
        compare(Branches, f"set_to_none={none}, {accumulate} micro-batches", {"find_unused_parameters": True}, none=none,
                accumulate=accumulate)


def unused_output():
    """an output that does not take part in the loss leaves its parameters without a gradient"""
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return {"one": self.one(x), "two": [self.two(x)]}

    for view in (False, True):
        ddp = Weft(of_rank(Two), find_unused_parameters=True, gradient_as_bucket_view=view)
        for _ in range(3):
            ddp(torch.ones(2, 3))["one"].sum().backward()
        expect(ddp.module.two.weight.grad is None, "no gradient", ddp.module.two.weight.grad)
        expect(ddp.module.one.weight.grad is not None, "a gradient")


def static():
    """a static graph, with parameters that are unused in all steps"""
    class Same(Branches):
        def forward(self, x, used):
            return super().forward(x, [0, 2])

    compare(Same, "static_graph", {"static_graph": True})
    expected = train(Torch(of_rank(plain)), accumulate=2)  # torch's class fails with static_graph and no_sync
    expect_same(train(Weft(of_rank(plain), static_graph=True), accumulate=2), expected, "accumulated")


def checkpointed():
    """layers that are recomputed in the backward pass, several times in a static graph"""
    from torch.utils.checkpoint import checkpoint

    class Recomputed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.out = nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x):
            for _ in range(2):
                x = checkpoint(self.layer, x, use_reentrant=True)
            return self.out(x)

    def run(ddp):
        for step in range(3):
            ddp.zero_grad()
            ddp(inputs(ddp.module, step, dist.get_rank())[0].requires_grad_()).square().mean().backward()
        return gradients(ddp.module)

    theirs, ours = run(Torch(of_rank(Recomputed), static_graph=True)), run(Weft(of_rank(Recomputed), static_graph=True))
    for name in theirs:
        expect(same(theirs[name], ours[name]), name, theirs[name], ours[name])
    ddp = Weft(of_rank(Recomputed))
    expect_raises("mark a variable ready only once", run, ddp)


def two_backward_passes():
    """a loss in two backward passes over different outputs is one step"""
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.one(x), self.two(x)

    found = []
    for ddp_class in (Torch, Weft):
        ddp = ddp_class(of_rank(Two))
        for step in range(3):
            ddp.zero_grad()
            one, two = ddp(torch.full((2, 3), float(dist.get_rank() + step)))
            one.sum().backward()
            two.sum().backward()
        found.append(gradients(ddp.module))
    for name in found[0]:
        expect(same(found[0][name], found[1][name]), name)


def without_gradients():
    """forward passes without backward passes, in eval mode, and of the module alone, are no steps"""
    ddp = Weft(of_rank(plain))
    ddp.module(*inputs(ddp.module, 1, dist.get_rank())).sum().backward()
    for step in range(3):
        ddp(*inputs(ddp.module, step, 0))
    with torch.no_grad():
        ddp(*inputs(ddp.module, 0, 0))
    expect(ddp.reducer.steps.reducer.stats().steps == 0, "no step")
    ddp.zero_grad()
    ddp(*inputs(ddp.module, 1, dist.get_rank())).sum().backward()
    expect(ddp.reducer.steps.reducer.stats().steps == 1, "one step")


def hooks():
    """torch's casts run as Weft's hooks, with the same bits, and functions of the program as in torch's class"""
    def scaled(state, bucket):
        future = dist.all_reduce(bucket.buffer().mul_(2), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / dist.get_world_size()).then(lambda done: done.value() / 2)

    def in_parts(state, bucket):  # writes into the gradients
        for gradient in bucket.gradients():
            dist.all_reduce(gradient)
            gradient.div_(dist.get_world_size())
        expect(len(bucket.parameters()) == len(bucket.gradients()), "parameters of the bucket")
        state.last = bucket.is_last()
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    named = {"allreduce": (None, default_hooks.allreduce_hook), "fp16": (None, default_hooks.fp16_compress_hook),
             "wrapped": (None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)),
             "scaled": (None, scaled), "in_parts": (SimpleNamespace(last=None), in_parts)}
    for name, (state, hook) in named.items():
        compare(plain, name, {"bucket_cap_mb": 0.0005}, hook=lambda ddp: ddp.register_comm_hook(state, hook))
    expect(named["in_parts"][0].last is True, "is_last")
    compare(Branches, "function, unused parameters", {"find_unused_parameters": True},
            hook=lambda ddp: ddp.register_comm_hook(None, scaled))
    compare(plain, "function, static graph", {"static_graph": True}, hook=lambda ddp: ddp.register_comm_hook(None, scaled))
    def one_element(state, bucket):
        future = torch.futures.Future()
        future.set_result(torch.ones(1))
        return future

    wrong = Weft(of_rank(plain))
    wrong.register_comm_hook(None, one_element)
    expect_raises("size 1", lambda: wrong(torch.ones(2, 8)).sum().backward())
    expected = Torch(of_rank(plain))
    expected.register_comm_hook(None, default_hooks.fp16_compress_hook)
    built_in = Weft(of_rank(plain))
    built_in._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    expect_same(train(built_in), train(expected), "built in")


def named_hooks():
    """hooks of Weft by name, with options, as objects, and with state that is saved"""
    ddp = Weft(of_rank(plain))
    ddp.register_comm_hook({"rank": 2, "start": 2}, "powersgd")
    first = train(ddp, steps=4)
    expect(ddp.comm_hook.name == "powersgd", ddp.comm_hook.name)
    saved = ddp.comm_hook.save()
    ddp.comm_hook.load(saved)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2, random_seed=0)
    equal = Weft(of_rank(plain))
    equal.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    expect(equal.comm_hook.name == "powersgd", "torch's PowerSGD is Weft's")
    for name, value in gradients(equal.module).items():
        expect(value is None, name)
    theirs = train(equal, steps=4)
    error = max((a - b).abs().max() for one, two in zip(first[0], theirs[0]) for a, b in zip(one.values(), two.values()))
    expect(error < 0.05, "the approximations are near", error)
    with weftsync.Hook(ddp.reducer.steps.reducer.comm.context, "bf16") as hook:
        other = Weft(of_rank(plain))
        other.register_comm_hook(None, hook)
        train(other)
    expect_raises("can only be called once", ddp.register_comm_hook, None, "fp16")
    for wrong, text in ((("gzip", None), "gzip"), (("topk", {"rate": 1}), "rate")):
        try:
            Weft(of_rank(plain)).register_comm_hook(wrong[1], wrong[0])
        except weftsync.WeftError as error:
            expect(text in str(error), error)
        else:
            raise AssertionError(f"{wrong} was accepted")


def reduce_dtype():
    """gradients are communicated in 16 bits"""
    config = torch.nn.parallel.distributed._MixedPrecision(reduce_dtype=torch.bfloat16)
    exact, rounded = train(Weft(of_rank(plain)), optimizer=False), train(Weft(of_rank(plain), mixed_precision=config), optimizer=False)
    for one, two in zip(exact[0], rounded[0]):
        for name in one:
            expect(torch.allclose(one[name], two[name], rtol=0.02, atol=0.02), name)
    expect(any(not torch.equal(one[name], two[name]) for one, two in zip(exact[0], rounded[0]) for name in one), "not rounded")
    config.param_dtype = torch.bfloat16
    expect_refused("param_dtype", lambda: Weft(of_rank(plain), mixed_precision=config))


def join():
    """ranks with different numbers of batches, in join's modes and beside another Joinable"""
    rank = dist.get_rank()

    def run(ddp_class, count, **options):
        ddp = ddp_class(of_rank(plain), bucket_cap_mb=0.0005)
        tune, found = torch.optim.SGD(ddp.parameters(), lr=0.01), []
        with ddp.join(**options):
            for step in range(count):
                tune.zero_grad()
                ddp(*inputs(ddp.module, step, rank)).square().mean().backward()
                found.append(gradients(ddp.module))
                tune.step()
        return found, dict(ddp.state_dict())

    for initial, count in itertools.product((True, False), (2 + 2 * rank, 3 - rank % 2, 3 * rank)):
        options = {"divide_by_initial_world_size": initial}
        exact = initial or dist.get_world_size() == 2  # a division by three and a product with a third round differently
        expect_same(run(Weft, count, **options), run(Torch, count, **options), f"{options}, {count} batches", exact)
    expect_raises("exhausted", run, Weft, 2 + rank, throw_on_early_termination=True)
    ddps = [Weft(of_rank(plain)) for _ in range(2)]
    with Join(ddps):
        for step in range(1 + rank):
            for ddp in ddps:
                ddp(*inputs(ddp.module, step, rank)).sum().backward()


def missing_gradient():
    """a parameter without a gradient is named on its rank, the others get an error, and the next step works"""
    for options in ({}, {"gradient_as_bucket_view": False}, {"bucket_cap_mb": 0.0001}):
        ddp = Weft(of_rank(Branches), **options)
        x = torch.ones(2, 5)
        ddp(x, [0, 1, 2, 3]).sum().backward()  # never is missing on all ranks
        error = expect_raises("did not receive grad", ddp, x, [0])
        expect("never.weight" in str(error) and "find_unused_parameters" in str(error), error)
        error = expect_raises("Expected to have finished", lambda: (ddp(x, [0]).sum().backward(), ddp(x, [0])))
        expect("layers.1.weight" in str(error) and "layers.0.weight" not in str(error), error)


class Fails(nn.Module):
    """Raises in a backward pass, as long as `fails` says so."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.fails = nn.Linear(4, 4), nn.Linear(4, 4), False

    def forward(self, x):
        x = self.first(x)
        if self.fails:
            x.register_hook(self.bad)
        return self.second(x)

    def bad(self, gradient):
        raise ValueError("bad batch")


def failing_rank():
    """an exception in one rank's backward pass fails the step of the others, and the next step works"""
    x = torch.ones(2, 4)
    for view in (False, True):
        ddp = Weft(of_rank(Fails), gradient_as_bucket_view=view)
        ddp(x).sum().backward()
        since = time.monotonic()
        ddp.module.fails = dist.get_rank() == 0
        if ddp.module.fails:
            expect_refused("bad batch", lambda: ddp(x).sum().backward())
            expect_raises("did not receive grad", ddp, x)
        else:
            expect_raises("did not receive grad for rank 0: first.weight", lambda: ddp(x).sum().backward())
        expect(time.monotonic() - since < 20, "in time")
        ddp.module.fails = False
        ddp.zero_grad()
        ddp(x).sum().backward()
        mean = gradients(ddp.module)["second.weight"]
        dist.all_reduce(mean)
        expect(torch.allclose(mean / dist.get_world_size(), ddp.module.second.weight.grad), "equal on all ranks")


def other_groups():
    """process groups of another backend, and of some of the ranks"""
    gloo = dist.new_group(backend="gloo")
    for _ in range(2):
        compare(plain, "gloo", {"process_group": gloo}, exact=dist.get_world_size() == 2)  # gloo adds in another order
    half = [dist.new_group([rank for rank in range(dist.get_world_size()) if rank % 2 == part]) for part in range(2)]
    compare(plain, "half of the ranks", {"process_group": half[dist.get_rank() % 2]})


def checkpoints():
    """states of both classes and of the module alone, pickled objects, and modules that are wrapped again"""
    ours, theirs = Weft(of_rank(plain)), Torch(of_rank(plain))
    train(ours)
    theirs.load_state_dict(ours.state_dict())
    expect(list(theirs.state_dict()) == list(ours.state_dict()), "keys")
    ours.load_state_dict(theirs.state_dict())
    theirs.module.load_state_dict(ours.module.state_dict())
    expect_same(train(ours), train(theirs), "after loading")
    stored = io.BytesIO()
    torch.save(ours, stored)
    stored.seek(0)
    again = torch.load(stored, weights_only=False)
    expect(isinstance(again, Weft), type(again))
    expect_same(train(again), train(Torch(pickle.loads(pickle.dumps(theirs.module)))), "after pickling")
    expect_same(train(Weft(ours.module)), train(Torch(theirs.module)), "wrapped again")


def refused():
    """arguments that are unknown or not supported are refused by name"""
    try:
        Weft(of_rank(plain), bucket_size=3)
    except TypeError as error:
        expect("unknown arguments bucket_size" in str(error) and "bucket_cap_mb" in str(error), error)
    else:
        raise AssertionError("an unknown argument was accepted")
    module = of_rank(plain)
    expect_refused("delay_all_reduce_named_params", lambda: Weft(
        module, delay_all_reduce_named_params=[("0.weight", module[0].weight)], param_to_hook_all_reduce=module[0].bias))
    expect_raises("expected the CPU", lambda: Weft(nn.Linear(2, 2, device="meta"), init_sync=False))
    expect_raises("doesn't have any parameter", lambda: Weft(nn.ReLU()))
    with_optimizer = of_rank(plain)
    with_optimizer[0].weight._in_backward_optimizers = [1]
    expect_raises("_apply_optimizer_in_backward", lambda: Weft(with_optimizer)(torch.ones(2, 8)))
    ddp = Weft(of_rank(plain))
    ddp(torch.ones(2, 8)).sum().backward()
    expect_raises("before training loop starts", ddp._set_static_graph)


def different_models():
    """ranks with different parameters or options get an error that names the difference"""
    rank = dist.get_rank()
    error = expect_raises("0.weight", lambda: Weft(nn.Sequential(nn.Linear(3, 2 + rank)), init_sync=False))
    expect("MISMATCH" in str(error), error)
    expect_raises("MISMATCH", lambda: Weft(of_rank(plain), find_unused_parameters=rank == 0))


def compiled():
    """torch.compile inside and around the wrapped module"""
    compare_with = train(Torch(of_rank(plain)))
    module = of_rank(plain)
    ddp = Weft(module)
    module.compile(backend="eager")
    expect_same(train(ddp), compare_with, "inside")
    ddp = Weft(of_rank(plain))
    outside = torch.compile(ddp, backend="eager")
    for step in range(STEPS):
        outside.zero_grad()
        outside(*inputs(ddp.module, step, dist.get_rank())).square().mean().backward()
        mean = gradients(ddp.module)["0.weight"]
        other = mean.clone()
        dist.broadcast(other, 0)
        expect(torch.equal(mean, other), "equal on all ranks")


def lifetimes():
    """an object that is dropped frees its reducer, and gradients that the program keeps stay valid"""
    model = of_rank(plain)
    for _ in range(80):  # more than a communicator has lanes
        ddp = Weft(model)
        ddp(*inputs(model, 0, 0)).sum().backward()
        reducer = weakref.ref(ddp.reducer.steps.reducer)
        kept = model[0].weight.grad
    value = kept.clone()
    for parameter in model.parameters():
        parameter.grad = None
    del ddp
    gc.collect()
    expect(reducer() is not None and torch.equal(kept, value), "the gradient is valid")
    del kept
    gc.collect()
    expect(reducer() is None, "the reducer is gone")
    model(*inputs(model, 0, 0)).sum().backward()  # no hook is left
    expect(math.isfinite(float(model[0].weight.grad.sum())), "gradients without the class")


def buffers():
    """buffers of rank 0 are sent to all ranks, unless that is switched off"""
    for options in ({}, {"forward_sync_buffers": False}):
        compare(plain, f"{options}", options)


def higher_order():
    """gradients with a graph"""
    for view in (False, True):
        ddp = Weft(of_rank(lambda: nn.Linear(3, 2)), gradient_as_bucket_view=view)
        for _ in range(3):
            ddp(torch.ones(2, 3)).square().sum().backward(create_graph=True)
        expect(ddp.module.weight.grad is not None, "a gradient")


CASES = {f"ddp_{case.__name__}": case for case in (
    models, small_buckets, moved_gradients, unused, unused_output, static, checkpointed, two_backward_passes, without_gradients, hooks, named_hooks,
    reduce_dtype, join, missing_gradient, failing_rank, other_groups, checkpoints, refused, different_models, compiled, lifetimes,
    buffers, higher_order)}
