"""Records PyTorch's results, so that `make test` can compare with them where PyTorch is not installed.

    build/torch/bin/python tests/parity/record.py

writes tests/parity/recorded/steps.npz (gradients that ranks contribute, and DistributedDataParallel's results
on Gloo), plans.json (its assignments to buckets) and buffers.json (running statistics that it broadcasts).
tests/python/test_recorded.py reads them; the case numbers are those of cases.md.
"""
import itertools
import json
import os
import random
import socket
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.nn.parallel import DistributedDataParallel

FOLDER = Path(__file__).resolve().parent / "recorded"
TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
STEPS = 2


class Probe(torch.nn.Module):
    """Parameters whose gradients are given by the input: the sum of p * c has the gradient c."""

    def __init__(self, params):
        super().__init__()
        self.params = torch.nn.ParameterList()
        for name, shape, kind, strides in params:
            data = torch.empty_strided(shape, strides, dtype=TYPES[kind]) if strides else torch.empty(
                shape, dtype=TYPES[kind])
            self.params.append(torch.nn.Parameter(data.fill_(1)))

    def forward(self, gradients):
        return sum((parameter * gradient).double().sum() for parameter, gradient in zip(self.params, gradients)
                   if gradient is not None)


def values(rng, shape, kind, scale):
    return (torch.from_numpy(rng.standard_normal(shape)) * scale).to(TYPES[kind])


ONE_OF_EACH = [("a", (7, 5), "f32", None), ("b", (33,), "f16", None), ("c", (33,), "bf16", None), ("d", (3, 4), "f64", None),
               ("e", (130,), "f32", None), ("f", (), "f32", None), ("g", (0, 3), "f32", None)]
LAYOUTS = [("first", (2, 3, 4, 5), "f32", None), ("last", (2, 3, 4, 5), "f32", (60, 1, 15, 3)),
           ("turned", (6, 7), "f16", (1, 6)), ("mixed", (3, 4, 5), "f64", (4, 1, 12))]

# For each name: the case numbers of cases.md, the parameters, and DistributedDataParallel's options.
# `batches`: accumulated gradients a step. `scale`: of the gradients. `used`: the ranks that use a parameter
# (all, unless it is listed).
RECORDED = {
    "average": dict(cases="7, 8, 11, 18, 26", params=ONE_OF_EACH),
    "view": dict(cases="11, 18", params=ONE_OF_EACH, ddp={"gradient_as_bucket_view": True}),
    "large f16": dict(cases="12", params=[("w", (40,), "f16", None)], scale=2.0**14),
    "small f16": dict(cases="12", params=[("w", (40,), "f16", None)], scale=2.0**-16),
    "layouts": dict(cases="13", params=LAYOUTS),
    "layouts, one bucket each": dict(cases="13", params=LAYOUTS, limit=1),
    "accumulated": dict(cases="20, 55", params=ONE_OF_EACH, batches=3),
    "accumulated in views": dict(cases="20, 55", params=ONE_OF_EACH, batches=3, ddp={"gradient_as_bucket_view": True}),
    "several buckets": dict(cases="11", params=[(f"p{i}", (20 + 7 * i,), "f32", None) for i in range(8)], limit=200),
    "unused": dict(cases="33, 34, 45", params=ONE_OF_EACH[:5], used={"a": [0], "d": [1], "e": []},
                   ddp={"find_unused_parameters": True}),
    "unused, in views": dict(cases="33, 34, 45", params=ONE_OF_EACH[:5], used={"a": [0], "d": [1], "e": []},
                             ddp={"find_unused_parameters": True, "gradient_as_bucket_view": True}),
}


def record_rank(rank, size, port, folder):
    """One rank's part: computes each entry's contributions and results, and saves them as PyTorch saves them.
    """
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    arrays = {}
    for name, entry in RECORDED.items():
        rng = np.random.default_rng([ord(letter) for letter in name] + [size, rank])
        ddp = DistributedDataParallel(Probe(entry["params"]), bucket_cap_mb=entry.get("limit", 2**20) / 2**20,
                                      **entry.get("ddp", {}))
        for step in range(STEPS):
            ddp.zero_grad(set_to_none=True)
            for batch in range(entry.get("batches", 1)):
                mine = [values(rng, shape, kind, entry.get("scale", 1.0)) if rank in entry.get("used", {}).get(
                    param, range(size)) else None for param, shape, kind, _ in entry["params"]]
                for index, gradient in enumerate(mine):
                    keep(arrays, f"{name}/{size}/{step}/{index}/{rank}/{batch}", gradient)
                ddp.require_backward_grad_sync = batch == entry.get("batches", 1) - 1  # as no_sync sets it
                ddp(mine).backward()
            if rank == 0:
                for index, parameter in enumerate(ddp.module.params):
                    keep(arrays, f"{name}/{size}/{step}/{index}/result", parameter.grad)
        del ddp
    torch.save(arrays, Path(folder) / f"{size}-{rank}")
    dist.barrier()
    dist.destroy_process_group()


def keep(arrays, key, tensor):
    """Store a tensor as a NumPy array, bf16 as its bits; leave out missing gradients."""
    if tensor is not None:
        tensor = tensor.detach().contiguous()
        arrays[key] = (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy().copy()


def record_steps():
    """Record one array for each entry, number of ranks, step and parameter: each rank's contributions, batch
    by batch, and the result. A missing one is zeros; the entry says which are missing."""
    stacks = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in (2, 3, 4):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            multiprocessing.spawn(record_rank, (size, port, folder), nprocs=size)
            arrays = {}
            for rank in range(size):
                arrays.update(torch.load(Path(folder) / f"{size}-{rank}", weights_only=False))
            for name, entry in RECORDED.items():
                batches = range(entry.get("batches", 1))
                for step, index in itertools.product(range(STEPS), range(len(entry["params"]))):
                    key = f"{name}/{size}/{step}/{index}"
                    parts = [f"{key}/{rank}/{batch}" for rank in range(size) for batch in batches] + [f"{key}/result"]
                    found = next((arrays[part] for part in parts if part in arrays), np.zeros(1))
                    stacks[key] = np.stack([arrays.get(part, np.zeros_like(found)) for part in parts])
    index = {"torch": torch.__version__, "steps": STEPS, "entries": {
        name: {key: value for key, value in entry.items() if key != "ddp"} for name, entry in RECORDED.items()}}
    stacks["index"] = np.frombuffer(json.dumps(index).encode(), np.uint8)
    np.savez_compressed(FOLDER / "steps.npz", **stacks)


def buffers_rank(rank, size, port, folder):
    """One rank's batches and running statistics. Rank 0 broadcasts the statistics before every forward pass.
    """
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    ddp, steps = DistributedDataParallel(torch.nn.BatchNorm1d(3)), []
    generator = torch.Generator().manual_seed(10 * size + rank)
    for _ in range(3):
        batch = torch.randn(4, 3, generator=generator)
        ddp(batch).sum().backward()
        steps.append({"batch": batch.tolist(), **{name: buffer.tolist() for name, buffer in ddp.module.named_buffers()}})
    (Path(folder) / f"{size}-{rank}").write_text(json.dumps(steps))
    dist.barrier()
    dist.destroy_process_group()


def record_buffers():
    """Record buffers by number of ranks, rank and step (case 85)."""
    recorded = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in (2, 3):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            multiprocessing.spawn(buffers_rank, (size, port, folder), nprocs=size)
            recorded[size] = [json.loads((Path(folder) / f"{size}-{rank}").read_text()) for rank in range(size)]
    (FOLDER / "buffers.json").write_text(json.dumps({"torch": torch.__version__, "ranks": recorded}) + "\n")


def assignment(sizes, kinds, limits):
    """Return the buckets in order of launch and their limits, as DDP plans them."""
    tensors = [torch.empty(size, dtype=TYPES[kind]) for size, kind in zip(sizes, kinds)]
    buckets, closed = dist._compute_bucket_assignment_by_size(tensors, limits, [False] * len(tensors))
    return {"sizes": sizes, "kinds": kinds, "limits": limits, "buckets": buckets[::-1], "closed": closed[::-1]}


def record_plans():
    golden = [([100, 200, 100, 50], ["f32"] * 4, [400]), ([50, 25] * 3, ["f32", "f64"] * 3, [400]),
              ([10] * 4, ["f32"] * 4, [40, 80]), ([50, 25] * 3, ["f32", "f64"] * 3, [200, 400])]
    generator = random.Random(5)
    for _ in range(200):
        count = generator.randint(1, 12)
        kinds = generator.sample(sorted(TYPES), generator.randint(1, 4))
        limits = [generator.choice([1, 40, 100, 200, 333, 1000, 4000]) for _ in range(generator.randint(1, 3))]
        golden.append(([generator.randint(1, 120) for _ in range(count)], generator.choices(kinds, k=count), limits))
    plans = [assignment(*one) for one in golden]
    lines = ",\n".join(json.dumps(plan, separators=(",", ":")) for plan in plans)
    (FOLDER / "plans.json").write_text(f'{{"torch": "{torch.__version__}", "plans": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    record_plans()
    record_buffers()
    record_steps()
