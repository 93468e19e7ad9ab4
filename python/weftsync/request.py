"""Request: one asynchronous operation."""
from __future__ import annotations

import ctypes
from typing import Any, Callable, Optional

from ._handle import Handle, wait_milliseconds
from ._library import check, lib


class Request(Handle):
    """An operation that was queued. Its arrays are lent to it until it is complete. Threads: any.

    Its communicator keeps it and the arrays until then, so it may be dropped before. The arrays can be
    resized again when wait or done has reported the completion, or the communicator's next call has seen it.
    """

    _destructor = "request_release"

    def __init__(self, handle: ctypes.c_void_p, lent: Any) -> None:
        super().__init__(handle)
        self._lent = lent
        self._convert: Optional[Callable[[], Any]] = None  # makes the new array of a call of Comm.new
        self._array: Any = None

    def wait(self, timeout: Optional[float] = None) -> None:
        """Wait until it is complete; timeout in seconds (default 300, 0 looks once, math.inf has no end).

        Raises WeftError: the operation's failure, or ERR_NOT_DONE when the time is over; the operation goes on then.
        """
        code = lib.request_wait(self._handle, wait_milliseconds(timeout))
        self._test()
        check(code, lambda error: lib.request_error(self._handle, error))

    def result(self, timeout: Optional[float] = None) -> Any:
        """Wait, and return the new array of a call of Comm.new; None for other calls."""
        self.wait(timeout)
        convert = self._convert
        if convert is not None:
            self._array, self._convert = convert(), None
        return self._array

    def done(self) -> bool:
        """Whether it is complete. Raises WeftError if it has failed. Never blocks."""
        code, done = self._test()
        check(code, lambda error: lib.request_error(self._handle, error))
        return done

    def close(self) -> None:
        """Give the handle back, if the operation is complete."""
        if self.over():
            super().close()

    def over(self) -> bool:
        """Whether it is complete, well or not. Never blocks."""
        return self.closed or self._test()[1]

    def _test(self) -> tuple[int, bool]:
        """The result so far, and whether it is complete: then the arrays are given back."""
        done = ctypes.c_uint8()
        code = lib.request_test(self._handle, done)
        if done.value:
            self._lent = None
        return code, bool(done.value)
