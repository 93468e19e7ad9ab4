"""What DistributedDataParallel's own tests do besides training step by step: each a function with a case of cases.md.

A behaviour trains equal modules through both and returns what is wrong, as texts. Small numbers keep the sums exact, so
that results must be equal whatever the number of ranks: each gradient is a multiple of the number of ranks.
"""
import copy
import threading

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import weft
from binding import Synchronised
from shard_behaviours import SHARD_BEHAVIOURS
from state_behaviours import STATE_BEHAVIOURS


def whole(layer):
    """The layer, with weights that are small whole numbers."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randint(-2, 3, parameter.shape))
    return layer


class Heads(nn.Module):
    """Two outputs of disjoint parameters."""

    def __init__(self):
        super().__init__()
        self.one, self.two = whole(nn.Linear(4, 3)), whole(nn.Linear(4, 3))

    def forward(self, x):
        return self.one(x).sum(), self.two(x).sum()


class Choice(Heads):
    """One of them."""

    def forward(self, x, index):
        return (self.one, self.two)[index](x).sum()


class Pair:
    """Equal modules, one of each kind."""

    def __init__(self, comm, module, reducer=None, **ddp):
        self.comm = comm
        self.ours, self.theirs = module, copy.deepcopy(module)
        self.ddp = DistributedDataParallel(self.theirs, **ddp)
        self.synced = Synchronised(self.ours, comm, **(reducer or {}))

    def inputs(self, step=0):
        generator = torch.Generator().manual_seed(100 * step + self.comm.rank)
        return torch.randint(-3, 4, (2, 4), generator=generator).float() * self.comm.size

    def clear(self):
        for module in (self.ours, self.theirs):
            module.zero_grad()

    def differences(self, what):
        return [f"{what}: {name}" for (name, ours), theirs in zip(self.ours.named_parameters(), self.theirs.parameters())
                if ours.grad is None or theirs.grad is None or not torch.equal(ours.grad, theirs.grad)]


def seeded(make):
    torch.manual_seed(7)
    return make()


def several_backwards(comm):
    """two backward passes on disjoint outputs are one step (case 21)"""
    pair = Pair(comm, seeded(Heads))
    for loss in pair.ddp(pair.inputs()):
        loss.backward()
    with pair.synced.step():
        for loss in pair.ours(pair.inputs()):
            loss.backward()
    return pair.differences("two backwards")


def create_graph(comm):
    """a backward pass that builds a graph is synchronised as others are (case 25)"""
    pair, problems = Pair(comm, seeded(Heads)), []
    for step in range(6):
        pair.clear()
        sum(pair.ddp(pair.inputs(step))).backward(create_graph=True)
        pair.synced.backward(sum(pair.ours(pair.inputs(step))), create_graph=True)
        problems += pair.differences(f"step {step}")
    return problems


def two_forwards(comm):
    """two forward passes, one backward: a parameter's two uses are summed first (case 50)"""
    pair, problems = Pair(comm, seeded(Heads), static_graph=True), []
    for step in range(3):
        pair.clear()
        for model, backward in ((pair.ddp, torch.Tensor.backward), (pair.ours, pair.synced.backward)):
            outputs = [model(pair.inputs(step + batch)) for batch in (0, 10)]
            backward(sum(loss for pass_ in outputs for loss in pass_))
        problems += pair.differences(f"step {step}")
    return problems


def new_instance(comm):
    """after a step that was given up, a new instance over the same parameters works (cases 27, 28)"""
    first = Pair(comm, seeded(Heads))
    first.synced.close()
    second = Pair(comm, first.ours)
    losses = second.ddp(second.inputs())
    sum(losses).backward()
    second.synced.backward(sum(second.ours(second.inputs())))
    return second.differences("the second instance")


def resume(comm):
    """what is saved and loaded goes on as what was not interrupted (case 32)"""
    def train(synced, steps):
        for step in steps:
            synced.zero_grad()
            synced.backward(sum(loss * loss for loss in synced.module(pair.inputs(step))))
            with torch.no_grad():
                for parameter in synced.parameters:
                    parameter -= 0.01 * parameter.grad

    pair = Pair(comm, seeded(Heads))
    train(pair.synced, range(2))
    saved = copy.deepcopy(pair.ours.state_dict())
    train(pair.synced, range(2, 4))
    other = seeded(Heads)
    other.load_state_dict(saved)
    train(Synchronised(other, comm), range(2, 4))
    return [f"resumed: {name}" for (name, one), two in zip(pair.ours.named_parameters(), other.parameters())
            if not torch.equal(one, two)]


class Checkpointed(nn.Module):
    """Layers whose forward runs again in backward, `times` times; shared: a layer is used outside as well."""

    def __init__(self, reentrant, times=1, shared=False):
        super().__init__()
        self.reentrant, self.times, self.shared = reentrant, times, shared
        self.heads, self.first = Heads(), whole(nn.Linear(4, 4, bias=False))

    def forward(self, x):
        x = self.first(x)
        outputs = [loss for _ in range(self.times) for loss in checkpoint(self.heads, x, use_reentrant=self.reentrant)]
        return outputs + [self.heads.one(x).sum()] * self.shared


def checkpointing(comm):
    """layers that are computed again in backward: once, twice, shared, reentrant or not; static or not (case 52)"""
    problems = []
    for reentrant in (False, True):
        for times, shared in ((1, False), (2, False), (1, True), (2, True)):
            # Reentrant, autograd tells of a gradient for each time; what is not static takes one then, as DDP does.
            several = reentrant and (times > 1 or shared)
            for static in (False, True)[several:]:
                pair = Pair(comm, seeded(lambda: Checkpointed(reentrant, times, shared)), {"static": static},
                            static_graph=static)
                for step in range(3):
                    pair.clear()
                    sum(pair.ddp(pair.inputs(step))).backward()
                    pair.synced.backward(sum(pair.ours(pair.inputs(step))))
                    problems += pair.differences(f"reentrant {reentrant}, {times} times, shared {shared}, static {static}, "
                                                 f"step {step}")
                pair.synced.close()
    return problems


def declared_uses(comm):
    """what DDP finds only with a static graph can be declared: how often a parameter is used (case 52)"""
    names = [f"heads.{head}.{what}" for head in ("one", "two") for what in ("weight", "bias")]
    pair, problems = Pair(comm, seeded(lambda: Checkpointed(True, 2)), {"uses": dict.fromkeys(names, 2)},
                          static_graph=True), []
    for step in range(3):
        pair.clear()
        sum(pair.ddp(pair.inputs(step))).backward()
        pair.synced.backward(sum(pair.ours(pair.inputs(step))))
        problems += pair.differences(f"step {step}")
    return problems


def static_changes(comm):
    """a static pattern that changes is an error on both sides, ours with the parameter's name (case 46)"""
    with comm.split(0) as part:  # an open step that is given up ends its communicator
        pair, texts = Pair(part, seeded(Heads), {"static": True}, static_graph=True), []
        try:
            for which in (sum, lambda losses: losses[0], sum):  # DDP finds it when the third step begins
                which(pair.ddp(pair.inputs())).backward()
        except RuntimeError as error:
            texts.append(str(error))
        try:
            for which in (sum, lambda losses: losses[0]):
                pair.clear()
                pair.synced.backward(which(pair.ours(pair.inputs())))
        except weft.WeftError as error:
            texts.append(str(error))
    found = len(texts) == 2 and "graph has changed" in texts[0] and "'two.weight' 0 times; 1 in the first step" in texts[1]
    return [] if found else [f"errors: {texts}"]


def static_ranks_differ(comm):
    """ranks use different parameters, in a static pattern of their own or not (case 48)"""
    problems = []
    for static in (True, False):
        # DDP's static graph wants every parameter on every rank: its dynamic one is the measure of both.
        pair = Pair(comm, seeded(Choice), {"static": static, "absent": True}, find_unused_parameters=True)
        for step in range(4):
            pair.clear()
            index = comm.rank % 2
            pair.ddp(pair.inputs(step), index).backward()
            pair.synced.backward(pair.ours(pair.inputs(step), index))
            problems += pair.differences(f"static {static}, step {step}")
    return problems


def train(module, synchronise, pair, steps):
    """Whole steps of gradient descent; the gradients of each."""
    gradients = []
    for step in steps:
        module.zero_grad()
        synchronise(pair.inputs(step) * 12)  # every number of ranks up to 4 divides it
        gradients.append([parameter.grad.clone() for parameter in module.parameters()])
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= parameter.grad
    return gradients


def join_case(comm, initial, hook):
    """What is wrong when rank r has 2 r batches and then joins, and how many bytes this rank sent."""
    count = 2 * comm.rank
    options = {"uneven": True, "divide_by": "world" if initial else "active"}
    if hook == "fp16":
        options["hook"] = weft.Hook(comm.context, hook, order="ddp")
    if hook == "powersgd":
        options["hook"] = weft.Hook(comm.context, hook, rank=1, start=1, min_rate=1, feedback="off", warm_start=0)
    pair = Pair(comm, seeded(Heads), options)
    if hook == "fp16":
        pair.ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if hook == "powersgd":
        pair.ddp.register_comm_hook(powerSGD_hook.PowerSGDState(
            None, 1, start_powerSGD_iter=1, min_compression_rate=1, use_error_feedback=False, warm_start=False),
            powerSGD_hook.powerSGD_hook)
    # The matrices of Heads have equal rows: PowerSGD loses only bits of them.
    equal = torch.equal if hook != "powersgd" else lambda one, two: torch.allclose(one, two, rtol=1e-4, atol=1e-3)
    with pair.ddp.join(divide_by_initial_world_size=initial):
        theirs = train(pair.theirs, lambda batch: sum(pair.ddp(batch)).backward(), pair, range(count))
    ours = train(pair.ours, lambda batch: pair.synced.backward(sum(pair.ours(batch))), pair, range(count))
    joined = pair.synced.reducer.join()
    pair.synced.broadcast_state(joined.last_active)
    what = f"divided by the {'initial' if initial else 'active'} ranks{hook and ', ' + hook}"
    problems = [f"{what}: gradients of step {step}" for step, (one, two) in enumerate(zip(ours, theirs))
                if not all(map(equal, one, two))]
    problems += [f"{what}: state of {name}" for (name, one), two in zip(pair.ours.named_parameters(),
                                                                        pair.theirs.parameters()) if not equal(one, two)]
    if (joined.steps, joined.last_active) != (2 * (comm.size - 1) - count, comm.size - 1):
        problems.append(f"{what}: {joined}")
    return problems, pair.synced.reducer.stats().sent_bytes


def uneven_inputs(comm):
    """ranks with fewer batches, one of them with none, join: gradients of every step, and the state in the end (cases 56 to 58)"""
    plain, plain_bytes = join_case(comm, True, "")
    active, _ = join_case(comm, False, "")
    half, _ = join_case(comm, True, "fp16")
    compressed, compressed_bytes = join_case(comm, True, "powersgd")
    return plain + active + half + compressed + ["nothing was compressed"] * (compressed_bytes >= plain_bytes)


def stop_when_exhausted(comm):
    """the first rank without data stops all, at the same step (case 59)"""
    pair = Pair(comm, seeded(Heads), {"uneven": True, "stop_when_exhausted": True})
    count, done = 2 + comm.rank, [0, 0]

    def once(which, synchronise):
        train((pair.theirs, pair.ours)[which], synchronise, pair, [0])
        done[which] += 1

    texts = []
    try:
        with pair.ddp.join(throw_on_early_termination=True):
            for _ in range(count):
                once(0, lambda batch: sum(pair.ddp(batch)).backward())
    except RuntimeError as error:
        texts.append(str(error))
    try:
        for _ in range(count):
            once(1, lambda batch: pair.synced.backward(sum(pair.ours(batch))))
        pair.synced.reducer.join()
    except weft.WeftError as error:
        texts.append(str(error))
    problems = [] if done[0] == done[1] == 2 else [f"steps done: {done}"]
    if len(texts) != 2 or "exhausted" not in texts[0] or "ranks [0] have no more data" not in texts[1]:
        problems.append(f"errors: {texts}")
    return problems


def optimiser_in_step(comm):
    """an optimiser that updates a bucket's parameters as soon as it is reduced, while others travel (cases 82, 83)"""
    told, plan, parameters = threading.Semaphore(0), [], []

    def update(step, bucket, status):
        with torch.no_grad():
            for index in plan[bucket]:
                parameters[index] -= parameters[index].grad
        told.release()

    pair = Pair(comm, seeded(Heads), {"on_bucket": update, "bucket_limits": [0]})
    plan += [bucket.params for bucket in pair.synced.reducer.buckets()]
    parameters += pair.synced.parameters
    optimiser, problems = torch.optim.SGD(pair.theirs.parameters(), lr=1.0), []
    for step in range(4):
        pair.clear()
        sum(pair.ddp(pair.inputs(step))).backward()
        optimiser.step()
        pair.synced.backward(sum(pair.ours(pair.inputs(step))))
        if not all(told.acquire(timeout=10) for _ in plan):
            return [f"step {step}: not every bucket is told"]
        problems += [f"step {step}: {name}" for (name, one), two in zip(pair.ours.named_parameters(),
                                                                        pair.theirs.parameters()) if not torch.equal(one, two)]
    return problems


BEHAVIOURS = {function.__name__: function for function in (several_backwards, create_graph, two_forwards, new_instance, resume,
                                                          checkpointing, declared_uses, static_changes,
                                                          static_ranks_differ, uneven_inputs,
                                                          stop_when_exhausted, optimiser_in_step)} | STATE_BEHAVIOURS | SHARD_BEHAVIOURS
