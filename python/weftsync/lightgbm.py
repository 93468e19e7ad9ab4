"""Distributed training of LightGBM over Weft: `Network` connects LightGBM's machines, which are the ranks.

    import lightgbm, weftsync, weftsync.lightgbm

    with weftsync.Comm() as comm, weftsync.lightgbm.Network(comm) as network:
        data = lightgbm.Dataset(X, y)  # the rows of this rank
        booster = lightgbm.train({**network.params, "tree_learner": "data", "objective": "binary"}, data)

docs/how-to/lightgbm.md describes it.
"""
from __future__ import annotations

import contextlib
import ctypes
import threading
from types import TracebackType
from typing import Any, Optional, Type

from lightgbm.basic import _LIB, _safe_call

from . import _interrupt, _library
from ._handle import milliseconds
from ._library import lib
from .comm import Comm
from .errors import WeftError, described

_FILE = "libweft-lightgbm.so"
_active = threading.local()


class _Network(ctypes.Structure):
    """weft_lightgbm_network of python/lightgbm_module/lightgbm_module.cpp."""

    _fields_ = [("comm", ctypes.c_void_p), ("rank", ctypes.c_int32), ("size", ctypes.c_int32),
                ("timeout_ms", ctypes.c_int64), ("all_gather_v", ctypes.c_void_p), ("all_to_all_v", ctypes.c_void_p),
                ("last_error", ctypes.c_void_p)]


def _load() -> ctypes.CDLL:
    """Load the module, in the folder weft-0.9 beside libweft.so. WEFT_LIGHTGBM_LIBRARY replaces that file."""
    try:
        module = ctypes.CDLL(_library.module_file(_FILE, "WEFT_LIGHTGBM_LIBRARY"))
        module.weft_lightgbm_use.restype, module.weft_lightgbm_use.argtypes = None, [ctypes.c_void_p]
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"weftsync.lightgbm needs the module {_FILE}, which cannot be loaded: {error}. This installation of Weft was "
            "built without it (-Dlightgbm=enabled builds it, and so does `make wheel`)") from None
    return module


class Network:
    """Connects LightGBM on this thread with the other ranks of comm, inside a with block.

    comm     the communicator, which does nothing else inside the block. Its rank is LightGBM's
    timeout  deadline of each exchange in seconds; None: the communicator's

    All ranks enter the block, and make the same calls of LightGBM in it with their own rows: construct the Dataset, make
    the Booster and train. Pass `params` to them. A failure of the communicator, a rank that died for example, raises
    lightgbm.basic.LightGBMError with Weft's text, which names the rank. A block that raises aborts the communicator, so
    that the other ranks do not wait for this one.

    Raises ImportError if the package has no libweft-lightgbm.so, and RuntimeError inside another Network of this
    thread. Threads: one at a time, each with a communicator of its own.
    """

    def __init__(self, comm: Comm, *, timeout: Optional[float] = None) -> None:
        self.comm = comm
        self._shim = _load()
        self._timeout_ms = milliseconds(timeout)

    @property
    def params(self) -> dict[str, Any]:
        """LightGBM's parameters for this network. Add "tree_learner": "data" or "voting"."""
        return {"num_machines": self.comm.size, "pre_partition": True}

    def __enter__(self) -> Network:
        if getattr(_active, "network", None) is not None:
            raise RuntimeError("this thread is inside another weftsync.lightgbm.Network: leave its with block first")
        functions = {name: ctypes.cast(getattr(lib, name), ctypes.c_void_p).value
                     for name in ("all_gather_v", "all_to_all_v", "last_error")}
        network = _Network(self.comm._handle, self.comm.rank, self.comm.size, self._timeout_ms, **functions)
        self._shim.weft_lightgbm_use(ctypes.byref(network))
        _safe_call(_LIB.LGBM_NetworkInitWithFunctions(
            ctypes.c_int(self.comm.size), ctypes.c_int(self.comm.rank),
            ctypes.cast(self._shim.weft_lightgbm_reduce_scatter, ctypes.c_void_p),
            ctypes.cast(self._shim.weft_lightgbm_all_gather, ctypes.c_void_p)))
        _active.network = self
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        _active.network = None
        _LIB.LGBM_NetworkFree()
        self._shim.weft_lightgbm_use(None)
        if value is not None:
            with contextlib.suppress(WeftError):
                self.comm.abort(described(value))
            _interrupt.raise_raised()  # Ctrl-C, which LightGBM reports as an error of the exchange
