"""Calls the program's log functions, on a thread of the package ("weftsync-log").

The library logs under its locks, on any thread, and a log function takes locks as well: a handler of the module logging
has one. A garbage collector that runs under such a lock may destroy a communicator, which waits for the library's
threads. If they waited for the lock, all would wait for ever. So they only queue their line, and give it _WAIT_S to be
written, for the case that the process is about to end.
"""
from __future__ import annotations

import os
import queue
import threading
from typing import Any, Callable

from . import _interrupt

_WAIT_S = 1.0
_lines: queue.SimpleQueue[tuple[Callable[[], Any], threading.Event]] = queue.SimpleQueue()
_first = threading.Lock()  # taken by the thread that starts the package's thread, and never released
_writer = 0  # the package's thread


def write(report: Callable[[], Any]) -> None:
    """Call report on the package's thread, after the earlier ones, and wait for a short time. Threads: any."""
    written = threading.Event()
    if _first.acquire(blocking=False) and not _start():
        _first.release()
        report()
        return
    _lines.put((report, written))
    if threading.get_ident() != _writer:  # a report that destroys objects may log
        written.wait(_WAIT_S)


def _start() -> bool:
    """Start the package's thread. Returns False while the interpreter exits: Python 3.12 starts no threads then."""
    try:
        threading.Thread(target=_run, name="weftsync-log", daemon=True).start()
        return True
    except RuntimeError:
        return False


def _run() -> None:
    global _writer
    _writer = threading.get_ident()
    while True:
        report, written = _lines.get()
        try:
            report()
        except BaseException as error:
            _interrupt.report(error)
        written.set()
        del report, written


_interrupt.waiting_code.add(_run.__code__)


def _forget() -> None:
    """Start anew in a forked child, which does not have the thread."""
    global _lines, _first, _writer
    _lines, _first, _writer = queue.SimpleQueue(), threading.Lock(), 0


os.register_at_fork(after_in_child=_forget)
