"""Creates the communicators of a process group. The ranks exchange their addresses over the group's c10d store."""
from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any, Optional

from ..comm import Comm
from ..context import Context, version
from ._errors import refused

_lock = threading.Lock()
_context: Optional[Context] = None


def context() -> Context:
    """Return the context that all process groups of this process share. Threads: any."""
    global _context
    with _lock:
        if _context is None or _context.closed:
            _context = Context()
        return _context


class StoreExchange:
    """Gathers bytes of every rank over a c10d store, once for each call.

    The keys begin with a number that counts the process groups that used this store before, so that a store whose keys
    outlive a process group serves the next one. Threads: one at a time.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self.use = store.add(f"weft/uses/{rank}", 1)
        self._round = 0

    def __call__(self, mine: bytes) -> list[bytes]:
        self._round += 1
        prefix = f"weft/{self.use}/{self._round}/"
        self._store.set(prefix + str(self._rank), mine)
        keys = [prefix + str(rank) for rank in range(self._size)]
        self._store.wait(keys, self._timeout)
        return [bytes(part) for part in self._store.multi_get(keys)]


def _check_versions(exchange: StoreExchange) -> None:
    """Raise RuntimeError on all ranks if their versions differ. All versions of Weft begin with this exchange."""
    versions = [int(mine) for mine in exchange(str(version()).encode())]
    if len({one // 100 for one in versions}) > 1:
        listed = ", ".join(f"{one // 10000}.{one // 100 % 100}.{one % 100} on rank {rank}"
                           for rank, one in enumerate(versions) if one not in versions[:rank])
        raise refused("init_process_group", f"the ranks have different versions of Weft, {listed}: install the same "
                      "version on all hosts", RuntimeError)


def create(exchange: StoreExchange, rank: int, size: int, timeout: timedelta) -> Comm:
    """Create the communicator of a process group. Collective; blocks for at most timeout."""
    seconds = timeout.total_seconds()
    _check_versions(exchange)
    return Comm(context(), rank=rank, size=size, all_gather=exchange, init_timeout=seconds, timeout=seconds)
