"""Request: one asynchronous operation."""
from __future__ import annotations

import ctypes
from typing import Any, Optional

from ._handle import Handle, wait_milliseconds
from ._library import check, lib


class Request(Handle):
    """An operation that was queued. Its arrays are lent to it until it is complete. Threads: any.

    Its communicator keeps it and the arrays until then, so it may be dropped before.
    """

    _destructor = "request_release"

    def __init__(self, handle: ctypes.c_void_p, lent: Any) -> None:
        super().__init__(handle)
        self._lent = lent

    def wait(self, timeout: Optional[float] = None) -> None:
        """Wait until it is complete; timeout in seconds (default 300, 0 looks once, math.inf has no end).

        Raises WeftError: the operation's failure, or ERR_NOT_DONE when the time is over; the operation goes on then.
        """
        check(lib.request_wait(self._handle, wait_milliseconds(timeout)),
              lambda error: lib.request_error(self._handle, error))

    def done(self) -> bool:
        """Whether it is complete. Raises WeftError if it has failed. Never blocks."""
        done = ctypes.c_uint8()
        check(lib.request_test(self._handle, done), lambda error: lib.request_error(self._handle, error))
        return bool(done.value)

    def close(self) -> None:
        """Give the handle back, if the operation is complete."""
        if self.over():
            super().close()

    def over(self) -> bool:
        """Whether it is complete, well or not. Never blocks."""
        done = ctypes.c_uint8()
        if self.closed:
            return True
        lib.request_test(self._handle, done)
        return bool(done.value)
