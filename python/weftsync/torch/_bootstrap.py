"""Creates the communicators of a process group. The ranks exchange their addresses over the group's c10d store."""
from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from datetime import timedelta
from typing import Any, Optional

from ..comm import Comm
from ..context import Context, version
from ..errors import WeftError
from ._errors import converted, refused, timed_out
from ._monitor import delete, wait_for

_NAME = "group setup"  # in errors

_lock = threading.RLock()  # a finalizer or a signal handler under it may create a group
_context: Optional[Context] = None
_inherited: list[Optional[Context]] = []  # in a forked child: its parents' contexts, which it can neither use nor destroy


def context() -> Context:
    """Return the context that all process groups of this process share. Threads: any."""
    global _context
    with _lock:
        if _context is None or _context.closed:
            _context = Context()
        return _context


def _forget() -> None:
    """Start anew in a forked child, which cannot use its parent's context. Another thread may have held the lock."""
    global _lock, _context
    _inherited.append(_context)
    _lock, _context = threading.RLock(), None


os.register_at_fork(after_in_child=_forget)


class StoreExchange:
    """Gathers bytes of every rank over a c10d store, once for each call. Threads: one at a time.

    The keys in the store outlive a group, and a creation that failed. So every rank publishes a new random number, and
    the numbers of all ranks name the keys of what follows. A rank may read another one's number of an earlier creation.
    Hence `begin` confirms the numbers: it reads them again until all ranks have published a key that they name.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self._store, self._rank, self._size = store, rank, size
        self.seconds = timeout.total_seconds()
        self._end = time.monotonic() + self.seconds
        self.use = ""  # names the group in the store, once `begin` has returned
        self._round = 0

    def left(self) -> float:
        """Return the seconds until the deadline, and at least one millisecond."""
        return max(self._end - time.monotonic(), 0.001)

    def begin(self) -> list[int]:
        """Name the group, and return the version of Weft of every rank. Comes before all exchanges."""
        problem = "did not take part: start all ranks, and let them create the same groups in the same order"
        keys = self._publish("weft/begin/", f"{version()} {os.urandom(8).hex()}".encode())
        self._wait(keys, problem)
        pause = 0.05
        while True:
            parts = [bytes(part) for part in self._store.multi_get(keys)]
            self.use = hashlib.sha256(b" ".join(parts)).hexdigest()[:32]
            if self._wait(self._publish(f"weft/{self.use}/0/", b"-"), problem, pause):
                return [int(part.split()[0]) for part in parts]
            pause = min(2 * pause, 5.0)

    def __call__(self, mine: bytes) -> list[bytes]:
        self._round += 1
        keys = self._publish(f"weft/{self.use}/{self._round}/", mine)
        self._wait(keys, "stopped during the group setup: see the error there")
        parts = [bytes(part) for part in self._store.multi_get(keys)]
        # All ranks have read what came before, for they have published this round. Each deletes its own keys, because a
        # rank that failed may have begun anew.
        begin = [f"weft/begin/{self._rank}"] if self._round == 1 else []
        delete(self._store, [f"weft/{self.use}/{self._round - 1}/{self._rank}", *begin])
        return parts

    def _publish(self, prefix: str, mine: bytes) -> list[str]:
        """Publish this rank's bytes. Returns the keys of all ranks."""
        self._store.set(prefix + str(self._rank), mine)
        return [prefix + str(rank) for rank in range(self._size)]

    def _wait(self, keys: list[str], problem: str, pause: float = math.inf) -> bool:
        """Wait until the store has the keys of all ranks. Returns False after pause seconds.

        Raises RuntimeError at the deadline, which names the absent ranks and their problem.
        """
        left = self.left()
        try:
            wait_for(self._store, keys, min(left, pause))
        except Exception as error:
            absent = self._absent(keys, error)
            if absent and pause < left:
                return False
            if absent:
                ranks = f"rank {absent[0]}" if len(absent) == 1 else f"ranks {', '.join(map(str, absent))}"
                raise timed_out(_NAME, self.seconds, f"{ranks} of {self._size} ranks {problem}") from error
        return True

    def _absent(self, keys: list[str], error: Exception) -> list[int]:
        """Return the ranks whose keys are not in the store. Raises error if the store does not answer."""
        try:
            return [rank for rank, key in enumerate(keys) if not self._store.check([key])]
        except Exception:
            raise error from None


def _check_versions(exchange: StoreExchange) -> None:
    """Raise RuntimeError on all ranks if their versions differ. All versions of Weft begin with this exchange."""
    versions = exchange.begin()
    if len({one // 100 for one in versions}) > 1:
        listed = ", ".join(f"{one // 10000}.{one // 100 % 100}.{one % 100} on rank {rank}"
                           for rank, one in enumerate(versions) if one not in versions[:rank])
        raise refused(_NAME, f"the ranks have different versions of Weft, {listed}: install the same version on all "
                      "hosts", RuntimeError)


def create(exchange: StoreExchange, rank: int, size: int) -> Comm:
    """Create the communicator of a process group, with the exchange's timeout. Collective.

    Blocks until the exchange's deadline at most. Raises RuntimeError: the exchange's own, or one for a WeftError.
    """
    try:
        _check_versions(exchange)
        return Comm(context(), rank=rank, size=size, all_gather=exchange, init_timeout=exchange.left(),
                    timeout=exchange.seconds)
    except WeftError as error:
        cause = error.__cause__  # the exception of the exchange
        if isinstance(cause, RuntimeError):
            raise cause from cause.__cause__
        raise converted(error, _NAME, exchange.seconds) from error
