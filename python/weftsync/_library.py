"""Finds libweft.so and calls it. Every module of the package calls the library through `lib` and `check`.

The library is loaded with the first call, so that importing the package needs none. Calls release the interpreter's
lock while they run. Threads: any.
"""
from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, Callable, Optional

from . import _abi
from ._deferred import deferred, destroy_deferred
from ._interrupt import raise_raised, raised
from .constants import VERSION_MAJOR, VERSION_MINOR
from .errors import WeftError

_FILE = f"libweft.so.{VERSION_MAJOR}.{VERSION_MINOR}"


def candidates() -> list[str]:
    """Where libweft.so is looked for, in this order."""
    named = os.environ.get("WEFT_LIBRARY")
    if named:
        return [named]
    here = Path(__file__).resolve().parent
    folders = [here, here.parent.parent / "build"]
    return [str(folder / _FILE) for folder in folders if (folder / _FILE).exists()] + [_FILE]


def _compatible(version: int) -> bool:
    """The library has this package's major version and, before 1.0, its minor version."""
    minor = VERSION_MAJOR > 0 or version // 100 % 100 == VERSION_MINOR
    return version // 10000 == VERSION_MAJOR and minor


def _load() -> ctypes.CDLL:
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
            raise ImportError(f"{path} is Weft {version // 10000}.{version // 100 % 100}; this package is for "
                              f"{VERSION_MAJOR}.{VERSION_MINOR}")
        return library
    raise ImportError(f"{_FILE} is not found; name it in WEFT_LIBRARY: " + "; ".join(problems))


class _Library:
    """The library's functions as attributes, without the prefix weft_."""

    _loaded: Optional[ctypes.CDLL] = None

    def __getattr__(self, name: str) -> Any:
        if _Library._loaded is None:
            _Library._loaded = _load()
        function = getattr(_Library._loaded, "weft_" + name)
        setattr(self, name, function)
        return function


lib = _Library()


def status_string(code: int) -> str:
    return str(lib.status_string(code).decode())


def check(code: int, describe: Optional[Callable[[_abi.Error], Any]] = None) -> None:
    """Raise WeftError unless code is OK; describe fills in the details of the object that failed, if it has any."""
    if code == 0 and not raised and not deferred:
        return
    destroy_deferred()
    raise_raised()
    if code == 0:
        return
    error = _abi.Error()
    if describe is not None:
        describe(error)
    if error.code != code:  # of an earlier failure, or none
        error = _abi.Error()
    raise_error(code, error)


def raise_error(code: int, error: _abi.Error) -> None:
    """Raise WeftError with the details that a call has filled in, or what a signal handler has raised meanwhile."""
    raise_raised()
    text = error.text.decode("utf-8", "replace") or status_string(code)
    ranks = tuple(error.failed_ranks[:min(error.failed_count, len(error.failed_ranks))])
    raise WeftError(code, text, ranks=ranks, evidence=error.evidence, slot=error.slot, step=error.step)
