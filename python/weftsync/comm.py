"""Comm: creates, splits, shrinks and queries communicators. _collectives.py has its collectives."""
from __future__ import annotations

import collections
import ctypes
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np

from . import _abi, _interrupt
from ._collectives import Collectives
from ._handle import Handle, encoded, milliseconds
from ._library import check, lib, raise_error
from ._memory import dtype_of, memory_array
from .constants import COLOR_NONE, UNIQUE_ID_BYTES, Bootstrap, CommFlag, DType, ShrinkFlag
from .context import Context, PathLike
from .errors import WeftError
from .request import Request

# Sends this rank's bytes to all ranks and returns the bytes of every rank, in rank order, all equally long.
AllGather = Callable[[bytes], "list[bytes]"]


class CommInfo(NamedTuple):
    """Topology, backend and counters of a communicator (weft_comm_info).

    rank, size      this rank, and the number of ranks
    local_size      number of ranks on this host
    failed          True once the communicator has failed
    authenticated   True if the members proved that they hold the job's secret, or the key that all_gather exchanged
    backend         name of the backend
    algorithm       algorithm of the last completed collective
    operations      number of completed operations
    bytes_shared    payload bytes that this rank moved through shared memory
    bytes_direct    payload bytes that this rank read or wrote in the private memory of other processes
    bytes_sent      payload bytes that this rank handed to a transport
    bytes_received  payload bytes that this rank received from a transport
    arena_bytes     bytes of this rank's arena that are populated
    transports      network that carries messages ("tcp/eth0"), and the sizes at which shm changes its algorithm
    local_rank      number of this rank among those of its host, in the order of ranks
    host_index      number of this host; hosts are in the order of their lowest ranks
    host_count      number of hosts, simulated ones (WEFT_HOSTS) included
    """

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
    local_rank: int
    host_index: int
    host_count: int


def _text(value: Any) -> Any:
    """Decode bytes; return other values as they are."""
    return value.decode() if isinstance(value, bytes) else value


class Comm(Collectives, Handle):
    """A communicator: a fixed set of ranks that call the same collectives in the same order (see Collectives).

    Creating a communicator waits for the other ranks, for at most init_timeout. The bootstrap uses one of:
    - the environment of `weft run`, mpirun, torchrun or srun, without rank, size, store and all_gather
    - store, with rank and size
    - all_gather, with rank and size
    - unique_id, with rank and size

    context            the Context; None: a new one with defaults
    rank, size         this rank, 0 <= rank < size, and the number of ranks
    store              address at which the ranks exchange their addresses: "tcp://host:port", "file:///folder" (a
                       folder that all hosts see) or "unix:@name" on one host. Rank 0 serves it unless
                       external_store is set
    all_gather         function that exchanges bytes over the program's own channel; called several times on the
                       creating thread, in the same order on all ranks. The channel is trusted: it carries the
                       communicator's key
    unique_id          bytes of rank 0's Context.unique_id, which the program has sent to the other ranks; they have a
                       key of their own
    secret             the job's secret, 16 to 256 bytes; without one only loopback addresses or a folder are used; not
                       for unique_id
    backend            "shm", "ucx", "loopback" and so on; None: WEFT_BACKEND, else the best that is available
    init_timeout       seconds; None: 60
    timeout            default deadline of operations in seconds; None: 300
    heartbeat_timeout  a rank that sends nothing for so many seconds has failed; at least 0.1, math.inf disables the
                       check, None: WEFT_HEARTBEAT_MS, else 5. The smallest value of all ranks applies
    arena_limit_bytes  address space reserved for `alloc`, in bytes; 0: 64 GiB
    external_store     True: the store is a process of its own (`weft store`)
    device             index of this rank's CUDA device; None: the calling thread's current device

    Raises ValueError for another combination of rank, size, store, all_gather and unique_id. Raises WeftError: ERR_TIMEOUT names
    the ranks that did not come; ERR_AUTH, ERR_VERSION and ERR_MISMATCH name the difference; ERR_UNAVAILABLE names what
    the backend lacks. An exception of all_gather is the error's __cause__.

    `close` leaves the communicator: its arrays of `alloc` must not be used afterwards.

    Threads: one at a time; abort, alloc, error, flight_write, free and query from any thread.
    """

    _destructor = "comm_destroy"

    def __init__(self, context: Optional[Context] = None, *, rank: Optional[int] = None, size: Optional[int] = None,
                 store: Optional[str] = None, all_gather: Optional[AllGather] = None,
                 unique_id: Optional[bytes] = None, secret: Optional[bytes] = None, backend: Optional[str] = None,
                 init_timeout: Optional[float] = None, timeout: Optional[float] = None,
                 heartbeat_timeout: Optional[float] = None, arena_limit_bytes: int = 0,
                 external_store: bool = False, device: Optional[int] = None) -> None:
        options = _abi.CommOptions(store=encoded(store), backend=encoded(backend), arena_limit_bytes=arena_limit_bytes,
                                   init_timeout_ms=milliseconds(init_timeout), op_timeout_ms=milliseconds(timeout),
                                   heartbeat_timeout_ms=milliseconds(heartbeat_timeout))
        given = (store is not None) + (all_gather is not None) + (unique_id is not None)
        if given > 1 or (given == 1) != (rank is not None) or (given == 1) != (size is not None):
            named = {"rank": rank, "size": size, "store": store, "all_gather": all_gather, "unique_id": unique_id}
            got = ", ".join(name for name, value in named.items() if value is not None)
            raise ValueError("expected rank and size together with one of store, all_gather and unique_id, or none of "
                             f"the five; got {got}")
        if given == 1:
            options.bootstrap = (Bootstrap.CALLBACK if all_gather is not None else
                                 Bootstrap.UNIQUE_ID if unique_id is not None else Bootstrap.STORE)
            options.rank, options.size = rank, size
        if unique_id is not None:
            if len(unique_id) != UNIQUE_ID_BYTES:
                raise ValueError(f"unique_id has {len(unique_id)} bytes; expected {UNIQUE_ID_BYTES}, those of "
                                 "Context.unique_id")
            options.unique_id = ctypes.cast(ctypes.c_char_p(unique_id), ctypes.c_void_p)
        failures: list[BaseException] = []
        if all_gather is not None:
            call = _gathering(all_gather, int(size or 0), failures)
            options.all_gather = _interrupt.c_function(_abi.all_gather_fn, call, 1)
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
            raise failures[0]  # KeyboardInterrupt or the like, from a signal handler
        if code:
            raise_error(code, error, failures[0] if failures else None)
        self._adopt(context, handle)

    def _adopt(self, context: Context, handle: ctypes.c_void_p) -> None:
        """Take ownership of a new handle."""
        Handle.__init__(self, handle)
        self.context = context
        self._outstanding: collections.deque[Request] = collections.deque()
        self._before_close: list[Callable[[], None]] = []
        info = self.query()
        self.rank, self.size = info.rank, info.size

    def _derived(self, handle: ctypes.c_void_p) -> Comm:
        """Make a Comm for a handle that split or shrink returned."""
        comm = Comm.__new__(Comm)
        comm._adopt(self.context, handle)
        return comm

    def close(self) -> None:
        """Leave the communicator and destroy it; a second call does nothing. See Handle.close."""
        while self._before_close:
            self._before_close.pop()()
        super().close()

    def query(self) -> CommInfo:
        """Return topology, backend and counters. Threads: any."""
        info = _abi.CommInfo()
        check(lib.comm_query(self._handle, info))
        fields = CommInfo(*(_text(getattr(info, name)) for name in CommInfo._fields))
        return fields._replace(failed=bool(info.failed), authenticated=bool(info.authenticated))

    def split(self, color: Optional[int], key: int = 0) -> Optional[Comm]:
        """Split the communicator: return a new one of the ranks with the same color. Collective.

        The new ranks are ordered by key, then by old rank. A rank with color None takes part and receives None. Blocks
        for at most the init timeout. Raises WeftError as creation does; it names ranks of this communicator.
        """
        handle, error = ctypes.c_void_p(), _abi.Error()
        code = lib.comm_split(self._handle, COLOR_NONE if color is None else color, key, handle, error)
        if code:
            raise_error(code, error)
        return self._derived(handle) if handle.value else None

    def shrink(self, *, timeout: Optional[float] = None, last_of_two: bool = False) -> Comm:
        """Return a communicator of the surviving ranks, after this one has failed. Collective over the survivors.

        The survivors keep their order, and must be a majority of this communicator's ranks.

        timeout      seconds; None: the communicator's init timeout
        last_of_two  with two ranks, one may continue alone. If the other rank is alive, it may do the same

        Raises WeftError: ERR_STATE while the communicator still works (abort fails it), ERR_MINORITY without a
        majority, ERR_TIMEOUT with the survivors that did not call shrink.
        """
        options = _abi.ShrinkOptions(timeout_ms=milliseconds(timeout),
                                     flags=ShrinkFlag.LAST_OF_TWO if last_of_two else 0)
        handle, error = ctypes.c_void_p(), _abi.Error()
        code = lib.comm_shrink(self._handle, options, handle, error)
        if code:
            raise_error(code, error)
        return self._derived(handle)

    def abort(self, reason: Optional[str] = None) -> None:
        """Fail the communicator on all ranks with ERR_ABORTED and this reason.

        Returns at once; repeated calls do nothing. Threads: any, also inside callbacks.
        """
        check(lib.comm_abort(self._handle, encoded(reason)))

    def error(self) -> Optional[WeftError]:
        """Return the communicator's first failure, or None while it works. Threads: any."""
        try:
            error = _abi.Error()
            code = lib.comm_error(self._handle, error)
            if code:
                raise_error(code, error)
        except WeftError as failure:
            return failure
        return None

    def alloc(self, shape: Union[int, tuple[int, ...]], dtype: Any = DType.F32) -> np.ndarray[Any, Any]:
        """Allocate a zeroed array in arena memory, which other ranks access directly: the fastest place for buffers.

        shape  one extent, or a tuple of extents
        dtype  a DType, its name or a NumPy type; BF16 elements appear as uint16

        The array must not be used after `free` or `close`. With shm, a process made by fork (a data loader's worker)
        does not have the memory, and ends with SIGSEGV if it touches it. Raises WeftError: ERR_ARG for an array
        without elements, ERR_NOMEM at arena_limit_bytes or if the machine has no memory. Threads: any.
        """
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        kind, memory = dtype_of(dtype), ctypes.c_void_p()
        self._raise(lib.comm_alloc(self._handle, int(np.prod(shape, dtype=np.int64)) * kind.size, memory))
        return memory_array(memory.value or 0, kind, shape, None, self)

    def free(self, array: np.ndarray[Any, Any]) -> None:
        """Free an array of `alloc`, which no operation may be using. Threads: any."""
        self._raise(lib.comm_free(self._handle, array.__array_interface__["data"][0]))

    def flight_write(self, folder: PathLike) -> None:
        """Write this rank's flight record (its last operations) into folder, for `weft trace explain`.

        Raises WeftError ERR_SYSTEM if the file cannot be written. Threads: any, not inside a callback.
        """
        self._raise(lib.flight_write(self._handle, str(folder).encode()))

    def _raise(self, code: int) -> None:
        check(code)


def _gathering(all_gather: AllGather, size: int, failures: list[BaseException]) -> Callable[..., int]:
    """Make the library's all_gather callback of the program's function. Its exceptions are appended to failures."""
    def call(_: int, mine: int, count: int, everything: int) -> int:
        try:
            parts = all_gather(ctypes.string_at(mine, count) if count else b"")
            if len(parts) != size or any(len(part) != count for part in parts):
                raise ValueError(f"all_gather returned parts of {[len(part) for part in parts]} bytes, expected {size} "
                                 f"parts of {count} bytes")
            ctypes.memmove(everything, b"".join(parts), size * count)
            return 0
        except BaseException as error:  # must not propagate into C code; Comm() raises it
            failures.append(error)
            return 1
    return call
