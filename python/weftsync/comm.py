"""Comm: ranks with an order of operations. How it is formed, and what is not a collective."""
from __future__ import annotations

import ctypes
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np

from . import _abi
from ._collectives import Collectives
from ._handle import Handle, encoded, milliseconds
from ._library import check, lib, raise_error
from ._memory import dtype_of, memory_array
from .constants import COLOR_NONE, Bootstrap, CommFlag, DType, ShrinkFlag
from .context import Context, PathLike
from .errors import WeftError
from .request import Request

# Receives this rank's bytes, returns every rank's, in rank order.
AllGather = Callable[[bytes], "list[bytes]"]


class CommInfo(NamedTuple):
    """Topology, backend and counters of bytes (weft_comm_info)."""

    rank: int
    size: int
    local_size: int
    failed: bool
    authenticated: bool
    backend: str
    algorithm: str
    operations: int
    bytes_shared: int
    bytes_direct: int
    bytes_sent: int
    bytes_received: int
    arena_bytes: int
    transports: str


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


class Comm(Collectives, Handle):
    """A communicator. Its collectives (all_reduce and so on) are called by every rank, in the same order.

    Without arguments rank, size and meeting point come from the environment: `weft run`, mpirun, torchrun, srun. With
    `store` the ranks meet at that address ("tcp://host:port", or "unix:@name" on one host); with `all_gather` over a
    channel of the program's own. Times are in seconds; None is the default that weft.h names. `device` is the index of
    this rank's CUDA device, by default the calling thread's current one.

    Threads: one at a time, except abort, error and query.
    """

    _destructor = "comm_destroy"

    def __init__(self, context: Optional[Context] = None, *, rank: Optional[int] = None, size: Optional[int] = None,
                 store: Optional[str] = None, all_gather: Optional[AllGather] = None,
                 secret: Optional[bytes] = None, backend: Optional[str] = None,
                 init_timeout: Optional[float] = None, timeout: Optional[float] = None,
                 heartbeat_timeout: Optional[float] = None, arena_limit_bytes: int = 0,
                 external_store: bool = False, device: Optional[int] = None) -> None:
        options = _abi.CommOptions(store=encoded(store), backend=encoded(backend), arena_limit_bytes=arena_limit_bytes,
                                   init_timeout_ms=milliseconds(init_timeout), op_timeout_ms=milliseconds(timeout),
                                   heartbeat_timeout_ms=milliseconds(heartbeat_timeout))
        given = (store is not None) + (all_gather is not None)
        if given > 1 or (given == 1) != (rank is not None) or (given == 1) != (size is not None):
            raise ValueError("give rank and size with either store or all_gather, or none of them")
        if given == 1:
            options.bootstrap = Bootstrap.CALLBACK if all_gather is not None else Bootstrap.STORE
            options.rank, options.size = rank, size
        failures: list[BaseException] = []
        if all_gather is not None:
            options.all_gather = _abi.all_gather_fn(_gathering(all_gather, int(size or 0), failures))
        if secret is not None:
            options.secret = ctypes.cast(ctypes.c_char_p(secret), ctypes.c_void_p)
            options.secret_bytes = len(secret)
        if external_store:
            options.flags |= CommFlag.STORE_EXTERNAL
        if device is not None:
            options.flags |= CommFlag.DEVICE
            options.device = device
        context = context or Context()
        handle, error = ctypes.c_void_p(), _abi.Error()
        code = lib.comm_create(context._handle, options, handle, error)
        if failures and not isinstance(failures[0], Exception):
            raise failures[0]  # a signal handler's
        if code:
            raise_error(code, error)
        self._adopt(context, handle)

    def _adopt(self, context: Context, handle: ctypes.c_void_p) -> None:
        Handle.__init__(self, handle)
        self.context = context
        self._outstanding: list[Request] = []
        info = self.query()
        self.rank, self.size = info.rank, info.size

    def _derived(self, handle: ctypes.c_void_p) -> Comm:
        comm = Comm.__new__(Comm)
        comm._adopt(self.context, handle)
        return comm

    def query(self) -> CommInfo:
        """Topology, backend and counters."""
        info = _abi.CommInfo()
        check(lib.comm_query(self._handle, info))
        fields = CommInfo(*(_text(getattr(info, name)) for name in CommInfo._fields))
        return fields._replace(failed=bool(info.failed), authenticated=bool(info.authenticated))

    def split(self, color: Optional[int], key: int = 0) -> Optional[Comm]:
        """The part of the ranks with this color, ordered by key; None for color None. Collective."""
        handle, error = ctypes.c_void_p(), _abi.Error()
        code = lib.comm_split(self._handle, COLOR_NONE if color is None else color, key, handle, error)
        if code:
            raise_error(code, error)
        return self._derived(handle) if handle.value else None

    def shrink(self, *, timeout: Optional[float] = None, last_of_two: bool = False) -> Comm:
        """A communicator of the survivors of this one, which has failed. Collective over them."""
        options = _abi.ShrinkOptions(timeout_ms=milliseconds(timeout),
                                     flags=ShrinkFlag.LAST_OF_TWO if last_of_two else 0)
        handle, error = ctypes.c_void_p(), _abi.Error()
        code = lib.comm_shrink(self._handle, options, handle, error)
        if code:
            raise_error(code, error)
        return self._derived(handle)

    def abort(self, reason: Optional[str] = None) -> None:
        """Fail the communicator on all ranks. Threads: any."""
        check(lib.comm_abort(self._handle, encoded(reason)))

    def error(self) -> Optional[WeftError]:
        """Its first failure, or None while it works. Threads: any."""
        try:
            error = _abi.Error()
            code = lib.comm_error(self._handle, error)
            if code:
                raise_error(code, error)
        except WeftError as failure:
            return failure
        return None

    def alloc(self, shape: Union[int, tuple[int, ...]], dtype: Any = DType.F32) -> np.ndarray[Any, Any]:
        """An array, zeroed, in memory that peers reach directly: the fastest place for buffers.

        It lives until `free` or `close`; it must not be used after that. BF16 elements appear as uint16.
        Over shm a process made by fork (a data loader's worker) does not have it: one that touches it
        ends with SIGSEGV.
        """
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        kind, memory = dtype_of(dtype), ctypes.c_void_p()
        check(lib.comm_alloc(self._handle, int(np.prod(shape, dtype=np.int64)) * kind.size, memory))
        return memory_array(memory.value or 0, kind, shape, None, self)

    def free(self, array: np.ndarray[Any, Any]) -> None:
        """Give an array of `alloc` back. Threads: any."""
        check(lib.comm_free(self._handle, array.__array_interface__["data"][0]))

    def flight_write(self, folder: PathLike) -> None:
        """Write what this rank did last into folder, for `weft trace explain`."""
        check(lib.flight_write(self._handle, str(folder).encode()))

    def _raise(self, code: int) -> None:
        check(code, lambda error: lib.comm_error(self._handle, error))


def _gathering(all_gather: AllGather, size: int, failures: list[BaseException]) -> Callable[..., int]:
    def call(_: Any, mine: int, count: int, everything: int) -> int:
        try:
            parts = all_gather(ctypes.string_at(mine, count) if count else b"")
            if len(parts) != size or any(len(part) != count for part in parts):
                return 1
            ctypes.memmove(everything, b"".join(parts), size * count)
            return 0
        except BaseException as error:  # none crosses the library; comm_create reports the failure
            failures.append(error)
            return 1
    return call
