"""Loads libweft-jax.so, whose handler XLA calls for the collectives of compiled programs.

The file is searched in the folder weft-0.9 beside libweft.so. If the environment variable WEFT_JAX_LIBRARY is set, it names
the file and nothing else is tried. Threads: any.
"""
from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from collections.abc import Iterator
from typing import Any, Optional

import jax

from .. import _interrupt, _library

TARGET = "weft_collective"  # the name of the handler in compiled programs
_FILE = "libweft-jax.so"
_lock = threading.Lock()
_loaded: Optional[ctypes.CDLL] = None
_added: dict[int, ctypes.c_void_p] = {}  # the module keeps pointers to these handles


def library() -> ctypes.CDLL:
    """Load the module and register its handler, in the first call.

    Raises ImportError if the module is missing, or if this version of JAX does not accept it.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            made = _load()
            _register(made)
            _watch(made)
            _loaded = made
        return _loaded


def _load() -> ctypes.CDLL:
    _library.lib.version()  # loads libweft.so: the module then uses the same one
    try:
        made = ctypes.CDLL(_library.module_file(_FILE, "WEFT_JAX_LIBRARY"))
        made.weft_jax_add.argtypes, made.weft_jax_add.restype = [ctypes.c_int64, ctypes.c_void_p], ctypes.c_int32
        for name in ("close", "hold", "release"):
            function = getattr(made, "weft_jax_" + name)
            function.argtypes, function.restype = [ctypes.c_int64], None
        made.weft_jax_interface.argtypes, made.weft_jax_interface.restype = [], ctypes.c_int32
        made.weft_jax_offer.argtypes, made.weft_jax_offer.restype = [ctypes.c_int32], None
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"collectives inside jit need the module {_FILE}, which cannot be loaded: {error}. This installation of Weft was "
            "built without it: the wheel contains it, and a build of the sources does if its python3 has jaxlib "
            "(-Djax=enabled). Outside jit the collectives work without it") from None
    return made


def _register(made: ctypes.CDLL) -> None:
    """Register the handler with XLA, which refuses modules for a newer version of its interface than its own."""
    handler = ctypes.cast(made.weft_jax_collective, ctypes.c_void_p).value
    compiled = made.weft_jax_interface()
    for minor in range(compiled % 1000, 0, -1):
        made.weft_jax_offer(minor)
        try:
            jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(handler), platform="cpu")
        except Exception as error:  # its type depends on the version of jaxlib
            refusal = error
        else:
            return
    raise ImportError(f"JAX {jax.__version__} does not accept the module {_FILE}, which fits version "
                      f"{compiled // 1000}.1 to {compiled // 1000}.{compiled % 1000} of XLA's foreign function interface: "
                      f"{refusal}. Build Weft with the headers of this version of jaxlib, or install another version of "
                      "JAX") from refusal


def _watch(made: ctypes.CDLL) -> None:
    """Let Ctrl-C end a collective that waits on a thread of XLA, while the main thread waits for that program.

    The main thread runs no signal handlers then. The collective ends if the handler would raise KeyboardInterrupt.
    """
    keeping_lock = ctypes.PyDLL(made._name)
    keeping_lock.weft_jax_watch.argtypes, keeping_lock.weft_jax_watch.restype = [ctypes.c_void_p], None
    keeping_lock.weft_jax_interrupted.argtypes, keeping_lock.weft_jax_interrupted.restype = [], ctypes.c_int32
    interrupted = keeping_lock.weft_jax_interrupted
    keeping_lock.weft_jax_watch(ctypes.cast(ctypes.pythonapi.Py_AddPendingCall, ctypes.c_void_p))
    _interrupt.elsewhere = lambda: int(interrupted() and
                                       signal.getsignal(signal.SIGINT) is signal.default_int_handler)


def add(number: int, handle: ctypes.c_void_p) -> None:
    """Make a communicator known to the module. handle is the one that its destruction sets to null."""
    if number in _added:
        return
    if library().weft_jax_add(number, ctypes.addressof(handle)):
        raise MemoryError("no memory for a communicator's entry in " + _FILE)
    _added[number] = handle


def used() -> bool:
    """Return True if a program that uses a communicator was compiled."""
    return bool(_added)


def close(number: int) -> None:
    """End the use of a communicator: wait for the collective of a compiled program that is running."""
    if _loaded is not None and number in _added:
        _loaded.weft_jax_close(number)


@contextlib.contextmanager
def exclusive(number: int) -> Iterator[None]:
    """Keep compiled programs from using a communicator, which is for one thread at a time."""
    made: Any = _loaded if number in _added else None
    if made is None:
        yield
        return
    made.weft_jax_hold(number)
    try:
        yield
    finally:
        made.weft_jax_release(number)
