"""Context: one instance of the library. Also the library's version."""
from __future__ import annotations

import ctypes
import functools
import logging
import os
from typing import Callable, Literal, NamedTuple, Optional, Union

from . import _abi, _interrupt, _log
from ._handle import Handle
from ._library import check, lib, raise_error
from ._memory import dtype_of
from .constants import UNIQUE_ID_BYTES, VERSION_NUMBER, Coll, ContextFlag, DeviceKind, DType, LogLevel, Op, Progress, choice

PathLike = Union[str, "os.PathLike[str]"]


class BackendInfo(NamedTuple):
    """A backend of the library (weft_backend_info).

    name       as Comm's backend takes it
    available  True if communicators can use it
    is_module  True if it is loaded at run time
    reason     why it is not available, or else which devices or libraries it uses
    """

    name: str
    available: bool
    is_module: bool
    reason: str


class DeviceInfo(NamedTuple):
    """The devices of one kind (weft_device_info).

    available     True if the library can use them
    device_count  number of devices, 0 if not available
    reason        why they are not available, or which library the kind uses
    """

    available: bool
    device_count: int
    reason: str


class Context(Handle):
    """One instance of the library: its threads, its log and its backends. Most programs need one.

    progress     "thread": a thread of the context drives operations; "caller": only the program's threads do, inside
                 their calls
    log          function that receives (LogLevel, line). It runs on a thread of the package, one call at a time, for all
                 contexts. A thread that logs waits for it for 1 s at most. None: the logger "weftsync" of the module logging, which prints warnings
                 and errors unless the program configures it; False: nothing is logged
    log_level    the least severe level that is logged; None: WARN, and for the logger its level at this time, which
                 WEFT_LOG sets if the program has not
    module_path  folder of backend modules; None: the folder of libweft.so
    flight_path  folder into which each rank of a failing communicator writes its flight record; None: WEFT_FLIGHT, else
                 nothing is written
    stream_waits  True: asynchronous calls return at once, and CUDA streams wait for Weft. False: the calls wait on the
                 host. See WEFT_CONTEXT_STREAM_WAITS for what can fail

    `close` fails the context's communicators with ERR_CANCELLED. Raises WeftError: ERR_ARG, ERR_VERSION, ERR_NOMEM,
    ERR_SYSTEM. Threads: any.
    """

    _destructor = "context_destroy"

    def __init__(self, *, progress: Union[Progress, str] = Progress.THREAD,
                 log: Union[Callable[[LogLevel, str], None], None, Literal[False]] = None,
                 log_level: Optional[LogLevel] = None,
                 module_path: Optional[PathLike] = None, flight_path: Optional[PathLike] = None,
                 stream_waits: bool = False) -> None:
        if _interrupt.exiting:
            _interrupt.raise_raised()
            raise RuntimeError("the interpreter exits and has destroyed the objects of weftsync, so a new context would "
                               "never be destroyed: import weftsync before atexit.register, whose functions run in "
                               "reverse order")
        options = _abi.ContextOptions(version=VERSION_NUMBER, module_path=_path(module_path),
                                      flight_path=_path(flight_path))
        options.interrupt, options.interrupt_user_data = _interrupt.callback, _interrupt.user_data
        if stream_waits:
            options.flags |= ContextFlag.STREAM_WAITS
        options.progress = choice(Progress, progress, "progress")
        self._log = None
        if log is not False:
            report = _report if log is None else log
            if log is None:
                _follow_environment()
            if log_level is None:
                log_level = _logger_level() if log is None else LogLevel.WARN
            # The library calls the callback as long as the context exists, so the object keeps it alive.
            self._log = _interrupt.void_function(_abi.log_fn, functools.partial(_write, report))
            options.log, options.log_level = self._log, log_level
        handle, error = ctypes.c_void_p(), _abi.Error()
        code = lib.context_create(options, handle, error)
        if code:
            raise_error(code, error)
        super().__init__(handle)

    def unique_id(self) -> bytes:
        """Make the unique id of one communicator, on its rank 0 (weft_unique_id_create).

        The program sends it to the other ranks by its own means, and every rank creates Comm(unique_id=...) with it.
        Whoever has it can join. This context must create rank 0's communicator. Raises WeftError: ERR_SYSTEM if no port
        is free. Threads: any.
        """
        made, error = ctypes.create_string_buffer(UNIQUE_ID_BYTES), _abi.Error()
        code = lib.unique_id_create(self._handle, made, error)
        if code:
            raise_error(code, error)
        return made.raw

    def backends(self) -> list[BackendInfo]:
        """Return the backends that this library has or has loaded, available or not."""
        count, info, found = ctypes.c_uint64(), _abi.BackendInfo(), []
        check(lib.backend_count(self._handle, count))
        for index in range(count.value):
            check(lib.backend_query(self._handle, index, info))
            found.append(BackendInfo(info.name.decode(), bool(info.available), bool(info.is_module),
                                     info.reason.decode("utf-8", "replace")))
        return found

    def device(self, kind: Union[DeviceKind, str] = DeviceKind.CUDA) -> DeviceInfo:
        """Describe the devices of a kind. The first call loads the library of that kind. Threads: any."""
        info = _abi.DeviceInfo()
        check(lib.device_query(self._handle, choice(DeviceKind, kind, "kind"), info))
        return DeviceInfo(bool(info.available), info.device_count, info.reason.decode("utf-8", "replace"))

    def supports(self, backend: str, coll: Coll, dtype: Union[DType, str], op: Optional[Op] = None,
                 device: DeviceKind = DeviceKind.HOST) -> bool:
        """Return True if a backend executes a collective on elements of a type.

        backend  name of a backend
        dtype    a DType or its name
        op       the reduction; None for collectives without one
        device   where the buffers are
        """
        supported = ctypes.c_uint8()
        check(lib.capability(self._handle, backend.encode(), coll, dtype_of(dtype), op or 0, device, supported))
        return bool(supported.value)

    def metrics(self) -> str:
        """Return the metrics of the context's communicators and reducers in Prometheus's text format. Threads: any."""
        size = ctypes.c_uint64()
        check(lib.metrics_text(self._handle, None, size))
        while True:  # the text may be longer at the next call
            room = size.value + 4096
            size.value, text = room, ctypes.create_string_buffer(room)
            code = lib.metrics_text(self._handle, text, size)
            if size.value <= room:
                check(code)
                return text.value.decode()

    def trace_start(self, capacity: int = 0) -> None:
        """Start to record the events of all steps and collectives of the context.

        capacity is a number of events, 0 for 65536; after that the oldest events are overwritten. Raises WeftError
        ERR_STATE if a recording is running.
        """
        check(lib.trace_start(self._handle, capacity))

    def trace_stop(self) -> None:
        """Stop the recording; its events are kept for trace_write."""
        check(lib.trace_stop(self._handle))

    def trace_write(self, path: PathLike) -> None:
        """Write the recorded events to a file as a Chrome trace (JSON), which Perfetto and `weft report` open.

        Call it before the communicators are destroyed: it measures the offset of their clocks, for 0.5 s at most.
        """
        check(lib.trace_write(self._handle, os.fsencode(path)))


_logger = logging.getLogger("weftsync")
_LEVELS = {LogLevel.ERROR: logging.ERROR, LogLevel.WARN: logging.WARNING, LogLevel.INFO: logging.INFO,
           LogLevel.DEBUG: logging.DEBUG}


def _report(level: LogLevel, line: str) -> None:
    _logger.log(_LEVELS[level], "%s", line)


def _write(report: Callable[[LogLevel, str], None], _: int, level: int, line: int) -> None:
    text = ctypes.string_at(line).decode("utf-8", "replace")
    _log.write(functools.partial(report, LogLevel(level), text))


def _follow_environment() -> None:
    """Let the logger pass on what WEFT_LOG asks for, unless that goes to a file or the program has set its level.

    A logger without handlers prints warnings alone, so it gets one.
    """
    level = logging.getLevelName({"warn": "WARNING"}.get(asked := os.environ.get("WEFT_LOG", ""), asked.upper()))
    if not isinstance(level, int) or _logger.level != logging.NOTSET or os.environ.get("WEFT_LOG_FILE"):
        return
    _logger.setLevel(level)
    if not _logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("weft %(levelname)s: %(message)s"))
        _logger.addHandler(handler)


def _logger_level() -> LogLevel:
    """Return the least severe level that the logger passes on."""
    return max((one for one, level in _LEVELS.items() if _logger.isEnabledFor(level)), default=LogLevel.OFF)


def _path(path: Optional[PathLike]) -> Optional[bytes]:
    return None if path is None else os.fsencode(path)


def version() -> int:
    """Return the version of the loaded library: major * 10000 + minor * 100 + patch."""
    return int(lib.version())
