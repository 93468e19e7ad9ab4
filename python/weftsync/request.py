"""Request: an asynchronous operation."""
from __future__ import annotations

import ctypes
import itertools
from typing import Any, Callable, Optional

from . import _abi, _interrupt
from ._handle import Handle, wait_milliseconds
from ._library import check, lib
from .constants import Status
from .errors import WeftError
from .reduction import add_cause


# Functions of on_complete that were not called yet, by number. Threads: any.
_waiting: dict[int, Callable[[Status], Any]] = {}
_numbers = itertools.count(1)


def _complete(number: int, code: int) -> None:
    _waiting.pop(number)(Status(code))


_completed = _interrupt.void_function(_abi.complete_fn, _complete)


class Request(Handle):
    """An operation that a call with wait=False has queued. It uses the call's arrays until it is complete.

    The communicator keeps the request and the arrays alive until then, so the program may drop both earlier. The arrays
    can be resized again once wait or done has reported the completion, or after the communicator's next collective;
    with more than 16 outstanding requests, after some more of them. Threads: any.
    """

    _destructor = "request_release"

    def __init__(self, handle: ctypes.c_void_p, lent: Any) -> None:
        super().__init__(handle)
        self._lent = lent
        self._over = False
        self._convert: Optional[Callable[[], Any]] = None  # makes what result() returns
        self._array: Any = None

    def wait(self, timeout: Optional[float] = None) -> None:
        """Wait until the operation is complete.

        timeout  seconds; None: 300; 0: test once, do not wait; math.inf: no limit

        Raises WeftError: the operation's failure, or ERR_NOT_DONE when the timeout passes. The operation continues.
        """
        code, lent = lib.request_wait(self._handle, wait_milliseconds(timeout)), self._lent
        self._test()
        self._check(code, lent)

    def result(self, timeout: Optional[float] = None) -> Any:
        """Wait as `wait` does. Returns the new array of a call of Comm.new, the Message of recv_tagged, else None."""
        self.wait(timeout)
        convert = self._convert
        if convert is not None:
            self._array, self._convert = convert(), None
        return self._array

    def done(self) -> bool:
        """Return True if the operation is complete. Raises WeftError if it has failed. Never blocks."""
        lent = self._lent
        code, done = self._test()
        self._check(code, lent)
        return done

    def on_complete(self, function: Callable[[Status], Any]) -> None:
        """Call function(status) once, when the operation is complete; at once if it is already.

        It runs on any thread, and must not wait: calls that block raise WeftError ERR_STATE in it. A request has one such
        function; a second one raises ERR_STATE.
        """
        number = next(_numbers)
        _waiting[number] = function
        code = lib.request_on_complete(self._handle, _completed, number)
        if code:
            del _waiting[number]
        check(code)

    def cancel(self) -> None:
        """End a tagged send or receive that the other rank has not matched: it fails with ERR_CANCELLED.

        Otherwise, also if it is complete, nothing happens. Raises WeftError ERR_UNSUPPORTED for other operations.
        """
        check(lib.request_cancel(self._handle))

    def close(self) -> None:
        """Release the handle if the operation is complete; otherwise do nothing."""
        if self.over():
            super().close()

    def over(self) -> bool:
        """Return True if the operation is complete, with or without success. Never blocks."""
        return self._over or self._test()[1]

    def _abandon(self) -> None:
        """Close a request whose operation did not start."""
        self._lent, self._over = None, True
        self.close()

    def _check(self, code: int, lent: Any) -> None:
        try:
            check(code)
        except WeftError as error:
            add_cause(error, lent)
            raise

    def _test(self) -> tuple[int, bool]:
        """Return the status so far, and True if the operation is complete. Drops the arrays in that case."""
        done = ctypes.c_uint8()
        code = lib.request_test(self._handle, done)
        if done.value:
            self._lent, self._over = None, True
        return code, bool(done.value)
