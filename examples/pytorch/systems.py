"""The ways to average gradients that the programs of this folder can train with, and what they cost."""
import statistics
import time
import types

import torch
import torch.distributed as dist
import weftsync.torch  # registers the backend "weft"
from torch import nn

# ddp-gloo        torch's DistributedDataParallel over torch's backend for the CPU
# weft            torch's DistributedDataParallel over the backend weft: two other lines
# weftsync-copy   Weft's DistributedDataParallel; gradients are copied into buckets, and results back
# weftsync-view   the same; gradients lie in the buckets
# weftsync-bf16   weftsync-copy, and gradients are sent in 16 bits
BACKENDS = ("ddp-gloo", "weft", "weftsync-copy", "weftsync-view", "weftsync-bf16")


def add_arguments(parser):
    parser.add_argument("--steps", type=int, default=60, help="at least 1")
    parser.add_argument("--backend", choices=BACKENDS, default="weftsync-view", help="how gradients are averaged")


def start(backend):
    """Join the process group. torchrun tells each process its rank."""
    dist.init_process_group("gloo" if backend == "ddp-gloo" else "weft")


def wrap(module, backend):
    """Return the module with averaged gradients."""
    if backend in ("ddp-gloo", "weft"):
        return nn.parallel.DistributedDataParallel(module)
    sent = types.SimpleNamespace(reduce_dtype=torch.bfloat16) if backend == "weftsync-bf16" else None
    return weftsync.torch.DistributedDataParallel(module, gradient_as_bucket_view=backend == "weftsync-view", mixed_precision=sent)


def pass_ms(averaged, alone, rounds=15):
    """Return the median times of a pass with averaged gradients, and alone.

    averaged, alone  functions that run a forward and a backward pass, with and without averaging. They run in turn
    """
    times = ([], [])
    for _ in range(rounds):
        for found, run in zip(times, (averaged, alone)):
            dist.barrier()
            begin = time.perf_counter()
            run()
            found.append(time.perf_counter() - begin)
    return [1000 * statistics.median(found) for found in times]


def report(progress, model, averaged, alone):
    """Print the last lines, on rank 0.

    step_ms and cpu_ms are the times of a step, on the clock and of all threads of this process. exposed_ms is the communication
    that computing does not hide.
    """
    if dist.get_rank() == 0:
        print(f"alone_ms={alone:.2f} gradient_bytes={sum(4 * param.numel() for param in model.parameters())}")
        print(f"step_ms={progress.milliseconds():.2f} cpu_ms={progress.cpu_milliseconds():.2f} "
              f"exposed_ms={averaged - alone:.2f} loss={progress.loss:.6f}", flush=True)
