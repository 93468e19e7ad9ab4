"""Handle, the base class of the package's objects: it destroys a handle of the library once. Also converts times."""
from __future__ import annotations

import atexit
import ctypes
import functools
import weakref
from types import TracebackType
from typing import Any, Callable, Generator, Optional, Type, TypeVar

from . import _deferred
from ._deferred import defer, destroy_deferred
from ._interrupt import begin_exit, keep, others_leave
from ._library import check, lib
from .constants import TIMEOUT_INFINITE, TIMEOUT_POLL, Status

_Self = TypeVar("_Self", bound="Handle")

# Maps the id of each open object to a weak reference. The code that removes an entry destroys its handle.
# Threads: any.
_open: dict[int, weakref.ref[Handle]] = {}
# Keeps objects alive whose destruction returned while one of their callbacks was still running. Threads: any.
_left: list[Handle] = []
_LONGEST_SECONDS = 1e10  # 300 years; longer timeouts have no limit, because the library's clock cannot count them
_LEAVE_SECONDS = 2.0  # that other threads have at interpreter exit to leave their calls
_RUNNING = (Status.ERR_TIMEOUT, Status.ERR_INTERRUPTED)  # a destroy call that returns these left a callback running


def _finalizer(number: int, handle: ctypes.c_void_p, destroy: Callable[..., int]) -> Generator[None, Any, None]:
    """Destroy the handle when it is resumed, which the garbage collector does once the object is dead.

    The garbage collector resumes it before all finalizers of a cycle, so the memory that the object's operations use
    still exists. It is suspended inside a try block, because Python ignores exceptions of such callbacks: a signal
    handler that runs here (Ctrl-C) would have no effect. The next call into the library raises its exception.
    """
    try:
        yield
    except GeneratorExit:  # the weak reference is gone, because the object was closed
        return
    except BaseException as error:
        keep(error)
    try:
        if destroy(handle) not in _RUNNING and not handle.value:
            _open.pop(number, None)
    except BaseException as error:
        keep(error)
    yield


class Handle:
    """Owns one handle of the library.

    `close`, the end of a with block, the garbage collector or the interpreter's exit destroys the handle.
    """

    _destructor: str  # name of the library function that destroys the handle, without weft_

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle
        finalizer = _finalizer(id(self), handle, getattr(lib, self._destructor))
        next(finalizer)
        _open[id(self)] = weakref.ref(self, finalizer.send)

    def __del__(self, _open: dict[int, weakref.ref[Handle]] = _open) -> None:
        if _open.pop(id(self), None) is None:
            return
        try:
            if self.closed:
                _left.append(self)
            elif not self._destroyed():
                defer(self._destroyed)  # the bound method keeps the object and its references alive
        except BaseException as error:  # of a signal handler; Python would ignore it here
            defer(self._destroyed)
            keep(error)

    def _destroyed(self) -> bool:
        """Destroy the handle. Returns False inside a callback of the library, where the library refuses."""
        if getattr(lib, self._destructor)(self._handle) in _RUNNING:
            _left.append(self)
        return self.closed

    def _opened(self, what: str) -> ctypes.c_void_p:
        """Return the handle, for a call that uses this object as `what`. Raises ValueError if it is closed."""
        if self.closed:
            raise ValueError(f"the {what} is closed")
        return self._handle

    @property
    def closed(self) -> bool:
        """True once the handle is destroyed."""
        return not self._handle.value

    def close(self) -> None:
        """Destroy the handle; a second call does nothing.

        Raises WeftError ERR_STATE inside a callback of the library; the object stays open then.
        """
        if _open.pop(id(self), None) is None:
            return
        code = getattr(lib, self._destructor)(self._handle)
        if not self.closed:  # the library refused, so the object stays open
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
    """Destroy the open objects at interpreter exit, newest first, while the library can still be called.

    Other threads may be in the middle of a call (daemon threads). No object may be destroyed while a call uses it, so
    the calls are ended first, and later ones get a null handle. If a thread does not leave its call, only the contexts
    are destroyed, which is allowed meanwhile.
    """
    begin_exit()
    errors: list[BaseException] = []
    _without_exceptions(destroy_deferred, errors)
    ends: list[tuple[Handle, ctypes.c_void_p]] = []
    for number, reference in reversed(list(_open.items())):
        one = reference()
        if one is not None and _open.pop(number, None) is not None:
            ends.append((one, ctypes.c_void_p(one._handle.value)))
            one._handle.value = None
    have_left: list[bool] = []
    _without_exceptions(lambda: have_left.append(others_leave(_LEAVE_SECONDS, lambda: _deferred.collector)), errors)
    for one, handle in ends:
        if have_left == [True] or one._destructor == "context_destroy":
            _without_exceptions(functools.partial(getattr(lib, one._destructor), handle), errors)
    _left.extend(one for one, _ in ends)
    if errors:
        raise errors[0]


def _without_exceptions(function: Callable[[], Any], errors: list[BaseException]) -> None:
    """Call function. Its exception, of a signal handler (Ctrl-C), is appended to errors."""
    try:
        function()
    except BaseException as error:
        errors.append(error)


def milliseconds(seconds: Optional[float]) -> int:
    """Convert a timeout in seconds to milliseconds. None: the called function's default; math.inf: no limit."""
    if seconds is None:
        return 0
    if not seconds > 0:
        raise ValueError(f"a timeout is {seconds} s, expected more than 0, math.inf (no limit) or None (the default)")
    return TIMEOUT_INFINITE if seconds > _LONGEST_SECONDS else max(1, round(seconds * 1000))


def wait_milliseconds(seconds: Optional[float]) -> int:
    """Convert the timeout of a wait, where 0 means: test once, do not wait."""
    return TIMEOUT_POLL if seconds == 0 else milliseconds(seconds)


def encoded(text: Optional[str]) -> Optional[bytes]:
    """Encode text as UTF-8; None stays None."""
    return None if text is None else text.encode()
