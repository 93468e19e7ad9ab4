"""One rank of bench/pytorch.py: times calls of torch.distributed. Arguments: the backend, and a file for rank 0's rows.

A row is [call, bytes, call_us, launch_us, held_us]: medians over CALLS calls of
call    one call that waits for its result, after a barrier
launch  the part with async_op=True, until it returns the Work
held    Weft only: what remains of a call without the time inside the library, which has released the GIL
"""
import json
import statistics
import sys
import time

import torch
import torch.distributed as dist

CALLS = 200
SIZES = (8, 65536)


class Inside:
    """Sums the time inside the library's functions."""

    def __init__(self):
        from weftsync import _library
        self.seconds = 0.0
        loaded, lib = _library._load(), _library.lib
        for name in ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "request_wait", "request_test",
                     "request_release"):
            setattr(lib, name, self._timed(getattr(loaded, "weft_" + name)))

    def _timed(self, function):
        def timed(*arguments):
            begin = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.seconds += time.perf_counter() - begin
        return timed


def calls(size):
    """The calls to time, by name. Each takes async_op."""
    ranks = dist.get_world_size()
    value, every = torch.ones(size // 4), torch.ones(size // 4 * ranks)
    return {"all_reduce": lambda **how: dist.all_reduce(value, **how),
            "broadcast": lambda **how: dist.broadcast(value, 0, **how),
            "all_gather_into_tensor": lambda **how: dist.all_gather_into_tensor(every, value, **how),
            "reduce_scatter_tensor": lambda **how: dist.reduce_scatter_tensor(value, every, **how)}


def measure(call, inside):
    whole, launch, held = [], [], []
    for _ in range(CALLS):
        dist.barrier()
        if inside is not None:
            inside.seconds = 0.0
        begin = time.perf_counter()
        call()
        seconds = time.perf_counter() - begin
        whole.append(seconds)
        if inside is not None:
            held.append(seconds - inside.seconds)
        dist.barrier()
        begin = time.perf_counter()
        work = call(async_op=True)
        launch.append(time.perf_counter() - begin)
        work.wait()
    return [round(1e6 * statistics.median(found), 1) if found else None for found in (whole, launch, held)]


def main():
    backend, path = sys.argv[1:]
    if backend == "weft":
        import weftsync.torch  # noqa: F401  registers the backend
    dist.init_process_group(backend)
    inside = Inside() if backend == "weft" else None
    rows = [[name, size, *measure(call, inside)] for size in SIZES for name, call in calls(size).items()]
    if dist.get_rank() == 0:
        with open(path, "w") as file:
            json.dump(rows, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
