"""The collectives of Comm, on arrays.

Common to all: arrays are what weftsync._memory takes, row-major, used where they lie. Each call is made by every rank, in
the same order. With wait=False it returns a Request, and the arrays are lent to it until that is complete; otherwise
it returns when the operation is complete. timeout is the operation's deadline in seconds. A failure is a WeftError.

A result goes into an array that may be written to. An immutable one (a JAX array, a read-only NumPy
array) is a ValueError; Comm.new has each collective in a form that returns a new array. Arrays of bool
are reduced by "min", "max", "prod", "band", "bor" and "bxor".

While an array is lent, resizing it raises BufferError (bytearray, array.array) or ValueError (NumPy).
DLPack has no such guard: until the request is complete the program must not resize a tensor, replace its
storage (torch.Tensor's resize_, set_ and data) or donate it to a compiled function (JAX's donate_argnums).
"""
from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from typing import Any, Optional, Union

from . import _abi
from ._handle import milliseconds
from ._library import lib
from ._memory import Region, region
from ._new import NewArrays
from .constants import DType, Op, choice
from .request import Request

Operation = Union[Op, str]


def _op(op: Operation, part: Region) -> Op:
    operation = choice(Op, op, "op")
    if part.boolean and operation in (Op.SUM, Op.AVG, Op.PREMUL_SUM):
        raise ValueError(f"arrays of bool have no op {operation.name.lower()}; \"max\" is true where any "
                         "rank's is, \"min\" where every rank's is")
    return operation


class Collectives:
    """What Comm can do with arrays."""

    rank: int
    size: int
    _handle: ctypes.c_void_p
    _outstanding: list[Request]
    _grouped: Optional[list[Any]] = None  # what is lent to the open group

    @property
    def new(self) -> NewArrays:
        """The collectives in a form that returns a new array: `y = comm.new.all_reduce(x)`."""
        return NewArrays(self)

    def all_reduce(self, src: Any, dst: Any = None, op: Operation = Op.SUM, *, factor: float = 0.0,
                   timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """dst = op over ranks of src, on every rank, the same bits on all. dst None: in place.

        op is an Op or its name: "sum", "mean" ("avg", "average"), "prod", "min", "max", "band", "bor",
        "bxor", or "premul_sum", which multiplies by factor first.
        """
        src, dst = _pair(src, dst, 1, 1)
        return self._run(lib.all_reduce, [src, dst], src.address, dst.address, src.count, src.dtype,
                         _op(op, src), options=_options(timeout, factor), wait=wait)

    def reduce(self, src: Any, dst: Any = None, op: Operation = Op.SUM, *, root: int = 0, factor: float = 0.0,
               timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """As all_reduce, on root alone; dst is not touched elsewhere."""
        src, dst = _pair(src, dst, 1, 1, result=self.rank == root)
        return self._run(lib.reduce, [src, dst], src.address, dst.address, src.count, src.dtype,
                         _op(op, src), root, options=_options(timeout, factor), wait=wait)

    def broadcast(self, array: Any, root: int = 0, *, timeout: Optional[float] = None,
                  wait: bool = True) -> Optional[Request]:
        """array of root to all."""
        part = _array(array, writes=self.rank != root)
        return self._run(lib.broadcast, [part], part.address, part.count, part.dtype, root, options=_options(timeout),
                         wait=wait)

    def all_gather(self, src: Any, dst: Any, *, timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """src of every rank, in rank order, to all; dst has size times its elements."""
        src, dst = _pair(src, dst, 1, self.size)
        return self._run(lib.all_gather, [src, dst], src.address, dst.address, src.count, src.dtype,
                         options=_options(timeout), wait=wait)

    def reduce_scatter(self, src: Any, dst: Any, op: Operation = Op.SUM, *, factor: float = 0.0,
                       timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """dst = the reduction of block `rank` of src, which has size times its elements."""
        src, dst = _pair(src, dst, self.size, 1)
        return self._run(lib.reduce_scatter, [src, dst], src.address, dst.address, dst.count, src.dtype,
                         _op(op, src), options=_options(timeout, factor), wait=wait)

    def gather(self, src: Any, dst: Any = None, root: int = 0, *, timeout: Optional[float] = None,
               wait: bool = True) -> Optional[Request]:
        """src of every rank to root's dst, in rank order; dst may be None elsewhere."""
        src = _array(src, writes=False)
        dst = _optional(dst, src, self.rank == root, src.count * self.size, "dst")
        return self._run(lib.gather, [src, dst], src.address, dst.address if dst else None, src.count, src.dtype, root,
                         options=_options(timeout), wait=wait)

    def scatter(self, src: Any, dst: Any, root: int = 0, *, timeout: Optional[float] = None,
                wait: bool = True) -> Optional[Request]:
        """Block r of root's src to rank r's dst; src may be None elsewhere."""
        dst = _array(dst, writes=True)
        src = _optional(src, dst, self.rank == root, dst.count * self.size, "src")
        return self._run(lib.scatter, [src, dst], src.address if src else None, dst.address, dst.count, dst.dtype, root,
                         options=_options(timeout), wait=wait)

    def all_to_all(self, src: Any, dst: Any, *, timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """Block r of src to rank r; block r of dst from rank r. Not in place."""
        src, dst = _pair(src, dst, 1, 1)
        if src.count % self.size:
            raise ValueError(f"{src.count} elements are not {self.size} equal blocks")
        return self._run(lib.all_to_all, [src, dst], src.address, dst.address, src.count // self.size, src.dtype,
                         options=_options(timeout), wait=wait)

    def all_gather_v(self, src: Any, dst: Any, counts: Sequence[int], offsets: Optional[Sequence[int]] = None, *,
                     timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """counts[r] elements of rank r, to all, at offsets[r] of dst (None: one after the other)."""
        src, dst, blocks = _array(src, writes=False), _array(dst, writes=True), _Blocks(counts, offsets, self.size)
        blocks.check(src, blocks.counts[self.rank], "src")
        blocks.check(dst, blocks.end, "dst")
        _same_type(src, dst)
        return self._run(lib.all_gather_v, [src, dst], src.address, dst.address, *blocks.arrays, src.dtype,
                         options=_options(timeout), wait=wait)

    def reduce_scatter_v(self, src: Any, dst: Any, counts: Sequence[int], op: Operation = Op.SUM,
                         offsets: Optional[Sequence[int]] = None, *, factor: float = 0.0,
                         timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """dst = the reduction of block `rank` of src; block r has counts[r] elements at offsets[r]."""
        src, dst, blocks = _array(src, writes=False), _array(dst, writes=True), _Blocks(counts, offsets, self.size)
        blocks.check(src, blocks.end, "src")
        blocks.check(dst, blocks.counts[self.rank], "dst")
        _same_type(src, dst)
        return self._run(lib.reduce_scatter_v, [src, dst], src.address, dst.address, *blocks.arrays,
                         dst.dtype, _op(op, dst), options=_options(timeout, factor), wait=wait)

    def gather_v(self, src: Any, dst: Any, counts: Sequence[int], offsets: Optional[Sequence[int]] = None,
                 root: int = 0, *, timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """counts[r] elements of rank r to root's dst, at offsets[r]; dst may be None elsewhere."""
        src, blocks = _array(src, writes=False), _Blocks(counts, offsets, self.size)
        blocks.check(src, blocks.counts[self.rank], "src")
        dst = _array(dst, writes=True) if self.rank == root else None
        if dst:
            blocks.check(dst, blocks.end, "dst")
            _same_type(src, dst)
        return self._run(lib.gather_v, [src, dst], src.address, dst.address if dst else None, *blocks.arrays, src.dtype,
                         root, options=_options(timeout), wait=wait)

    def scatter_v(self, src: Any, dst: Any, counts: Sequence[int], offsets: Optional[Sequence[int]] = None,
                  root: int = 0, *, timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """Block r of root's src to rank r's dst; src may be None elsewhere."""
        dst, blocks = _array(dst, writes=True), _Blocks(counts, offsets, self.size)
        blocks.check(dst, blocks.counts[self.rank], "dst")
        src = _array(src, writes=False) if self.rank == root else None
        if src:
            blocks.check(src, blocks.end, "src")
            _same_type(src, dst)
        return self._run(lib.scatter_v, [src, dst], src.address if src else None, dst.address, *blocks.arrays, dst.dtype,
                         root, options=_options(timeout), wait=wait)

    def all_to_all_v(self, src: Any, src_counts: Sequence[int], dst: Any, dst_counts: Sequence[int], *,
                     src_offsets: Optional[Sequence[int]] = None, dst_offsets: Optional[Sequence[int]] = None,
                     timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """Block r of src to rank r; block r of dst from rank r. Not in place."""
        src, dst = _array(src, writes=False), _array(dst, writes=True)
        given, taken = _Blocks(src_counts, src_offsets, self.size), _Blocks(dst_counts, dst_offsets, self.size)
        given.check(src, given.end, "src")
        taken.check(dst, taken.end, "dst")
        _same_type(src, dst)
        return self._run(lib.all_to_all_v, [src, dst], src.address, *given.arrays, dst.address, *taken.arrays, src.dtype,
                         options=_options(timeout), wait=wait)

    @contextlib.contextmanager
    def group(self) -> Iterator[None]:
        """Launch the calls of a with-block together, at its end: sends and receives may come in any order.

        Calls that wait complete with the block as well.
        """
        self._raise(lib.group_begin(self._handle))
        self._grouped = []
        try:
            yield
        finally:
            code = lib.group_end(self._handle, None)
            self._grouped = None
        self._raise(code)

    def barrier(self, *, timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """Complete when all ranks have called it."""
        return self._run(lib.barrier, [], options=_options(timeout), wait=wait)

    def send(self, src: Any, peer: int, *, timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """src to one rank, which receives it; matched in order per pair of ranks."""
        part = _array(src, writes=False)
        return self._run(lib.send, [part], part.address, part.count, part.dtype, peer, options=_options(timeout),
                         wait=wait)

    def recv(self, dst: Any, peer: int, *, timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """dst from one rank, which sends it."""
        part = _array(dst, writes=True)
        return self._run(lib.recv, [part], part.address, part.count, part.dtype, peer, options=_options(timeout),
                         wait=wait)

    def _raise(self, code: int) -> None:
        raise NotImplementedError

    def _run(self, call: Any, lent: list[Any], *arguments: Any, options: Optional[_abi.CollOptions],
             wait: bool) -> Optional[Request]:
        self._outstanding = [one for one in self._outstanding if not one.over()]
        if wait:
            self._raise(call(self._handle, *arguments, options, None))
            if self._grouped is not None:
                self._grouped.append(lent)
            return None
        handle = ctypes.c_void_p()
        self._raise(call(self._handle, *arguments, options, handle))
        request = Request(handle, lent)
        self._outstanding.append(request)
        return request


class _Blocks:
    """Where the blocks of the ranks lie, in elements."""

    def __init__(self, counts: Sequence[int], offsets: Optional[Sequence[int]], size: int):
        if len(counts) != size or (offsets is not None and len(offsets) != size):
            raise ValueError(f"there is one count, and one offset, for each of {size} ranks")
        self.counts = [int(count) for count in counts]
        starts = [sum(self.counts[:r]) for r in range(size)] if offsets is None else [int(at) for at in offsets]
        self.end = max((at + count for at, count in zip(starts, self.counts) if count), default=0)
        numbers = ctypes.c_uint64 * size
        self.arrays = (numbers(*self.counts), None if offsets is None else numbers(*starts))

    @staticmethod
    def check(part: Region, needed: int, name: str) -> None:
        if part.count < needed:
            raise ValueError(f"{name} has {part.count} elements, needed are {needed}")


def _options(timeout: Optional[float], factor: float = 0.0) -> Optional[_abi.CollOptions]:
    if timeout is None and not factor:
        return None
    return _abi.CollOptions(timeout_ms=milliseconds(timeout), factor=factor)


def _array(array: Any, writes: bool) -> Region:
    part = region(array)
    if part.dtype in (DType.C64, DType.C128):
        raise TypeError("collectives take no complex numbers; view them as pairs of real ones")
    if not part.row_major:
        raise ValueError("collectives take row-major arrays; this one is strided (make a copy, or reshape it)")
    if writes and not part.writable:
        raise ValueError(f"this {type(array).__name__} is read-only, and the result goes into it; the "
                         "collectives of Comm.new return a new array: y = comm.new.all_reduce(x)")
    return part


def _type(part: Region) -> str:
    return "BOOL" if part.boolean else part.dtype.name


def _same_type(src: Region, dst: Region) -> None:
    if _type(src) != _type(dst):
        raise ValueError(f"src is {_type(src)}, dst is {_type(dst)}")


def _pair(src: Any, dst: Any, src_blocks: int, dst_blocks: int, result: bool = True) -> tuple[Region, Region]:
    """Where src and dst are, after a look that they fit: src_blocks of the one are dst_blocks of the other."""
    source = _array(src, writes=dst is None and result)
    target = source if dst is None else _array(dst, writes=result)
    _same_type(source, target)
    if source.count * dst_blocks != target.count * src_blocks:
        raise ValueError(f"src has {source.count} elements, dst {target.count}: the blocks do not fit")
    return source, target


def _optional(array: Any, like: Region, needed: bool, count: int, name: str) -> Optional[Region]:
    """The larger array of gather and scatter, which root alone needs."""
    if not needed:
        return None
    if array is None:
        raise ValueError(f"root needs {name}")
    part = _array(array, writes=name == "dst")
    if _type(part) != _type(like) or part.count != count:
        raise ValueError(f"{name} has {part.count} elements of {_type(part)}, needed are {count} of "
                         f"{_type(like)}")
    return part
