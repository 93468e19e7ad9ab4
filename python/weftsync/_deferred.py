"""Queues objects that the garbage collector found inside a callback of the library, where destruction is refused.

The queue keeps each object, and everything that the object references, alive. The next call into the library on a
thread that is in no callback destroys the objects, or else the interpreter's exit does.
"""
from __future__ import annotations

import collections
from typing import Callable

# Each entry tries to destroy its object and returns True on success. Threads: any; append and popleft are atomic.
deferred: collections.deque[Callable[[], bool]] = collections.deque()


def destroy_deferred() -> None:
    """Destroy the queued objects. Stops at the first refusal, because this thread is inside a callback then."""
    while deferred:
        try:
            destroy = deferred.popleft()
        except IndexError:  # another thread took the last entry
            return
        if not destroy():
            deferred.append(destroy)
            return
