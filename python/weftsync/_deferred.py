"""Objects whose handle could not be destroyed where the garbage collector found them: inside a callback of the library.

They wait here, with everything they keep alive, for the next call into the library on a thread of the program, or for
the interpreter's exit.
"""
from __future__ import annotations

import collections
from typing import Callable

# Each returns whether its object is destroyed now. Threads: any; appending and taking are atomic.
deferred: collections.deque[Callable[[], bool]] = collections.deque()


def destroy_deferred() -> None:
    """Destroy what waits, unless this thread is inside a callback as well."""
    while deferred:
        try:
            destroy = deferred.popleft()
        except IndexError:  # another thread was faster
            return
        if not destroy():
            deferred.append(destroy)
            return
