"""What DistributedDataParallel's own tests do besides training step by step: each a function with a case of cases.md.

A behaviour trains equal modules through both and returns what is wrong, as texts. Small numbers keep the sums exact, so
that results must be equal whatever the number of ranks: each gradient is a multiple of the number of ranks.
"""
import copy

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from binding import Synchronised


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


class Pair:
    """Equal modules, one of each kind."""

    def __init__(self, comm, module, **ddp):
        self.comm = comm
        self.ours, self.theirs = module, copy.deepcopy(module)
        self.ddp = DistributedDataParallel(self.theirs, **ddp)
        self.synced = Synchronised(self.ours, comm)

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
    """A layer whose forward runs again in backward."""

    def __init__(self):
        super().__init__()
        self.heads, self.first = Heads(), whole(nn.Linear(4, 4, bias=False))

    def forward(self, x):
        return checkpoint(self.heads, self.first(x), use_reentrant=False)


def checkpointing(comm):
    """a layer that is computed again in backward has its gradient once, when not reentrant (case 52, in part)"""
    pair = Pair(comm, seeded(Checkpointed))
    sum(pair.ddp(pair.inputs())).backward()
    pair.synced.backward(sum(pair.ours(pair.inputs())))
    return pair.differences("checkpointed")


BEHAVIOURS = {function.__name__: function for function in (several_backwards, create_graph, two_forwards, new_instance, resume,
                                                          checkpointing)}
