"""One model that is trained in one mode through DistributedDataParallel and through Weft, and compared step
by step.

rank.py creates one for each case. joined.py has the cases whose ranks end at different steps. Threads: the
thread that trains.
"""
import copy
import hashlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import compare
from binding import TYPES, Synchronised
from models import MODELS, Loss

STEPS = 4


def wide(tensor):
    """Return a tensor's values in f64, complex ones as pairs; the sign of a zero is kept."""
    tensor = tensor.to_dense() if tensor.is_sparse else tensor
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.double().contiguous().numpy()


def layers(sparse):
    """Split a sparse gradient into dense ones, each with at most one entry of an index."""
    found, seen = [], {}
    for index, value in zip(sparse._indices()[0].tolist(), sparse._values()):
        seen[index] = seen.get(index, -1) + 1
        if seen[index] == len(found):
            found.append(torch.zeros(sparse.shape, dtype=sparse.dtype))
        found[seen[index]][index] = value
    return found


class Case:
    """One model in one mode over one backend. run() trains it and returns the problems, as texts."""

    def __init__(self, model, mode, comm):
        self.mode, self.comm, self.problems = mode, comm, []
        torch.manual_seed(1234)
        ours = MODELS[model]()
        theirs, self.local = copy.deepcopy(ours), copy.deepcopy(ours)
        self.ddp = mode.wrap(DistributedDataParallel, Loss(theirs))
        self.synced = mode.bind(Synchronised, ours, comm)
        self.theirs, self.ours = theirs, ours

    def run(self):
        for step in range(STEPS):
            batches = self.batches(step)
            contributions = self.gather(self.contribution(self.theirs.state_dict(), batches))
            self.mode.clear(self.ddp)
            self.synced.zero_grad()
            self.mode.step_ddp(self.ddp, batches)
            self.mode.step_weft(self.synced, batches)
            self.compare(step, *([parameter.grad for parameter in model.parameters()] for model in (self.ours, self.theirs)),
                         contributions)
            self.update()
        self.end()
        return self.problems

    def end(self):
        try:
            self.mode.finish(self.ddp, self.synced)
        except AssertionError as error:
            self.problems.append(str(error))
        self.synced.close()

    def batches(self, step):
        """Return this rank's batches of a step, and tell the models rank, size and step."""
        for model in (self.theirs, self.ours, self.local):
            model.rank, model.size, model.step = self.comm.rank, self.comm.size, step
        generator = torch.Generator().manual_seed(1000 * step + self.comm.rank)
        return [self.ours.batch(generator) for _ in range(self.mode.micro_batches)]

    def contribution(self, state, batches):
        """Return what this rank adds to a step that begins in a state: for each parameter a list of
        gradients, or of a None.

        A sparse parameter has several, because DDP adds the entries of all ranks and micro-batches one by
        one.
        """
        self.local.load_state_dict(state)
        self.local.zero_grad()
        parts = [[] for _ in self.local.parameters()]
        for batch in batches:
            self.mode.loss(Loss(self.local), batch).backward()
            for parameter, mine in zip(self.local.parameters(), parts):
                if parameter.grad is not None and parameter.grad.is_sparse:
                    mine += layers(parameter.grad)
                    parameter.grad = None
        return [mine or [parameter.grad] for parameter, mine in zip(self.local.parameters(), parts)]

    def gather(self, parts):
        """Return the contributions of all ranks, for each parameter in one list."""
        everything = [None] * self.comm.size
        dist.all_gather_object(everything, parts)
        return [sum(ranks, []) for ranks in zip(*everything)]

    def compare(self, step, ours, theirs, contributions):
        """Compare the gradients of a step. They are given for each parameter, or None on a rank without a
        part in it."""
        bits = None
        if ours is not None:
            names = [name for name, _ in self.ours.named_parameters()]
            for name, one, two, parts in zip(names, ours, theirs, contributions):
                problem = self.difference(step, one, two, parts)
                if problem:
                    self.problems.append(f"step {step}: {name}: {problem}")
            bits = digest(ours)
        everything = [None] * self.comm.size
        dist.all_gather_object(everything, bits)
        if len(set(everything) - {None}) != 1:
            self.problems.append(f"step {step}: the ranks have different gradients")

    def difference(self, step, ours, theirs, parts):
        if self.synced.view and theirs is None and all(part is None for part in parts):
            # DDP's gradient is unset until some rank uses the parameter
            return "its view is not zero" if ours.any() else ""
        if ours is None or theirs is None:
            return "" if ours is theirs else f"ours {'is' if ours is None else 'is not'} None, theirs is the opposite"
        if ours.is_sparse != theirs.is_sparse:
            return "one of them is sparse, the other is not"
        if not ours.is_sparse and ours.stride() != theirs.stride() and ours.numel() > 1:
            return f"strides {ours.stride()}, theirs {theirs.stride()}"
        present = [wide(part if part is not None else torch.zeros(ours.shape, dtype=ours.dtype)) for part in parts]
        wire = None if ours.is_sparse else self.mode.wire  # entries keep their type
        return compare.difference(TYPES[ours.real.dtype], wide(ours), wide(theirs), present, self.divisor(step), wire)

    def divisor(self, step):
        return self.comm.size

    def update(self):
        """Descend, both from DDP's state: rounding differences are allowed in one step, but not accumulated
        over many."""
        descend(self.theirs)
        with torch.no_grad():
            for ours, theirs in zip(self.ours.parameters(), self.theirs.parameters()):
                ours.copy_(theirs)


def descend(model):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * (parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad)


def digest(tensors):
    """Return a digest of the bits of tensors, some of which may be None."""
    bits = hashlib.sha256()
    for tensor in tensors:
        if tensor is not None and tensor.is_sparse:
            bits.update(tensor.indices().numpy().tobytes())
            tensor = tensor.values()
        if tensor is not None:
            bits.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return bits.hexdigest()
