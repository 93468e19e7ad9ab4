"""One rank of PyTorch with Gloo, by the protocol of `weft bench`. Started by bench/peers.py through torchrun's
variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).

usage: torch_rank.py all_reduce [--iterations N] [--seconds S] BYTES...   in-place sum of f32; as all_reduce_loop.h
       torch_rank.py ddp MANIFEST [RANK]   a gradient step of DistributedDataParallel; with PowerSGD of that rank

Rank 0 prints one JSON line for each measurement. It is "correct" if the first and the last result are, on every rank. Steps are
measured twice: synchronised, and with no_sync, where the same backward accumulates locally. The difference is the time that
synchronising adds, DDP's exposed time.
"""
import itertools
import json
import math
import sys
import time
import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd  # noqa: E402

WARMUP = 3
FEWEST = 20


def quantile(values, q):
    ordered = sorted(values)
    return ordered[int(q * (len(ordered) - 1) + 0.5)] * 1e6


def slowest(times):
    """Returns the largest time over the ranks for each iteration."""
    tensor = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor.tolist()


def that_fit(iterations, seconds, first_calls):
    """Returns the number of calls that fit into the seconds at the pace of the slowest rank's first calls; at least FEWEST."""
    slowest_call = slowest([first_calls / WARMUP])[0]
    return min(iterations, max(FEWEST, int(seconds / slowest_call)))


def timed(rewrite, run, iterations, seconds=0.0, right=lambda i: True):
    """Returns the slowest rank's times, and whether the first and the last result were right on this rank."""
    times, correct, begin = [], True, time.perf_counter()
    for i in itertools.count():
        if i == WARMUP and seconds > 0:
            iterations = that_fit(iterations, seconds, time.perf_counter() - begin)
        if i == WARMUP + iterations:
            return slowest(times), correct
        rewrite(i)
        dist.barrier()
        start = time.perf_counter()
        run()
        end = time.perf_counter()
        if i >= WARMUP:
            times.append(end - start)
        if i in (0, WARMUP + iterations - 1):
            correct = right(i) and correct


def report(**fields):
    if dist.get_rank() == 0:
        print(json.dumps(fields), flush=True)


def everywhere(correct):
    """Returns True if it is true on every rank."""
    tensor = torch.tensor([int(bool(correct))])
    dist.all_reduce(tensor, op=dist.ReduceOp.MIN)
    return bool(tensor.item())


def all_reduce(sizes, asked=0, seconds=0.0):
    for size in sizes:
        data = torch.zeros(max(size // 4, 1))
        rank, ranks = dist.get_rank(), dist.get_world_size()
        iterations = asked or min(max((64 << 20) // size, 10), 500)

        def right(i, data=data, ranks=ranks):
            return bool((data == ranks * (ranks + 1) / 2 + ranks * (i % 7)).all())

        times, correct = timed(lambda i: data.fill_(float(rank + 1 + i % 7)), lambda: dist.all_reduce(data), iterations,
                               seconds, right)
        report(bytes=size, median_us=quantile(times, 0.5), p99_us=quantile(times, 0.99),
               correct=everywhere(correct))


class Gradients(torch.autograd.Function):
    """A loss with given gradients, so that backward computes nothing."""

    @staticmethod
    def forward(context, gradients, *params):
        context.gradients = gradients
        return torch.zeros(())

    @staticmethod
    def backward(context, _):
        return (None, *context.gradients)


class Model(torch.nn.Module):
    def __init__(self, shapes):
        super().__init__()
        self.params = torch.nn.ParameterList(torch.zeros(shape) for shape in shapes)

    def forward(self, gradients):
        return Gradients.apply(gradients, *self.params)


def pattern(shape, rank):
    """Returns the pattern whose multiples are the gradients that PowerSGD compresses. Its rank is not higher than PowerSGD's, so
    the result is the mean except for rounding."""
    if len(shape) < 2:
        return torch.randn(shape)
    rows, columns = shape[0], math.prod(shape[1:])
    return (torch.randn(rows, rank) @ torch.randn(rank, columns)).view(shape)


def is_mean(gradients, patterns, factor):
    """Returns True if PowerSGD's result is finite, bitwise equal on all ranks, and in each tensor within 1e-4 of the mean."""
    whole = torch.cat([gradient.reshape(-1) for gradient in gradients])
    largest, smallest = whole.clone(), whole.clone()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    near = all(torch.linalg.vector_norm(gradient - pattern * factor) <= 1e-4 * factor * torch.linalg.vector_norm(pattern)
               for gradient, pattern in zip(gradients, patterns))
    return bool(torch.isfinite(whole).all()) and torch.equal(whole, largest) and torch.equal(whole, smallest) and near


def ddp(manifest, powersgd_rank=0, iterations=15):
    with open(manifest, encoding="utf-8") as file:
        shapes = [entry["shape"] for entry in json.load(file)["params"]]
    gradients = [torch.zeros(shape) for shape in shapes]
    torch.manual_seed(1)  # the same patterns on all ranks
    patterns = [pattern(shape, powersgd_rank) if powersgd_rank > 0 else None for shape in shapes]
    # PyTorch's PowerSGD starts collectives from Gloo's threads. With several buckets, ranks start them in different orders,
    # and the job dies.
    caps = {"bucket_cap_mb": 1 << 20} if powersgd_rank > 0 else {}
    model = torch.nn.parallel.DistributedDataParallel(Model(shapes), **caps)
    if powersgd_rank > 0:
        state = powersgd.PowerSGDState(None, matrix_approximation_rank=powersgd_rank, start_powerSGD_iter=2)
        model.register_comm_hook(state, powersgd.powerSGD_hook)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    loss = None

    def rewrite(i):
        nonlocal loss
        for gradient, unit in zip(gradients, patterns):
            gradient.fill_(float(rank + 1 + i % 7))
            if powersgd_rank > 0:
                gradient.mul_(unit)
        for param in model.parameters():
            param.grad = None
        loss = model(gradients)

    def run():
        loss.backward()

    def rewrite_local(i):
        with model.no_sync():
            rewrite(i)

    def right(i):
        expected = (ranks + 1) / 2 + i % 7
        results = [param.grad for param in model.parameters()]
        return (is_mean(results, patterns, expected) if powersgd_rank > 0 else
                all(bool((result == expected).all()) for result in results))

    synchronised, correct = timed(rewrite, run, iterations, right=right)
    local, _ = timed(rewrite_local, run, iterations)
    report(bytes=4 * sum(param.numel() for param in model.parameters()), correct=everywhere(correct),
           median_us=quantile(synchronised, 0.5), p99_us=quantile(synchronised, 0.99), local_us=quantile(local, 0.5))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if sys.argv[1] == "all_reduce":
        words, asked = sys.argv[2:], {"--iterations": "0", "--seconds": "0"}
        while words[0] in asked:
            asked[words[0]], words = words[1], words[2:]
        all_reduce([int(size) for size in words], int(asked["--iterations"]), float(asked["--seconds"]))
    else:
        ddp(sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0)
    dist.destroy_process_group()


main()
