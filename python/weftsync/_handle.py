"""What the package's objects have in common: a handle of the library that is destroyed once, and times in seconds."""
from __future__ import annotations

import atexit
import ctypes
import math
import weakref
from types import TracebackType
from typing import Optional, Type, TypeVar

from ._deferred import deferred, destroy_deferred
from ._library import check, lib
from .constants import TIMEOUT_INFINITE, TIMEOUT_POLL, Status

_Self = TypeVar("_Self", bound="Handle")

# Objects whose handle is to be destroyed, by id; whoever takes an entry out destroys it. Threads: any.
_open: dict[int, weakref.ref[Handle]] = {}
# Objects that were destroyed while a callback of theirs was running: what it uses stays. Threads: any.
_left: list[Handle] = []
_RUNNING = (Status.ERR_TIMEOUT, Status.ERR_INTERRUPTED)  # what their destruction returned


class Handle:
    """Owns one handle. `close`, the end of a with block, the garbage collector or the interpreter's exit destroys it."""

    _destructor: str  # the function of the library that destroys it

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle
        number, destroy = id(self), getattr(lib, self._destructor)

        # The garbage collector calls it before all finalizers: what the object's operations use is still there.
        def found(_: weakref.ref[Handle]) -> None:
            if destroy(handle) not in _RUNNING and not handle.value:
                _open.pop(number, None)

        _open[number] = weakref.ref(self, found)

    def __del__(self, _open: dict[int, weakref.ref[Handle]] = _open) -> None:
        if _open.pop(id(self), None) is None:
            return
        if self.closed:
            _left.append(self)
        elif not self._destroyed():
            deferred.append(self._destroyed)  # with everything that the object keeps alive

    def _destroyed(self) -> bool:
        """Destroy the handle; False inside a callback of the library, where that is refused."""
        if getattr(lib, self._destructor)(self._handle) in _RUNNING:
            _left.append(self)
        return self.closed

    @property
    def closed(self) -> bool:
        return not self._handle.value

    def close(self) -> None:
        """Destroy the object; a second call does nothing."""
        if _open.pop(id(self), None) is None:
            return
        code = getattr(lib, self._destructor)(self._handle)
        if not self.closed:  # refused: it stays as it is
            Handle.__init__(self, self._handle)
        elif code in _RUNNING:
            _left.append(self)
        check(code)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<weftsync.{type(self).__name__}{' (closed)' if self.closed else ''}>"


@atexit.register
def _destroy_all() -> None:
    """Destroy what is left, the newest first, while the library can still be called."""
    destroy_deferred()
    for number, reference in reversed(list(_open.items())):
        one = reference()
        if one is not None and _open.pop(number, None) is not None:
            one._destroyed()


def milliseconds(seconds: Optional[float]) -> int:
    """A time for the library: None is the default that its call names, math.inf has no end."""
    if seconds is None:
        return 0
    return TIMEOUT_INFINITE if math.isinf(seconds) else max(1, round(seconds * 1000))


def wait_milliseconds(seconds: Optional[float]) -> int:
    """The same for a wait, where 0 looks once."""
    return TIMEOUT_POLL if seconds == 0 else milliseconds(seconds)


def encoded(text: Optional[str]) -> Optional[bytes]:
    return None if text is None else text.encode()
