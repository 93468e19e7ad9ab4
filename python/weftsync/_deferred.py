"""Queues objects that the garbage collector found inside a callback of the library, where destruction is refused.

The queue keeps each object, and everything that the object references, alive. The next call into the library on a
thread that is in no callback destroys the objects, or else the interpreter's exit does.

An object joins the queue only when its collection has ended. Until then finalizers of the same cycle may use it, and no
other thread may destroy it meanwhile.
"""
from __future__ import annotations

import collections
import ctypes
import functools
import gc
import os
import threading
from typing import Any, Callable, Generator

from ._interrupt import on_main_thread, raised

# Each entry tries to destroy its object and returns True on success. Threads: any; append and popleft are atomic.
deferred: collections.deque[Callable[[], bool]] = collections.deque()
collector = 0  # the thread that runs the garbage collector; 0: none. Only one thread does at a time
_found: list[Callable[[], bool]] = []  # entries of the collection that runs


def defer(destroy: Callable[[], bool]) -> None:
    """Queue an object. Threads: any."""
    if collector == threading.get_ident():
        _found.append(destroy)
    else:
        deferred.append(destroy)


def destroy_deferred() -> None:
    """Destroy the queued objects. Stops at the first refusal, because this thread is inside a callback then."""
    while deferred:
        try:
            destroy = deferred.popleft()
        except IndexError:  # another thread took the last entry
            return
        done = False
        try:
            done = destroy()
        finally:  # also if a signal handler has raised an exception
            if not done:
                deferred.append(destroy)
        if not done:
            return


def _collections() -> Generator[None, Any, None]:
    """Note the start and the stop of collections, one each time it is resumed.

    A signal handler may raise an exception wherever Python code runs, and Python ignores exceptions of the functions in
    gc.callbacks. So this is suspended inside a try block, repeats what was interrupted, and keeps the exception.
    """
    global collector
    while True:
        try:
            yield
        except GeneratorExit:
            return
        except BaseException as error:
            _keep(error)
        while _phases:
            try:
                if "stop" in _phases:
                    collector = 0
                    while _found:
                        deferred.append(_found[-1])
                        del _found[-1]
                else:
                    collector = threading.get_ident()
                _phases.clear()
            except BaseException as error:
                _keep(error)


def _keep(error: BaseException) -> None:
    if on_main_thread():  # on other threads only that of the interpreter's exit
        raised.append(error)


def _forget() -> None:
    """Forget the collection of another thread, which a forked child does not have."""
    global collector
    collector = 0


_phases: dict[str, Any] = {}  # "start" or "stop", until _collections has noted it
_noted = _collections()
next(_noted)
# C code up to the suspended generator: this C-API function sends it the first of the two arguments.
_send = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_char_p, ctypes.c_char_p, ctypes.py_object,
                          ctypes.py_object)(("PyObject_CallMethod", ctypes.pythonapi))
gc.callbacks += [_phases.__setitem__, functools.partial(_send, _noted, b"send", b"O")]
os.register_at_fork(after_in_child=_forget)
