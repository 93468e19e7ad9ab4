"""monitored_barrier: a barrier over the store that names the ranks which did not come.

Rank 0 collects the other ranks in rank order and then releases them. Nothing fails a communicator, so that a caller who
catches the error can continue, as with Gloo.
"""
from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ._errors import refused

_TOGETHER = 64  # keys that one request asks for


def wait_for(store: Any, keys: list[str], seconds: float) -> None:
    """Wait until the store has all keys. Raises DistStoreError when the time has passed, and the store's own errors.

    It asks again and again. Signal handlers (Ctrl-C) do not run while a store itself waits, and TCPStore prints a warning
    whenever the time of such a wait has passed.
    """
    begin = time.monotonic()
    for first in range(0, len(keys), _TOGETHER):
        part = keys[first:first + _TOGETHER]
        while not store.check(part):
            waited = time.monotonic() - begin
            if waited >= seconds:
                raise dist.DistStoreError(f"the store lacks one of the keys {', '.join(part)} after {seconds:.3f} s")
            time.sleep(min(max(0.1 * waited, 0.001), 0.25, seconds - waited))  # at most a tenth too long


def delete(store: Any, keys: list[str]) -> None:
    """Delete keys that no rank reads any more. Stores that cannot delete keep them."""
    try:
        for key in keys:
            store.delete_key(key)
    except Exception:  # a store that cannot delete; one that is gone fails its next user
        pass


class Monitor:
    """The monitored barriers of one process group. Threads: one at a time."""

    def __init__(self, store: Any, rank: int, size: int, use: str) -> None:
        """use is StoreExchange.use: keys in the store outlive a group."""
        self._store, self._rank, self._size, self._use = store, rank, size, use
        self._round = 0

    def wait(self, timeout: timedelta, wait_all_ranks: bool = False) -> None:
        """Wait until all ranks have called. Raises RuntimeError, which on rank 0 names the absent ranks.

        wait_all_ranks  True: rank 0 waits for every rank and names all absent ones; False: it names the first
        """
        self._round += 1
        prefix = f"weft/monitored/{self._use}/{self._round}/"
        if self._rank == 0:
            self._collect(prefix, timeout, wait_all_ranks)
            self._store.set(prefix + "released", b"1")
            last = f"weft/monitored/{self._use}/{self._round - 1}/"  # all ranks have left that round
            delete(self._store, [last + "released", *(last + str(rank) for rank in range(1, self._size))])
            return
        self._store.set(prefix + str(self._rank), b"1")
        try:
            wait_for(self._store, [prefix + "released"], timeout.total_seconds())
        except Exception as error:
            raise refused("monitored_barrier", f"Rank {self._rank} successfully reached monitoredBarrier, but received "
                          "errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.\n "
                          f"Rank {self._rank} timed out in monitoredBarrier after {_milliseconds(timeout)} ms.",
                          RuntimeError) from error

    def _collect(self, prefix: str, timeout: timedelta, wait_all_ranks: bool) -> None:
        if timeout.total_seconds() <= 0:
            raise refused("monitored_barrier", "Rank 0 timed out in monitoredBarrier after "
                          f"{_milliseconds(timeout)} ms", RuntimeError)
        end = time.monotonic() + timeout.total_seconds()
        absent = []
        for rank in range(1, self._size):
            left = max(end - time.monotonic(), 0.001)
            try:
                if not self._store.check([prefix + str(rank)]):
                    wait_for(self._store, [prefix + str(rank)], left)
            except Exception as error:
                absent.append(rank)
                if not wait_all_ranks:
                    raise refused("monitored_barrier", f"[Rank 0]: Rank {rank} failed to pass monitoredBarrier in "
                                  f"{_milliseconds(timeout)} ms: Timed out waiting for it", RuntimeError) from error
        if absent:
            raise refused("monitored_barrier", f"[Rank 0]: Ranks {', '.join(map(str, absent))} failed to pass "
                          f"monitoredBarrier in {_milliseconds(timeout)} ms: Timed out waiting for them", RuntimeError)


def _milliseconds(timeout: timedelta) -> int:
    return round(timeout.total_seconds() * 1000)
