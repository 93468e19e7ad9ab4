"""Work objects: asynchronous operations as torch.distributed sees them."""
from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist

from ..constants import Status
from ..errors import WeftError
from ..request import Request
from . import _threads
from ._errors import converted, stopped_waiting

Finish = Callable[[], None]


def _without_frames(error: BaseException) -> BaseException:
    """Remove the frames from an error and its cause: they refer to the Work, which keeps the error."""
    for one in (error, error.__cause__):
        if one is not None:
            one.__traceback__ = one.__context__ = None
    return error


def _copied(error: BaseException) -> BaseException:
    """Copy an error that is raised. The frames of the raise refer to the Work, which keeps the original."""
    try:
        made = copy.copy(error)
    except Exception:  # of a class whose instances cannot be copied
        return error
    made.__cause__ = error.__cause__
    return made


class Work(dist.Work):
    """Base class: an operation that completes once, with or without an error. Threads: any.

    tensors  what `result` returns and the future holds
    finish   runs once after success and before completion; it copies results into the caller's tensors
    """

    def __init__(self, name: str, tensors: Sequence[torch.Tensor], seconds: float,
                 finish: Optional[Finish] = None) -> None:
        super().__init__()
        self.name = name
        self.seconds = seconds
        self._tensors = list(tensors)
        self._finish = finish
        self._error: Optional[BaseException] = None
        self._done = False
        # Its thread may take it again: the garbage collector may run finalizers of the program inside finish.
        self._completing = threading.RLock()
        self._is_completing = False
        self._future: Optional[torch.futures.Future[Any]] = None
        self._profile: Any = None

    # ---- completion

    def complete(self, error: Optional[BaseException] = None) -> None:
        """Complete the operation; later calls only fulfil the future, if Ctrl-C has ended the first one before that."""
        with self._completing:
            if self._is_completing:
                return  # a finalizer inside finish
            if not self._done:
                self._is_completing = True
                try:
                    self._finished(error)
                finally:
                    self._is_completing = False
            future = self._future
        if future is not None and not future.done():
            self._fulfil(future)

    def _finished(self, error: Optional[BaseException]) -> None:
        if error is None and self._finish is not None:
            finish, self._finish = self._finish, self._broken  # Ctrl-C may end finish, which must not run twice
            try:
                finish()
            except Exception as problem:
                error = problem
        self._finish = None
        self._error = None if error is None else _without_frames(error)
        if self._profile is not None:
            close, self._profile = self._profile, None
            close()
        self._done = True

    def _broken(self) -> None:
        """Take the place of a finish that an exception of a signal handler has ended."""
        raise RuntimeError(f"weft {self.name}: an exception of a signal handler (Ctrl-C) came while the result was "
                           "written: the contents of the output tensors are undefined")

    def _fulfil(self, future: torch.futures.Future[Any]) -> None:
        try:
            if self._error is None:
                future.set_result(self._tensors)
            else:
                future.set_exception(_copied(self._error))
        except RuntimeError:
            if not future.done():  # else another thread has fulfilled it
                raise

    def _poll(self) -> None:
        """Complete the operation if its request is complete."""
        raise NotImplementedError

    def _block(self, seconds: float) -> bool:
        """Wait until the operation is complete. Returns False when the time has passed."""
        raise NotImplementedError

    # ---- the interface of torch

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        """Wait until the operation is complete. Raises RuntimeError if it failed or the timeout passed."""
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        if not self._done and not self._block(seconds if seconds > 0 else math.inf):
            raise stopped_waiting(self.name, seconds)
        if not self._done:
            raise RuntimeError(f"weft {self.name}: wait is called by a finalizer or a signal handler on the thread that "
                               "writes the result: let it wait later, or on another thread")
        if self._error is not None:
            raise _copied(self._error)
        return True

    def is_completed(self) -> bool:
        """Return True if the operation is complete, with or without success."""
        if not self._done:
            self._poll()
        return self._done

    def is_success(self) -> bool:
        """Return True if the operation is complete and has succeeded."""
        return self.is_completed() and self._error is None

    def exception(self) -> Optional[BaseException]:
        """Return the operation's failure, or None."""
        return self._error if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        """Return the output tensors of a complete operation. Raises RuntimeError before it completes."""
        if not self.is_completed():
            raise RuntimeError("Work needs to be completed before calling result(). "
                               "Should call wait() before result().")
        if self._error is not None:
            raise _copied(self._error)
        return self._tensors

    def synchronize(self) -> None:
        """Wait, as `wait` does."""
        self.wait()

    def source_rank(self) -> int:
        """Return the rank that sent the message of a complete receive; -1 for other operations."""
        return -1

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future that holds the output tensors.

        Its callbacks run on the thread that finds the operation complete: one that waits, or one of this package.
        """
        with self._completing:
            made = self._future is None
            if self._future is None:
                self._future = torch.futures.Future()
            done, future = self._done, self._future
        if done and not future.done():
            self._fulfil(future)
        elif not done:
            self._watch()
        return future

    def _watch(self) -> None:
        """Arrange for `complete` to be called without a caller that waits. Later calls do nothing."""
        raise NotImplementedError


class RequestWork(Work):
    """The Work of one request of the library. It completes when somebody asks, or by itself after `_watch`."""

    def __init__(self, name: str, request: Request, tensors: Sequence[torch.Tensor], seconds: float,
                 finish: Optional[Finish] = None) -> None:
        super().__init__(name, tensors, seconds, finish)
        self._request = request
        self._is_watched = False

    def source_rank(self) -> int:
        """Return the rank that sent the message of a complete receive; -1 for other operations."""
        message = self._request.result()
        return -1 if message is None else int(message.source)

    def _watch(self) -> None:
        if not self._is_watched:
            try:
                _threads.watch(self._request._handle, self._poll)
            except WeftError as error:
                if error.code != Status.ERR_STATE:  # else Ctrl-C came after an earlier call, which had succeeded
                    raise
            self._is_watched = True

    def _poll(self) -> None:
        try:
            done = self._request.done()
        except WeftError as error:
            self.complete(converted(error, self.name, self.seconds))
            return
        if done:
            self.complete()

    def _block(self, seconds: float) -> bool:
        try:
            self._request.wait(seconds)
        except WeftError as error:
            if error.code in (Status.ERR_NOT_DONE, Status.ERR_INTERRUPTED) and not self._request.over():
                return False
            self.complete(converted(error, self.name, self.seconds))
            return True
        self.complete()
        return True


class JointWork(Work):
    """The Work of several operations: complete when all are, failed when one is."""

    def __init__(self, name: str, parts: Sequence[Work], seconds: float) -> None:
        super().__init__(name, [tensor for one in parts for tensor in one._tensors], seconds)
        self._parts = list(parts)
        self._is_watched = False

    def _poll(self) -> None:
        if all([one.is_completed() for one in self._parts]):
            self.complete(next((one._error for one in self._parts if one._error is not None), None))

    def _block(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        for one in self._parts:
            if not one.is_completed() and not one._block(max(end - time.monotonic(), 0.0)):
                return False
        self._poll()
        return True

    def _watch(self) -> None:
        if self._is_watched:
            return
        for one in self._parts:
            one.get_future().add_done_callback(lambda _: self._poll())
        if not self._parts:
            self._poll()
        self._is_watched = True
