"""Equal modules under DistributedDataParallel and under Weft whose sums are exact; behaviours are made of
them.

Small whole numbers, and inputs that are multiples of the number of ranks, keep gradients exact, so both
results must be equal for any number of ranks.
"""
import copy

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from binding import Synchronised


def whole(layer):
    """Return the layer with weights that are small whole numbers."""
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
    """One of the two outputs."""

    def forward(self, x, index):
        return (self.one, self.two)[index](x).sum()


class Pair:
    """Equal modules, one under each implementation."""

    def __init__(self, comm, module, reducer=None, theirs=None, **ddp):
        self.comm = comm
        self.ours, self.theirs = module, theirs or copy.deepcopy(module)
        self.ddp = DistributedDataParallel(self.theirs, **ddp)
        self.synced = Synchronised(self.ours, comm, **(reducer or {}))

    def inputs(self, step=0):
        generator = torch.Generator().manual_seed(100 * step + self.comm.rank)
        return torch.randint(-3, 4, (2, 4), generator=generator).float() * self.comm.size

    def clear(self):
        for module in (self.ours, self.theirs):
            module.zero_grad()

    def differences(self, what, unset=()):
        """Return the differences of all gradients. unset: names of parameters that have no gradient on either
        side."""
        def equal(name, ours, theirs):
            if name in unset or ours is None or theirs is None:
                return name in unset and ours is theirs is None
            return torch.equal(ours, theirs)

        return [f"{what}: {name}" for (name, ours), theirs in zip(self.ours.named_parameters(), self.theirs.parameters())
                if not equal(name, ours.grad, theirs.grad)]


def seeded(make):
    torch.manual_seed(7)
    return make()


def train(module, synchronise, pair, steps):
    """Run whole steps of gradient descent; return the gradients of each."""
    gradients = []
    for step in steps:
        module.zero_grad()
        synchronise(pair.inputs(step) * 12)  # a multiple of every number of ranks up to 4
        gradients.append([parameter.grad.clone() for parameter in module.parameters()])
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= parameter.grad
    return gradients
