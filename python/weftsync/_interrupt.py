"""Ctrl-C: runs Python's signal handlers while a call into the library blocks, and lets an exception of theirs end it.

The library asks `callback` every 50 ms on each thread that blocks (weft_context_options.interrupt). On the main thread,
where Python runs signal handlers, that lets them run. What a handler raises (KeyboardInterrupt, or SystemExit of a
SIGTERM handler) ends the call and is raised where the call returns, by `raise_raised`.

The callback is C code down to a generator that waits inside a try block: the interpreter runs pending handlers as soon
as it enters Python code, so a function would be left by their exception before its own try block begins.
"""
from __future__ import annotations

import ctypes
import operator
import threading
from typing import Any, Callable, Generator

from . import _abi

raised: list[BaseException] = []  # by handlers during calls of the main thread, which alone changes it


def on_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def raise_raised() -> None:
    """Raise what a signal handler raised during a call of this thread, if one did."""
    if raised and on_main_thread():
        error = raised[0]
        raised.clear()
        raise error


def keeping(function: Callable[..., Any]) -> Callable[..., Any]:
    """A callback that keeps what a signal handler raises in it for the call that it interrupts."""
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception:  # the callback's own, which ctypes reports
            raise
        except BaseException as error:
            if not on_main_thread():
                raise
            raised.append(error)
            return None
    return call


def _answers() -> Generator[int, Any, None]:
    while True:
        try:
            yield 1 if raised else 0
            ctypes.pythonapi.PyErr_CheckSignals()
        except GeneratorExit:
            return
        except BaseException as error:
            raised.append(error)


def _first(_: Any) -> int:
    """A thread's first question: from now on it has an answer of its own."""
    if on_main_thread():
        answers = _answers()
        next(answers)
        _asked.send = answers.send
    else:
        _asked.send = bool  # no handlers run here: None is no
    return 0


class _Asked(threading.local):
    send: Callable[[Any], int] = staticmethod(_first)


_asked = _Asked()
if on_main_thread():
    _first(None)
_ask = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.py_object)(operator.methodcaller("send", None))
callback = ctypes.cast(_ask, _abi.interrupt_fn)
user_data = ctypes.c_void_p(id(_asked))
