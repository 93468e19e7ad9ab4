"""Threads that complete operations whose caller does not wait: they copy results, and fulfil futures.

A callback of the library may not call collectives, but a callback of a future may. So the library's callback only
queues the operation, and a thread of this module completes it. A callback of a future may block until another future
is fulfilled; hence a new thread starts whenever all others are busy.
"""
from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import queue
import threading
from typing import Any, Callable

from .. import _abi, _interrupt
from .._library import check, lib

_IDLE_SECONDS = 30.0

_jobs: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
# Guards _idle. The garbage collector may run a destructor in any call, and a destructor may complete an operation, which
# submits a job: hence nothing is called under the lock, and its own thread may take it again.
_lock = threading.RLock()
_idle = 0  # threads that wait for a job, less the jobs that wait for a thread
_ended = False
_watched: dict[int, Callable[[], Any]] = {}
_numbers = itertools.count(1)


def submit(job: Callable[[], Any]) -> None:
    """Run job on a thread of this module. Exceptions of jobs are ignored: jobs store their own. Threads: any."""
    global _idle
    if _ended:
        return
    with _lock:
        start = _idle == 0
        if not start:
            _idle -= 1
    _jobs.put(job)
    if start:
        threading.Thread(target=_run, name="weft-torch", daemon=True).start()


def _run() -> None:
    global _idle
    while True:
        try:
            job = _jobs.get(timeout=_IDLE_SECONDS)
        except queue.Empty:
            with _lock:
                if _idle > 0:
                    _idle -= 1
                    return
            continue
        try:
            job()
        except Exception:  # the job's result is its own concern
            pass
        del job
        with _lock:
            _idle += 1


_interrupt.waiting_code.add(_run.__code__)  # where idle threads wait


def _queue(user_data: int, status: int) -> None:
    job = _watched.pop(user_data, None)
    if job is not None:
        submit(job)


_completed = _abi.complete_fn(_queue)


def watch(handle: ctypes.c_void_p, job: Callable[[], Any]) -> None:
    """Submit job when the request is complete, with or without success. One call for each request."""
    number = next(_numbers)
    _watched[number] = job
    code = lib.request_on_complete(handle, _completed, ctypes.c_void_p(number))
    if code:
        _watched.pop(number, None)
    check(code)  # also raises exceptions of signal handlers, which do not undo the call


@atexit.register
def _end() -> None:
    """Start no threads while the interpreter exits, which destroys the communicators and fails their operations."""
    global _ended
    _ended = True


def _forget() -> None:
    """Start anew in a forked child, which has none of the threads."""
    global _idle, _lock, _jobs
    _idle, _lock, _jobs = 0, threading.RLock(), queue.SimpleQueue()
    _watched.clear()


os.register_at_fork(after_in_child=_forget)
