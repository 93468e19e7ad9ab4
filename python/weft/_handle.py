"""What the package's objects have in common: a handle of the library that is destroyed once, and times in seconds."""
from __future__ import annotations

import ctypes
import math
import weakref
from types import TracebackType
from typing import Optional, Type, TypeVar

from ._library import check, lib
from .constants import TIMEOUT_INFINITE, TIMEOUT_POLL

_Self = TypeVar("_Self", bound="Handle")


class Handle:
    """Owns one handle. `close`, the end of a with block, or the garbage collector destroys it."""

    _destructor: str  # the function of the library that destroys it

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle
        # Runs at the interpreter's exit too, while the library can still be called.
        self._finalizer = weakref.finalize(self, getattr(lib, self._destructor), ctypes.byref(handle))

    @property
    def closed(self) -> bool:
        return not self._handle.value

    def close(self) -> None:
        """Destroy the object; a second call does nothing."""
        if self._finalizer.detach() is not None:
            check(getattr(lib, self._destructor)(self._handle))

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<weft.{type(self).__name__}{' (closed)' if self.closed else ''}>"


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
