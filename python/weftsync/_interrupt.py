"""Runs Python's signal handlers (Ctrl-C) while a call into the library blocks, and lets their exceptions end the call.

Each thread that blocks in the library calls `callback` every 50 ms (weft_context_options.interrupt, which promises
100 ms). On the main thread, where Python runs signal handlers, that call runs the pending handlers. An exception of a
handler (KeyboardInterrupt, or SystemExit from a SIGTERM handler) ends the blocking call. `raise_raised` raises it where
the call returns.

The callback is C code that resumes a generator, which is suspended inside a try block. A Python function would not do:
the interpreter runs pending handlers as soon as it enters Python code, so their exception would leave the function
before its own try block begins.

When the interpreter exits, the answer to all other threads becomes "end the call" (`begin_exit`).
"""
from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
import math
import operator
import os
import sys
import threading
import time
from typing import Any, Callable, Generator

from . import _abi

_PATIENCE_S = 1.0  # for functions that run at interpreter exit
_EXIT_S = 5.0      # that the destruction of all objects waits at interpreter exit, mostly for callbacks
exiting = False    # True once the interpreter exits and the objects are being destroyed
_exit_ends = math.inf  # when the destruction waits no longer
raised: list[BaseException] = []  # exceptions of signal handlers; only the main thread changes it
# Returns non-zero to end the blocking call of a thread that is not the main one. weftsync.jax replaces it.
elsewhere: Callable[[], int] = int


def on_main_thread() -> bool:
    """True on the thread that runs Python's signal handlers."""
    return threading.get_ident() == threading.main_thread().ident


def raise_raised() -> None:
    """Raise the exception that a signal handler raised during a call of this thread, if there is one.

    While the interpreter exits, raise SystemExit on other threads: their calls failed only because of that, and the
    module threading ends a thread with this exception silently.
    """
    if exiting and not on_main_thread():
        raise SystemExit
    if raised and on_main_thread():
        error = raised[0]
        raised.clear()
        raise error


def keep(error: BaseException) -> None:
    """Store the exception of a signal handler, which `raise_raised` raises later. On other threads: raise it."""
    if not on_main_thread():
        raise error
    raised.append(error)


def begin_exit() -> None:
    """End the calls that block on other threads from now on, and those of this thread after some seconds."""
    global exiting, elsewhere, _exit_ends
    exiting, elsewhere, _exit_ends = True, lambda: 1, time.monotonic() + _EXIT_S


def end_others(seconds: float) -> None:
    """End the calls that block on other threads once this time has passed."""
    global elsewhere
    before, end = elsewhere, time.monotonic() + seconds
    elsewhere = lambda: int(before() or time.monotonic() > end)  # noqa: E731


# Code of functions of this package that wait outside of the library. Threads: any.
waiting_code: set[Any] = set()


def others_leave(seconds: float, collector: Callable[[], int] = int, package: str = str(__package__)) -> bool:
    """Wait until no other thread is inside a call of the library, or collects garbage. Returns False when time is up.

    collector  returns the thread that collects garbage, 0 for none
    package    calls the library

    A thread that is still there after half of the time, in a callback, gets the exception SystemExit.
    """
    begin, own, asked = time.monotonic(), threading.get_ident(), False
    while True:
        inside = {thread for thread, frame in sys._current_frames().items() if thread != own and
                  _is_inside(frame, package)}
        inside |= {collector()} - {0, own}
        passed = time.monotonic() - begin
        if not inside or passed > seconds:
            return not inside
        if passed > seconds / 2 and not asked:
            asked = True
            _end_functions(inside)
        time.sleep(0.001)


def _is_inside(frame: Any, package: str) -> bool:
    """True if the thread with this innermost frame may be inside a call of the library.

    Its innermost frame belongs to the package then, or the call runs a callback. Callbacks on threads of the library
    do not count, because destruction waits for them itself.
    """
    if (frame.f_globals.get("__name__", "") + ".").startswith(package + ".") and frame.f_code not in waiting_code:
        return frame.f_back is not None or frame.f_globals is not globals()
    while frame is not None:
        if frame.f_globals is globals():
            return frame.f_back is not None
        frame = frame.f_back
    return False


_CODES = {ctypes.c_int32: "i", ctypes.c_uint32: "I", ctypes.c_uint64: "K"}  # of Py_BuildValue; pointers are integers
# Threads, other than the main one, that run functions of the program, by number of the call. Threads: any.
_running: dict[int, int] = {}
_numbers = itertools.count()
os.register_at_fork(after_in_child=_running.clear)


def _end_functions(threads: set[int]) -> None:
    """Raise SystemExit in the program's functions that the library has called on these threads."""
    for thread in threads & set(_running.values()):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SystemExit))


@atexit.register
def _end_calls() -> None:
    """End the calls that still run at interpreter exit, after _handle.py has destroyed all objects.

    A thread that runs Python code while the interpreter ends would be unwound through the library, which ends the
    process with an error. A thread that waits outside of Python code, in sleep for example, is harmless.
    """
    threads = set(_running.values())
    _end_functions(threads)
    end = time.monotonic() + _PATIENCE_S
    while _running and time.monotonic() < end:
        time.sleep(0.001)
    if threads:
        time.sleep(0.02)  # the threads leave Python


def _calls(function: Callable[..., Any], failed: Any) -> Generator[Any, tuple[Any, ...], None]:
    """Yield the result of function for each tuple of arguments that is sent."""
    result = None
    while True:
        try:
            while True:
                arguments = yield result
                result = failed
                result = function(*arguments)
        except GeneratorExit:
            return
        except BaseException as error:
            result = failed
            raised.append(error)


class _PerThread(threading.local):
    """Calls a function of the program: its attribute send takes the arguments as a tuple."""

    def __init__(self, function: Callable[..., Any], failed: Any) -> None:
        self.send: Callable[[tuple[Any, ...]], Any]
        if on_main_thread():
            calls = _calls(function, failed)
            next(calls)
            self.send = calls.send
        else:  # Python runs no signal handlers on this thread
            self.send = functools.partial(_tracked, function, failed)


def _tracked(function: Callable[..., Any], failed: Any, arguments: tuple[Any, ...]) -> Any:
    number = next(_numbers)
    try:
        _running[number] = threading.get_ident()
        return function(*arguments)
    except BaseException:  # that of _end_calls
        return failed
    finally:
        _running.pop(number, None)


def c_function(kind: Any, function: Callable[..., Any], failed: Any) -> Any:
    """Make a C function of the type `kind` that calls `function`, which handles its own exceptions.

    If a signal handler raises an exception before function has begun, the C function returns `failed`, and
    `raise_raised` raises the exception later. With a Python function ctypes would print the exception, and return an
    undefined result, which may be success. Pointers are passed as integers, NULL as 0. A call that still runs as the
    interpreter exits gets the exception SystemExit.
    """
    types = [one if one in _CODES else ctypes.c_size_t for one in kind._argtypes_]
    codes = "".join(_CODES.get(one, "K") for one in types)
    # C code up to the suspended generator: this C-API function makes a tuple of the arguments, and calls send.
    call = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_char_p, ctypes.c_char_p, *types)(
        ("PyObject_CallMethod", ctypes.pythonapi))
    made = ctypes.CFUNCTYPE(kind._restype_, *types)(
        functools.partial(call, _PerThread(function, failed), b"send", f"(({codes}))".encode()))
    return ctypes.cast(made, kind)


def void_function(kind: Any, function: Callable[..., Any]) -> Any:
    """Make a C function without a result, as `c_function` does, of a function whose own exceptions ctypes reports."""
    def call(*arguments: Any) -> None:
        try:
            function(*arguments)
        except Exception as error:
            report(error)
    return c_function(kind, call, None)


def _raise(error: BaseException) -> None:
    raise error


# Prints an exception as one that is ignored (sys.unraisablehook).
report = ctypes.CFUNCTYPE(None, ctypes.py_object)(_raise)


def _answers() -> Generator[int, Any, None]:
    """Yield the callback's result each time, after running pending signal handlers: 1 ends the call, 0 does not."""
    while True:
        try:
            yield 1 if raised or time.monotonic() > _exit_ends else 0
            ctypes.pythonapi.PyErr_CheckSignals()
        except GeneratorExit:
            return
        except BaseException as error:
            raised.append(error)


def _first(_: Any) -> int:
    """Answer the first call of the callback on a thread, and install this thread's own function for later calls."""
    if on_main_thread():
        answers = _answers()
        next(answers)
        _asked.send = answers.send
        return 0
    _asked.send = lambda _: elsewhere()  # Python runs no handlers on this thread
    return elsewhere()


class _Asked(threading.local):
    send: Callable[[Any], int] = staticmethod(_first)


_asked = _Asked()
if on_main_thread():
    _first(None)
os.register_at_fork(after_in_child=lambda: _first(None))  # the thread that forks is the child's main thread
_ask = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.py_object)(operator.methodcaller("send", None))
callback = ctypes.cast(_ask, _abi.interrupt_fn)
user_data = ctypes.c_void_p(id(_asked))
