"""The communicators that traced functions use, by number. A compiled program contains the number, not the address."""
from __future__ import annotations

import atexit
import contextlib
import itertools
import sys
import threading
from collections.abc import Iterator
from typing import Optional

import jax

from .. import _interrupt
from ..comm import Comm
from . import _module

_EXIT_S = 5.0  # that compiled programs have at interpreter exit to end
# A number is never used twice. The list keeps a communicator open that compiled programs may still use.
_numbers = itertools.count(1)
_comms: dict[int, Comm] = {}
_number_by_id: dict[int, int] = {}
_default: Optional[Comm] = None
_lock = threading.RLock()  # guards all of them


def default_comm() -> Comm:
    """Return the communicator of all ranks that `weftsync run`, mpirun, torchrun or srun started.

    The first call creates it with the defaults of weftsync.Comm, and so does the first call after it was closed. It is
    collective then. Threads: any.
    """
    global _default
    with _lock:
        if _default is None or _default.closed:
            _default = Comm()
        return _default


def number_of(comm: Comm) -> int:
    """Return the number of an open communicator; it gets one in the first call."""
    with _lock:
        number = _number_by_id.get(id(comm))
        if number is None:
            if comm.closed:
                raise ValueError("the communicator is closed, expected an open one")
            number = next(_numbers)
            _comms[number], _number_by_id[id(comm)] = comm, number
            comm._before_close.append(lambda: _forget(number))
        return number


def comm_of(number: int) -> Comm:
    """Return the communicator with this number. Raises ValueError if it was closed."""
    with _lock:
        comm = _comms.get(number)
    if comm is None or comm.closed:
        raise ValueError("the communicator was closed after the function was traced; trace it again with an open one")
    return comm


def compile_for(number: int) -> None:
    """Make a communicator known to the module, so that a compiled program can use it.

    Raises ImportError if the module is missing or does not fit this version of JAX.
    """
    comm = comm_of(number)
    with _lock:
        _module.add(number, comm._handle)


@contextlib.contextmanager
def exclusive(number: int) -> Iterator[Comm]:
    """Yield the communicator; meanwhile no compiled program uses it."""
    comm = comm_of(number)
    with _module.exclusive(number):
        yield comm


def _forget(number: int) -> None:
    """End the use of a communicator before it is destroyed. Waits for a collective of a compiled program."""
    with _lock:
        comm = _comms.pop(number, None)
        if comm is None:
            return
        _number_by_id.pop(id(comm), None)
    _module.close(number)


@atexit.register  # runs before the communicators are destroyed, because the package weftsync was imported before
def _forget_all() -> None:
    """Let the programs that are running end. Their collectives are ended after some seconds; Ctrl-C aborts them."""
    if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):  # the exception that ends the interpreter
        for comm in list(_comms.values()):
            comm.abort("the program was interrupted")
    if _module.used():
        _interrupt.end_others(_EXIT_S)
        with contextlib.suppress(Exception):  # a failure was reported to who waited for the results
            jax.effects_barrier()
        _interrupt.others_leave(_EXIT_S + 2, package="jax")
    for number in list(_comms):
        _forget(number)
