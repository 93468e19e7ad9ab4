"""Finds and loads libweft.so. Every module of the package calls the library through `lib` and `check`.

The first call loads the library, so importing the package does not need it. Calls release the interpreter's lock (GIL)
while they run. Threads: any.
"""
from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, Optional

from . import _abi
from ._deferred import deferred, destroy_deferred
from ._interrupt import raise_raised, raised
from .constants import VERSION_MAJOR, VERSION_MINOR
from .errors import WeftError

_NUMBER = f"0.{VERSION_MINOR}" if VERSION_MAJOR == 0 else f"{VERSION_MAJOR}"  # of the soname
_FILE = f"libweft.so.{_NUMBER}"
_MODULES = f"weft-{_NUMBER}"


def candidates() -> list[str]:
    """List the files to try, in order. WEFT_LIBRARY replaces all others."""
    named = os.environ.get("WEFT_LIBRARY")
    if named:
        return [named]
    here = Path(__file__).resolve().parent
    folders = [here, here.parent.parent / "build"]
    return [str(folder / _FILE) for folder in folders if (folder / _FILE).exists()] + [_FILE]


class _Place(ctypes.Structure):
    """Dl_info of <dlfcn.h>."""

    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p)]


def module_file(file: str, variable: str) -> str:
    """Return a module's path in the folder of modules beside the loaded libweft.so. An environment variable replaces it."""
    named = os.environ.get(variable)
    if named:
        return named
    place = _Place()
    ctypes.CDLL(None).dladdr(ctypes.cast(lib.version, ctypes.c_void_p), ctypes.byref(place))
    return str(Path(os.fsdecode(place.file)).parent / _MODULES / file)


def _compatible(version: int) -> bool:
    """True if the library has the package's major version and, before 1.0, its minor version."""
    minor = VERSION_MAJOR > 0 or version // 100 % 100 == VERSION_MINOR
    return version // 10000 == VERSION_MAJOR and minor


def _load() -> ctypes.CDLL:
    """Load the first candidate that exists, and declare its functions.

    Raises ImportError if no candidate loads, or if the library has another version.
    """
    problems = []
    for path in candidates():
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            problems.append(str(error))
            continue
        for name, (result, *parameters) in _abi.PROTOTYPES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, parameters
        version = library.weft_version()
        if not _compatible(version):
            raise ImportError(f"{path} is version {version // 10000}.{version // 100 % 100} of Weft, expected "
                              f"{VERSION_MAJOR}.{VERSION_MINOR}: install the library and the package weftsync of one "
                              "version, or set WEFT_LIBRARY to a matching file")
        return library
    raise ImportError(f"cannot load {_FILE}: {'; '.join(problems)}; set WEFT_LIBRARY to the path of the library")


class _Library:
    """Offers the library's functions as attributes, without the prefix weft_. The first access loads the library."""

    _loaded: Optional[ctypes.CDLL] = None

    def __getattr__(self, name: str) -> Any:
        if _Library._loaded is None:
            _Library._loaded = _load()
        function = getattr(_Library._loaded, "weft_" + name)
        setattr(self, name, function)
        return function


lib = _Library()


def status_string(code: int) -> str:
    """Return the library's text for a status code."""
    return str(lib.status_string(code).decode())


def check(code: int, cause: Optional[BaseException] = None) -> None:
    """Raise WeftError unless code is OK. code is that of this thread's last call.

    Also destroys deferred objects, and raises exceptions of signal handlers. cause is as for raise_error.
    """
    if code == 0 and not raised and not deferred:
        return
    error = _abi.Error()
    if code != 0 and lib.last_error(error) != code:  # ERR_NOT_DONE has no details
        error = _abi.Error()
    destroy_deferred()
    raise_raised()
    if code != 0:
        raise_error(code, error, cause)


def raise_error(code: int, error: _abi.Error, cause: Optional[BaseException] = None) -> None:
    """Raise WeftError with the details that a call filled in, or the exception of a signal handler if there is one.

    cause  the exception of the program's own callback that made the call fail; it becomes __cause__
    """
    raise_raised()
    text = error.text.decode("utf-8", "replace") or status_string(code)
    ranks = tuple(error.failed_ranks[:min(error.failed_count, len(error.failed_ranks))])
    raise WeftError(code, text, ranks=ranks, evidence=error.evidence, slot=error.slot, step=error.step) from cause
