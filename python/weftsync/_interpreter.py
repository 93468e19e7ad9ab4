"""Refuses to be imported in a subinterpreter. The package imports this module first."""
from __future__ import annotations

_REFUSAL = ("weftsync cannot be used in a subinterpreter: ctypes runs the callbacks of the library in the main interpreter. "
            "Import weftsync in the main interpreter, and use threads (weftsync.run_threads) or processes (weftsync run, "
            "multiprocessing) for several ranks")

try:
    import ctypes
except ImportError as error:
    if "subinterpreter" not in str(error):
        raise
    raise ImportError(_REFUSAL) from error


def _is_main() -> bool:
    current, main = ctypes.pythonapi.PyInterpreterState_Get, ctypes.pythonapi.PyInterpreterState_Main
    current.restype = main.restype = ctypes.c_void_p
    return bool(current() == main())


if not _is_main():
    raise ImportError(_REFUSAL)
