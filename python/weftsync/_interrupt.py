"""Runs Python's signal handlers (Ctrl-C) while a call into the library blocks, and lets their exceptions end the call.

Each thread that blocks in the library calls `callback` every 50 ms (weft_context_options.interrupt, which promises
100 ms). On the main thread, where Python runs signal handlers, that call runs the pending handlers. An exception of a
handler (KeyboardInterrupt, or SystemExit from a SIGTERM handler) ends the blocking call. `raise_raised` raises it where
the call returns.

The callback is C code that resumes a generator, which is suspended inside a try block. A Python function would not do:
the interpreter runs pending handlers as soon as it enters Python code, so their exception would leave the function
before its own try block begins.
"""
from __future__ import annotations

import ctypes
import operator
import os
import threading
from typing import Any, Callable, Generator

from . import _abi

raised: list[BaseException] = []  # exceptions of signal handlers; only the main thread changes it


def on_main_thread() -> bool:
    """True on the thread that runs Python's signal handlers."""
    return threading.get_ident() == threading.main_thread().ident


def raise_raised() -> None:
    """Raise the exception that a signal handler raised during a call of this thread, if there is one."""
    if raised and on_main_thread():
        error = raised[0]
        raised.clear()
        raise error


def keep(error: BaseException) -> None:
    """Store the exception of a signal handler, which `raise_raised` raises later. On other threads: raise it."""
    if not on_main_thread():
        raise error
    raised.append(error)


def keeping(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a callback: an exception of a signal handler inside it is stored, and `raise_raised` raises it later."""
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception:  # the callback's own exception, which ctypes reports
            raise
        except BaseException as error:
            keep(error)
            return None
    return call


def _answers() -> Generator[int, Any, None]:
    """Yield the callback's result each time, after running pending signal handlers: 1 ends the call, 0 does not."""
    while True:
        try:
            yield 1 if raised else 0
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
    else:
        _asked.send = bool  # Python runs no handlers on this thread: bool(None) is 0
    return 0


class _Asked(threading.local):
    send: Callable[[Any], int] = staticmethod(_first)


_asked = _Asked()
if on_main_thread():
    _first(None)
os.register_at_fork(after_in_child=lambda: _first(None))  # the thread that forks is the child's main thread
_ask = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.py_object)(operator.methodcaller("send", None))
callback = ctypes.cast(_ask, _abi.interrupt_fn)
user_data = ctypes.c_void_p(id(_asked))
