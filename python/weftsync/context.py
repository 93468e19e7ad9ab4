"""Context: one instance of the library."""
from __future__ import annotations

import ctypes
import os
from typing import Callable, NamedTuple, Optional, Union

from . import _abi, _interrupt
from ._handle import Handle
from ._library import check, lib, raise_error
from ._memory import dtype_of
from .constants import VERSION_NUMBER, Coll, ContextFlag, DeviceKind, DType, LogLevel, Op, Progress, choice

PathLike = Union[str, "os.PathLike[str]"]


class BackendInfo(NamedTuple):
    """A backend that the library knows, and why it is not available if it is not."""

    name: str
    available: bool
    is_module: bool
    reason: str


class Context(Handle):
    """One instance of the library: its threads, its log, its backends. Most programs need one. Threads: any.

    progress     who drives operations: a thread of the context, or the program's threads inside their calls
    log          receives (LogLevel, line); called on any thread; calls of Weft in it raise ERR_STATE
    module_path  folder of backend modules; default: beside libweft.so
    flight_path  folder for records of communicators that fail; default: WEFT_FLIGHT, else none
    host_waits   never make a CUDA stream wait for the host, for programs that call cudaFree and the like meanwhile
    """

    _destructor = "context_destroy"

    def __init__(self, *, progress: Union[Progress, str] = Progress.THREAD,
                 log: Optional[Callable[[LogLevel, str], None]] = None, log_level: LogLevel = LogLevel.WARN,
                 module_path: Optional[PathLike] = None, flight_path: Optional[PathLike] = None,
                 host_waits: bool = False) -> None:
        options = _abi.ContextOptions(version=VERSION_NUMBER, module_path=_path(module_path),
                                      flight_path=_path(flight_path))
        options.interrupt, options.interrupt_user_data = _interrupt.callback, _interrupt.user_data
        if host_waits:
            options.flags |= ContextFlag.HOST_WAITS
        options.progress = choice(Progress, progress, "progress")
        self._log = None
        if log is not None:
            tell = log  # the callback lives as long as this object
            self._log = _abi.log_fn(_interrupt.keeping(
                lambda _, level, line: tell(LogLevel(level), line.decode("utf-8", "replace"))))
            options.log, options.log_level = self._log, log_level
        handle, error = ctypes.c_void_p(), _abi.Error()
        code = lib.context_create(options, handle, error)
        if code:
            raise_error(code, error)
        super().__init__(handle)

    def backends(self) -> list[BackendInfo]:
        """The backends that this library knows."""
        count, info, found = ctypes.c_uint64(), _abi.BackendInfo(), []
        check(lib.backend_count(self._handle, count))
        for index in range(count.value):
            check(lib.backend_query(self._handle, index, info))
            found.append(BackendInfo(info.name.decode(), bool(info.available), bool(info.is_module),
                                     info.reason.decode("utf-8", "replace")))
        return found

    def supports(self, backend: str, coll: Coll, dtype: Union[DType, str], op: Optional[Op] = None,
                 device: DeviceKind = DeviceKind.HOST) -> bool:
        """Whether a backend executes a collective on a type with an operation."""
        supported = ctypes.c_uint8()
        check(lib.capability(self._handle, backend.encode(), coll, dtype_of(dtype), op or 0, device, supported))
        return bool(supported.value)

    def trace_start(self, capacity: int = 0) -> None:
        """Record the events of all steps and collectives, up to capacity (0: 65536) of them."""
        check(lib.trace_start(self._handle, capacity))

    def trace_stop(self) -> None:
        check(lib.trace_stop(self._handle))

    def trace_write(self, path: PathLike) -> None:
        """Write what was recorded as a Chrome trace, which Perfetto opens."""
        check(lib.trace_write(self._handle, os.fsencode(path)))


def _path(path: Optional[PathLike]) -> Optional[bytes]:
    return None if path is None else os.fsencode(path)


def version() -> int:
    """The library's version: major * 10000 + minor * 100 + patch."""
    return int(lib.version())
