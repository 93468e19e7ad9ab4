"""One rank of a parity job: trains every model in every mode through DistributedDataParallel on Gloo and through Weft.

run.py starts it with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Usage: rank.py BACKENDS MODELS MODES BEHAVIOURS STORE,
each a list with commas. Rank 0 prints a line a case: outcome, name, detail, divided by tabs.
"""
import copy
import hashlib
import os
import sys
import traceback

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import weft
import compare
from binding import TYPES, Synchronised
from behaviours import BEHAVIOURS
from models import MODELS
from modes import MODES

STEPS = 4
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Loss(torch.nn.Module):
    """DDP synchronises what forward computes, so forward is the loss."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch):
        return self.model.loss(batch)


def wide(tensor):
    """A tensor's values in f64, complex ones as pairs; the sign of a zero stays."""
    tensor = tensor.to_dense() if tensor.is_sparse else tensor
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.double().contiguous().numpy()


def layers(sparse):
    """A sparse gradient as dense ones, each with at most one entry of an index."""
    found, seen = [], {}
    for index, value in zip(sparse._indices()[0].tolist(), sparse._values()):
        seen[index] = seen.get(index, -1) + 1
        if seen[index] == len(found):
            found.append(torch.zeros(sparse.shape, dtype=sparse.dtype))
        found[seen[index]][index] = value
    return found


class Case:
    """One model in one mode over one backend."""

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
            for model in (self.theirs, self.ours, self.local):
                model.rank, model.size, model.step = RANK, SIZE, step
            generator = torch.Generator().manual_seed(1000 * step + RANK)
            batches = [self.ours.batch(generator) for _ in range(self.mode.micro_batches)]
            contributions = self.contribute(batches)
            self.mode.clear(self.ddp)
            self.synced.zero_grad()
            self.mode.step_ddp(self.ddp, batches)
            self.mode.step_weft(self.synced, batches)
            self.compare(step, contributions)
            self.update()
        try:
            self.mode.finish(self.ddp, self.synced)
        except AssertionError as error:
            self.problems.append(str(error))
        self.synced.close()
        return self.problems

    def contribute(self, batches):
        """What each rank adds to the step: per parameter a list with each rank's gradient, or None without one.

        Sparse ones are several: DDP adds up the entries of all ranks and micro-batches one by one.
        """
        self.local.load_state_dict(self.theirs.state_dict())
        self.local.zero_grad()
        parts = [[] for _ in self.local.parameters()]
        for batch in batches:
            self.local.loss(batch).backward()
            for parameter, mine in zip(self.local.parameters(), parts):
                if parameter.grad is not None and parameter.grad.is_sparse:
                    mine += layers(parameter.grad)
                    parameter.grad = None
        parts = [mine or [parameter.grad] for parameter, mine in zip(self.local.parameters(), parts)]
        everything = [None] * SIZE
        dist.all_gather_object(everything, parts)
        return [sum(ranks, []) for ranks in zip(*everything)]

    def compare(self, step, contributions):
        names = [name for name, _ in self.ours.named_parameters()]
        for name, ours, theirs, parts in zip(names, self.ours.parameters(), self.theirs.parameters(), contributions):
            problem = self.difference(ours.grad, theirs.grad, parts)
            if problem:
                self.problems.append(f"step {step}: {name}: {problem}")
        bits = hashlib.sha256()
        for parameter in self.ours.parameters():
            if parameter.grad is not None:
                grad = parameter.grad
                if grad.is_sparse:
                    bits.update(grad.indices().numpy().tobytes())
                    grad = grad.values()
                bits.update(grad.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        everything = [None] * SIZE
        dist.all_gather_object(everything, bits.hexdigest())
        if len(set(everything)) != 1:
            self.problems.append(f"step {step}: the ranks have different gradients")

    def difference(self, ours, theirs, parts):
        if self.synced.view and theirs is None and all(part is None for part in parts):
            return "its view is not zero" if ours.any() else ""  # DDP's is unset until it is used somewhere
        if ours is None or theirs is None:
            return "" if ours is theirs else f"ours {'is' if ours is None else 'is not'} None, theirs is the opposite"
        if ours.is_sparse != theirs.is_sparse:
            return "one of them is sparse, the other is not"
        if not ours.is_sparse and ours.stride() != theirs.stride() and ours.numel() > 1:
            return f"strides {ours.stride()}, theirs {theirs.stride()}"
        present = [wide(part if part is not None else torch.zeros(ours.shape, dtype=ours.dtype)) for part in parts]
        return compare.difference(TYPES[ours.real.dtype], wide(ours), wide(theirs), present, self.divisor(),
                                  self.mode.wire)

    def divisor(self):
        return SIZE

    def update(self):
        """Descend, both from where DDP is: rounding apart is allowed in one step, not summed over many."""
        with torch.no_grad():
            for ours, theirs in zip(self.ours.parameters(), self.theirs.parameters()):
                if theirs.grad is not None:
                    theirs -= 0.1 * theirs.grad.to_dense() if theirs.grad.is_sparse else 0.1 * theirs.grad
                ours.copy_(theirs)


def main():
    backends, models, modes, behaviours, store = sys.argv[1:6]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    lines = []
    with weft.Context() as context:
        for backend in backends.split(","):
            with weft.Comm(context, rank=RANK, size=SIZE, store=f"{store}-{backend}", backend=backend, timeout=60) as comm:
                # A communicator of shm makes at most 63 reducers in its life.
                for model in filter(None, models.split(",")):
                    with comm.split(0) as part:
                        for mode in modes.split(","):
                            lines.append(run_case(model, mode, backend, part))
                        part.barrier()
                with comm.split(0) as part:
                    for name in filter(None, behaviours.split(",")):
                        lines.append(verdict(f"{name}, {SIZE} ranks, {backend}", BEHAVIOURS[name](part)))
                    part.barrier()
                comm.barrier()
    # Every rank has closed what is Weft's, and passed its last barrier. PyTorch's own threads are not ended, but left:
    # now and then one of them aborts a process that tears them down while another rank's connection closes.
    if RANK == 0:
        print("\n".join("\t".join(line) for line in lines), flush=True)
    os._exit(0)


def run_case(model, mode, backend, comm):
    name = f"{model}, {mode}, {SIZE} ranks, {backend}"
    reason = MODES[mode]().excluded(MODELS[model])
    if reason:
        return "out", name, reason
    return verdict(name, Case(model, MODES[mode](), comm).run())


def verdict(name, problems):
    """A line about a case, after what all ranks found wrong."""
    everything = [None] * SIZE
    dist.all_gather_object(everything, problems)
    texts = [f"rank {rank}: {text}" for rank, problems in enumerate(everything) for text in problems]
    return "fail" if texts else "pass", name, "; ".join(texts[:4])


if __name__ == "__main__":
    try:
        main()
    except BaseException:  # the other ranks wait for this one: run.py ends them
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
