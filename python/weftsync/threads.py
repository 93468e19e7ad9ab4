"""Runs the ranks of a communicator as threads of one process, for tests and experiments."""
from __future__ import annotations

import threading
from typing import Any, Callable, TypeVar

from .comm import AllGather, Comm
from .context import Context

Result = TypeVar("Result")


class Gathering:
    """An all-gather among threads of one process, for Comm's all_gather.

    size     number of ranks
    timeout  seconds; a thread that waits longer for the others raises threading.BrokenBarrierError, and so do they
    """

    def __init__(self, size: int, timeout: float = 60) -> None:
        self._barrier = threading.Barrier(size, timeout=timeout)
        self._parts: list[bytes] = [b""] * size

    def of(self, rank: int) -> AllGather:
        """Return the function that this rank passes to Comm."""
        def all_gather(mine: bytes) -> list[bytes]:
            self._parts[rank] = mine
            self._barrier.wait()
            parts = list(self._parts)
            self._barrier.wait()  # no thread starts the next round before all have copied this one
            return parts
        return all_gather


def run_threads(size: int, body: Callable[[Comm], Result], **options: Any) -> list[Result]:
    """Run body(comm) on `size` threads, each with one rank of a communicator. Returns their results in rank order.

    options are those of Comm. A rank that raises an exception aborts the communicator, so that the others do not wait
    for it. The exception that was raised first is raised again here.
    """
    gathering = Gathering(size)
    results: list[Any] = [None] * size
    failures: list[tuple[int, BaseException]] = []

    def run(rank: int) -> None:
        try:
            with Context() as context:
                with Comm(context, rank=rank, size=size, all_gather=gathering.of(rank), **options) as comm:
                    try:
                        results[rank] = body(comm)
                        if not comm.closed and comm.error() is None:
                            comm.barrier()  # no rank leaves while another still needs it
                    except BaseException as error:
                        failures.append((rank, error))
                        comm.abort(f"rank {rank}: {error}")
        except BaseException as error:
            failures.append((rank, error))
            gathering._barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}") for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0][1]
    return results
