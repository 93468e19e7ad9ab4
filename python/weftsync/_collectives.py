"""The collectives of Comm. They read and write the caller's arrays without a copy.

Common to all collectives:

Arrays    NumPy arrays, and objects with __dlpack__ or the buffer protocol, in host memory and row-major. Counts and
          offsets are in elements.
Order     Every rank makes the same calls in the same order, with the same dtype, op and root. send and recv are matched
          per pair of ranks and have no place in that order; nor have tagged messages.
Results   The array that receives the result must be writable. A read-only one (a JAX array, a read-only NumPy array)
          raises ValueError; Comm.new has each collective in a form that returns a new array. A result array of another
          dtype or size also raises ValueError.
wait      True: the call returns when the operation is complete. False: it returns a Request at once, and the operation
          uses the arrays until that request is complete.
timeout   The operation's deadline in seconds, counted from the call. None: the communicator's timeout.
Errors    WeftError: the communicator's failure, or ERR_TIMEOUT, ERR_MISMATCH, ERR_PEER_FAILED and so on; it names the
          ranks at fault. ValueError and TypeError: an argument of this rank does not fit; nothing was sent.
Threads   One thread at a time per communicator.
op        An Op or its name: "sum", "mean" ("avg", "average"), "prod", "min", "max", "band", "bor", "bxor" or
          "premul_sum"; or a Reduction, a function of the program, in all_reduce, reduce and reduce_scatter. Complex
          numbers have sums and means only. Of bool, "sum", "max" and "bor" are a logical or, "prod", "min" and "band" a
          logical and.

While an operation uses an array, resizing the array raises BufferError (bytearray, array.array) or ValueError (NumPy).
Closing or resizing the memory that a NumPy array was made of (numpy.memmap, mmap, SharedMemory) raises BufferError, and
an array whose memory was closed before raises ValueError. Read-only flags are checked at the call alone.

Some memory has no such guard. Until the request is complete the program must not resize a tensor or its storage
(resize_ of torch), nor donate it to a compiled function (donate_argnums of JAX). The same holds for ctypes.resize and
ndarray.__setstate__, and for a mapped file that is truncated. A tensor that gets another storage (set_ and data of
torch.Tensor) does not receive the result.
"""
from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Optional, Union, overload

import numpy as np

from . import _abi
from ._handle import milliseconds
from ._library import lib
from ._memory import Region, memory_array, region
from ._new import NewArrays
from .constants import ANY_SOURCE, ANY_TAG, DType, Op, choice
from .errors import WeftError
from .reduction import Reduction, add_cause
from .request import Request

Operation = Union[Op, str, Reduction]
_TESTED = 16  # number of outstanding requests that a call tests


def _op(op: Operation) -> Op:
    """Convert op to an Op."""
    return Op.USER if isinstance(op, Reduction) else choice(Op, op, "op")


class Collectives:
    """The collectives, as a base class of Comm."""

    rank: int
    size: int
    _handle: ctypes.c_void_p
    _outstanding: collections.deque[Request]
    _grouped: Optional[list[Any]] = None  # the arrays that calls of the open group use

    @property
    def new(self) -> NewArrays:
        """The collectives in a form that returns a new array: `y = comm.new.all_reduce(x)`. See NewArrays."""
        return NewArrays(self)

    @overload
    def all_reduce(self, src: Any, dst: Any = ..., op: Operation = ..., *, factor: float = ...,
                   timeout: Optional[float] = ..., wait: Literal[True] = ...) -> None: ...

    @overload
    def all_reduce(self, src: Any, dst: Any = ..., op: Operation = ..., *, factor: float = ...,
                   timeout: Optional[float] = ..., wait: Literal[False]) -> Request: ...

    @overload
    def all_reduce(self, src: Any, dst: Any = ..., op: Operation = ..., *, factor: float = ...,
                   timeout: Optional[float] = ..., wait: bool) -> Optional[Request]: ...

    def all_reduce(self, src: Any, dst: Any = None, op: Operation = Op.SUM, *, factor: float = 0.0,
                   timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """Reduce src over all ranks into dst, on every rank, with the same bits on all.

        dst has as many elements as src; None reduces in place.

        "premul_sum" multiplies each element by factor first. factor must be set for it, equal on all ranks; other ops
        refuse a factor.
        """
        src, dst = _pair(src, dst, 1, 1)
        return self._run(lib.all_reduce, [src, dst, op], src.address, dst.address, src.count, src.dtype,
                         _op(op), options=_options(timeout, factor, op), wait=wait)

    @overload
    def reduce(self, src: Any, dst: Any = ..., op: Operation = ..., *, root: int = ..., factor: float = ...,
               timeout: Optional[float] = ..., wait: Literal[True] = ...) -> None: ...

    @overload
    def reduce(self, src: Any, dst: Any = ..., op: Operation = ..., *, root: int = ..., factor: float = ...,
               timeout: Optional[float] = ..., wait: Literal[False]) -> Request: ...

    @overload
    def reduce(self, src: Any, dst: Any = ..., op: Operation = ..., *, root: int = ..., factor: float = ...,
               timeout: Optional[float] = ..., wait: bool) -> Optional[Request]: ...

    def reduce(self, src: Any, dst: Any = None, op: Operation = Op.SUM, *, root: int = 0, factor: float = 0.0,
               timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """Reduce src over all ranks into dst on the rank root, as all_reduce does.

        Other ranks leave dst as it is, and may pass None.
        """
        src, dst = _pair(src, dst, 1, 1, result=self.rank == root)
        return self._run(lib.reduce, [src, dst, op], src.address, dst.address, src.count, src.dtype,
                         _op(op), root, options=_options(timeout, factor, op), wait=wait)

    @overload
    def broadcast(self, array: Any, root: int = ..., *, timeout: Optional[float] = ...,
                  wait: Literal[True] = ...) -> None: ...

    @overload
    def broadcast(self, array: Any, root: int = ..., *, timeout: Optional[float] = ...,
                  wait: Literal[False]) -> Request: ...

    @overload
    def broadcast(self, array: Any, root: int = ..., *, timeout: Optional[float] = ...,
                  wait: bool) -> Optional[Request]: ...

    def broadcast(self, array: Any, root: int = 0, *, timeout: Optional[float] = None,
                  wait: bool = True) -> Optional[Request]:
        """Copy the array of the rank root into the array of every other rank."""
        part = _array(array, writes=self.rank != root)
        return self._run(lib.broadcast, [part], part.address, part.count, part.dtype, root, options=_options(timeout),
                         wait=wait)

    @overload
    def all_gather(self, src: Any, dst: Any, *, timeout: Optional[float] = ..., wait: Literal[True] = ...) -> None: ...

    @overload
    def all_gather(self, src: Any, dst: Any, *, timeout: Optional[float] = ..., wait: Literal[False]) -> Request: ...

    @overload
    def all_gather(self, src: Any, dst: Any, *, timeout: Optional[float] = ..., wait: bool) -> Optional[Request]: ...

    def all_gather(self, src: Any, dst: Any, *, timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """Gather src of every rank into dst on all ranks, in rank order. dst has size times the elements of src."""
        src, dst = _pair(src, dst, 1, self.size)
        return self._run(lib.all_gather, [src, dst], src.address, dst.address, src.count, src.dtype,
                         options=_options(timeout), wait=wait)

    @overload
    def reduce_scatter(self, src: Any, dst: Any, op: Operation = ..., *, factor: float = ...,
                       timeout: Optional[float] = ..., wait: Literal[True] = ...) -> None: ...

    @overload
    def reduce_scatter(self, src: Any, dst: Any, op: Operation = ..., *, factor: float = ...,
                       timeout: Optional[float] = ..., wait: Literal[False]) -> Request: ...

    @overload
    def reduce_scatter(self, src: Any, dst: Any, op: Operation = ..., *, factor: float = ...,
                       timeout: Optional[float] = ..., wait: bool) -> Optional[Request]: ...

    def reduce_scatter(self, src: Any, dst: Any, op: Operation = Op.SUM, *, factor: float = 0.0,
                       timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """Reduce src over all ranks; rank r receives block r in dst. src has size times the elements of dst."""
        src, dst = _pair(src, dst, self.size, 1)
        return self._run(lib.reduce_scatter, [src, dst, op], src.address, dst.address, dst.count, src.dtype,
                         _op(op), options=_options(timeout, factor, op), wait=wait)

    @overload
    def gather(self, src: Any, dst: Any = ..., root: int = ..., *, timeout: Optional[float] = ...,
               wait: Literal[True] = ...) -> None: ...

    @overload
    def gather(self, src: Any, dst: Any = ..., root: int = ..., *, timeout: Optional[float] = ...,
               wait: Literal[False]) -> Request: ...

    @overload
    def gather(self, src: Any, dst: Any = ..., root: int = ..., *, timeout: Optional[float] = ...,
               wait: bool) -> Optional[Request]: ...

    def gather(self, src: Any, dst: Any = None, root: int = 0, *, timeout: Optional[float] = None,
               wait: bool = True) -> Optional[Request]:
        """Gather src of every rank into dst on the rank root, in rank order.

        dst has size times the elements of src. Other ranks do not use it and may pass None.
        """
        src = _array(src, writes=False)
        dst = _optional(dst, src, self.rank == root, src.count * self.size, "dst")
        return self._run(lib.gather, [src, dst], src.address, dst.address if dst else None, src.count, src.dtype, root,
                         options=_options(timeout), wait=wait)

    @overload
    def scatter(self, src: Any, dst: Any, root: int = ..., *, timeout: Optional[float] = ...,
                wait: Literal[True] = ...) -> None: ...

    @overload
    def scatter(self, src: Any, dst: Any, root: int = ..., *, timeout: Optional[float] = ...,
                wait: Literal[False]) -> Request: ...

    @overload
    def scatter(self, src: Any, dst: Any, root: int = ..., *, timeout: Optional[float] = ...,
                wait: bool) -> Optional[Request]: ...

    def scatter(self, src: Any, dst: Any, root: int = 0, *, timeout: Optional[float] = None,
                wait: bool = True) -> Optional[Request]:
        """Copy block r of src on the rank root into dst of rank r.

        src has size times the elements of dst. Other ranks do not use it and may pass None.
        """
        dst = _array(dst, writes=True)
        src = _optional(src, dst, self.rank == root, dst.count * self.size, "src")
        return self._run(lib.scatter, [src, dst], src.address if src else None, dst.address, dst.count, dst.dtype, root,
                         options=_options(timeout), wait=wait)

    @overload
    def all_to_all(self, src: Any, dst: Any, *, timeout: Optional[float] = ..., wait: Literal[True] = ...) -> None: ...

    @overload
    def all_to_all(self, src: Any, dst: Any, *, timeout: Optional[float] = ..., wait: Literal[False]) -> Request: ...

    @overload
    def all_to_all(self, src: Any, dst: Any, *, timeout: Optional[float] = ..., wait: bool) -> Optional[Request]: ...

    def all_to_all(self, src: Any, dst: Any, *, timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """Send block r of src to rank r, and receive block r of dst from rank r. Not in place.

        src and dst have equally many elements, a multiple of size.
        """
        src, dst = _pair(src, dst, 1, 1)
        if src.count % self.size:
            raise ValueError(f"src has {src.count} elements, expected a multiple of {self.size}: one equal block per "
                             "rank (all_to_all_v takes blocks of different sizes)")
        return self._run(lib.all_to_all, [src, dst], src.address, dst.address, src.count // self.size, src.dtype,
                         options=_options(timeout), wait=wait)

    @overload
    def all_gather_v(self, src: Any, dst: Any, counts: Sequence[int], offsets: Optional[Sequence[int]] = ..., *,
                     timeout: Optional[float] = ..., wait: Literal[True] = ...) -> None: ...

    @overload
    def all_gather_v(self, src: Any, dst: Any, counts: Sequence[int], offsets: Optional[Sequence[int]] = ..., *,
                     timeout: Optional[float] = ..., wait: Literal[False]) -> Request: ...

    @overload
    def all_gather_v(self, src: Any, dst: Any, counts: Sequence[int], offsets: Optional[Sequence[int]] = ..., *,
                     timeout: Optional[float] = ..., wait: bool) -> Optional[Request]: ...

    def all_gather_v(self, src: Any, dst: Any, counts: Sequence[int], offsets: Optional[Sequence[int]] = None, *,
                     timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """Gather counts[r] elements of rank r, to all ranks, at offsets[r] of dst.

        src has at least counts[rank] elements. counts and offsets have size entries, in elements; counts are the same
        on all ranks. offsets None places the blocks one after the other.
        """
        src, dst, blocks = _array(src, writes=False), _array(dst, writes=True), _Blocks(counts, offsets, self.size)
        blocks.check(src, blocks.counts[self.rank], "src")
        blocks.check(dst, blocks.end, "dst")
        _same_type(src, dst)
        return self._run(lib.all_gather_v, [src, dst], src.address, dst.address, *blocks.arrays, src.dtype,
                         options=_options(timeout), wait=wait)

    @overload
    def reduce_scatter_v(self, src: Any, dst: Any, counts: Sequence[int], op: Operation = ...,
                         offsets: Optional[Sequence[int]] = ..., *, factor: float = ..., timeout: Optional[float] = ...,
                         wait: Literal[True] = ...) -> None: ...

    @overload
    def reduce_scatter_v(self, src: Any, dst: Any, counts: Sequence[int], op: Operation = ...,
                         offsets: Optional[Sequence[int]] = ..., *, factor: float = ..., timeout: Optional[float] = ...,
                         wait: Literal[False]) -> Request: ...

    @overload
    def reduce_scatter_v(self, src: Any, dst: Any, counts: Sequence[int], op: Operation = ...,
                         offsets: Optional[Sequence[int]] = ..., *, factor: float = ..., timeout: Optional[float] = ...,
                         wait: bool) -> Optional[Request]: ...

    def reduce_scatter_v(self, src: Any, dst: Any, counts: Sequence[int], op: Operation = Op.SUM,
                         offsets: Optional[Sequence[int]] = None, *, factor: float = 0.0,
                         timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """Reduce src over all ranks; rank r receives block r in dst.

        Block r has counts[r] elements and begins at offsets[r] of src; see all_gather_v. dst has at least
        counts[rank] elements.
        """
        src, dst, blocks = _array(src, writes=False), _array(dst, writes=True), _Blocks(counts, offsets, self.size)
        blocks.check(src, blocks.end, "src")
        blocks.check(dst, blocks.counts[self.rank], "dst")
        _same_type(src, dst)
        return self._run(lib.reduce_scatter_v, [src, dst], src.address, dst.address, *blocks.arrays,
                         dst.dtype, _op(op), options=_options(timeout, factor, op), wait=wait)

    @overload
    def gather_v(self, src: Any, dst: Any, counts: Sequence[int], offsets: Optional[Sequence[int]] = ...,
                 root: int = ..., *, timeout: Optional[float] = ..., wait: Literal[True] = ...) -> None: ...

    @overload
    def gather_v(self, src: Any, dst: Any, counts: Sequence[int], offsets: Optional[Sequence[int]] = ...,
                 root: int = ..., *, timeout: Optional[float] = ..., wait: Literal[False]) -> Request: ...

    @overload
    def gather_v(self, src: Any, dst: Any, counts: Sequence[int], offsets: Optional[Sequence[int]] = ...,
                 root: int = ..., *, timeout: Optional[float] = ..., wait: bool) -> Optional[Request]: ...

    def gather_v(self, src: Any, dst: Any, counts: Sequence[int], offsets: Optional[Sequence[int]] = None,
                 root: int = 0, *, timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """Gather counts[r] elements of rank r at offsets[r] of dst on the rank root; see all_gather_v.

        Other ranks do not use dst and offsets, and may pass None.
        """
        src, blocks = _array(src, writes=False), _Blocks(counts, offsets, self.size)
        blocks.check(src, blocks.counts[self.rank], "src")
        dst = _array(dst, writes=True) if self.rank == root else None
        if dst:
            blocks.check(dst, blocks.end, "dst")
            _same_type(src, dst)
        return self._run(lib.gather_v, [src, dst], src.address, dst.address if dst else None, *blocks.arrays, src.dtype,
                         root, options=_options(timeout), wait=wait)

    @overload
    def scatter_v(self, src: Any, dst: Any, counts: Sequence[int], offsets: Optional[Sequence[int]] = ...,
                  root: int = ..., *, timeout: Optional[float] = ..., wait: Literal[True] = ...) -> None: ...

    @overload
    def scatter_v(self, src: Any, dst: Any, counts: Sequence[int], offsets: Optional[Sequence[int]] = ...,
                  root: int = ..., *, timeout: Optional[float] = ..., wait: Literal[False]) -> Request: ...

    @overload
    def scatter_v(self, src: Any, dst: Any, counts: Sequence[int], offsets: Optional[Sequence[int]] = ...,
                  root: int = ..., *, timeout: Optional[float] = ..., wait: bool) -> Optional[Request]: ...

    def scatter_v(self, src: Any, dst: Any, counts: Sequence[int], offsets: Optional[Sequence[int]] = None,
                  root: int = 0, *, timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """Copy block r of src on the rank root into dst of rank r.

        Block r has counts[r] elements and begins at offsets[r] of src; see all_gather_v. Other ranks do not use src
        and offsets, and may pass None.
        """
        dst, blocks = _array(dst, writes=True), _Blocks(counts, offsets, self.size)
        blocks.check(dst, blocks.counts[self.rank], "dst")
        src = _array(src, writes=False) if self.rank == root else None
        if src:
            blocks.check(src, blocks.end, "src")
            _same_type(src, dst)
        return self._run(lib.scatter_v, [src, dst], src.address if src else None, dst.address, *blocks.arrays, dst.dtype,
                         root, options=_options(timeout), wait=wait)

    @overload
    def all_to_all_v(self, src: Any, src_counts: Sequence[int], dst: Any, dst_counts: Sequence[int], *,
                     src_offsets: Optional[Sequence[int]] = ..., dst_offsets: Optional[Sequence[int]] = ...,
                     timeout: Optional[float] = ..., wait: Literal[True] = ...) -> None: ...

    @overload
    def all_to_all_v(self, src: Any, src_counts: Sequence[int], dst: Any, dst_counts: Sequence[int], *,
                     src_offsets: Optional[Sequence[int]] = ..., dst_offsets: Optional[Sequence[int]] = ...,
                     timeout: Optional[float] = ..., wait: Literal[False]) -> Request: ...

    @overload
    def all_to_all_v(self, src: Any, src_counts: Sequence[int], dst: Any, dst_counts: Sequence[int], *,
                     src_offsets: Optional[Sequence[int]] = ..., dst_offsets: Optional[Sequence[int]] = ...,
                     timeout: Optional[float] = ..., wait: bool) -> Optional[Request]: ...

    def all_to_all_v(self, src: Any, src_counts: Sequence[int], dst: Any, dst_counts: Sequence[int], *,
                     src_offsets: Optional[Sequence[int]] = None, dst_offsets: Optional[Sequence[int]] = None,
                     timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """Send block r of src to rank r, and receive block r of dst from rank r. Not in place.

        Block r of src has src_counts[r] elements and begins at src_offsets[r]; dst likewise. Without
        offsets the blocks lie one after the other. Rank a's src_counts[b] must equal rank b's dst_counts[a]. Otherwise
        WeftError ERR_MISMATCH names the pair on all ranks.
        """
        src, dst = _array(src, writes=False), _array(dst, writes=True)
        given, taken = _Blocks(src_counts, src_offsets, self.size), _Blocks(dst_counts, dst_offsets, self.size)
        given.check(src, given.end, "src")
        taken.check(dst, taken.end, "dst")
        _same_type(src, dst)
        return self._run(lib.all_to_all_v, [src, dst], src.address, *given.arrays, dst.address, *taken.arrays, src.dtype,
                         options=_options(timeout), wait=wait)

    def sparse_all_reduce(self, indices: Any, values: Any, shape: Sequence[int], op: Union[Op, str] = Op.SUM, *,
                          timeout: Optional[float] = None) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the sum of sparse arrays (COO) over all ranks: new arrays of indices and values.

        indices  row-major i64 array of shape (d, entries), which names the first d dimensions, or (entries,) for d = 1.
                 An index may occur several times; its values add up
        values   row-major array of shape (entries, *the other dimensions)
        shape    extents of the whole array
        op       "sum" or "mean"

        shape, d, the element type and op are equal on all ranks. In the result indices have shape (d, entries), sorted,
        each once, with the same bits on all ranks. It may be the whole array, with its zeros. BF16 values are uint16 in the
        result. Not inside a group.
        """
        if self._grouped is not None:
            raise ValueError("sparse_all_reduce is called inside a group; call it before or after the group")
        where, numbers = _array(indices, writes=False), _array(values, writes=False)
        count, sparse = (where.shape[-1] if where.shape else 0), (where.shape[0] if len(where.shape) == 2 else 1)
        if where.dtype != DType.I64 or len(where.shape) not in (1, 2) or sparse > len(shape):
            raise ValueError(f"the indices are {where.dtype.name} {where.shape}, expected i64 of shape (d, entries) with d "
                             f"from 1 to {len(shape)}, or (entries,)")
        if numbers.shape != (count, *shape[sparse:]):
            raise ValueError(f"the values have shape {numbers.shape}, expected {(count, *shape[sparse:])}")
        src, result, extents = _abi.Sparse(count=count, values=numbers.address), _abi.Sparse(), ctypes.c_int64 * len(shape)
        src.indices = ctypes.cast(where.address, ctypes.POINTER(ctypes.c_int64))
        try:
            self._run(lib.sparse_all_reduce, [where, numbers], src, extents(*shape), len(shape), sparse, numbers.dtype,
                      choice(Op, op, "op"), options=_options(timeout), wait=True, result=result)
            at = ctypes.cast(result.indices, ctypes.c_void_p).value or 0
            return (memory_array(at, DType.I64, (sparse, result.count), None, None).copy(),
                    memory_array(result.values or 0, numbers.dtype, (result.count, *shape[sparse:]), None, None).copy())
        finally:
            lib.sparse_release(result)

    @contextlib.contextmanager
    def group(self) -> Iterator[None]:
        """Launch the calls of a with-block together, when the block ends.

        Sends and receives of a group may therefore be called in any order. Each call returns once it is
        queued, and all of them are complete when the block has ended. The block then raises WeftError with the first
        failure among its calls. Deadlines count from the end of the block.
        """
        self._raise(lib.group_begin(self._handle))
        self._grouped = []
        try:
            yield
        finally:
            code = lib.group_end(self._handle, None)
            self._grouped = None
        self._raise(code)

    @overload
    def barrier(self, *, timeout: Optional[float] = ..., wait: Literal[True] = ...) -> None: ...

    @overload
    def barrier(self, *, timeout: Optional[float] = ..., wait: Literal[False]) -> Request: ...

    @overload
    def barrier(self, *, timeout: Optional[float] = ..., wait: bool) -> Optional[Request]: ...

    def barrier(self, *, timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """Wait until all ranks have called barrier."""
        return self._run(lib.barrier, [], options=_options(timeout), wait=wait)

    @overload
    def send(self, src: Any, peer: int, *, timeout: Optional[float] = ..., wait: Literal[True] = ...) -> None: ...

    @overload
    def send(self, src: Any, peer: int, *, timeout: Optional[float] = ..., wait: Literal[False]) -> Request: ...

    @overload
    def send(self, src: Any, peer: int, *, timeout: Optional[float] = ..., wait: bool) -> Optional[Request]: ...

    def send(self, src: Any, peer: int, *, timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """Send src to the rank peer, which calls recv with the same element count and dtype.

        Sends and receives of a pair of ranks are matched in the order of the calls. peer is another rank than this.
        A send may complete before the receive is called.
        """
        part = _array(src, writes=False)
        return self._run(lib.send, [part], part.address, part.count, part.dtype, peer, options=_options(timeout),
                         wait=wait)

    @overload
    def recv(self, dst: Any, peer: int, *, timeout: Optional[float] = ..., wait: Literal[True] = ...) -> None: ...

    @overload
    def recv(self, dst: Any, peer: int, *, timeout: Optional[float] = ..., wait: Literal[False]) -> Request: ...

    @overload
    def recv(self, dst: Any, peer: int, *, timeout: Optional[float] = ..., wait: bool) -> Optional[Request]: ...

    def recv(self, dst: Any, peer: int, *, timeout: Optional[float] = None, wait: bool = True) -> Optional[Request]:
        """Receive dst from the rank peer; see send."""
        part = _array(dst, writes=True)
        return self._run(lib.recv, [part], part.address, part.count, part.dtype, peer, options=_options(timeout),
                         wait=wait)

    @overload
    def send_tagged(self, src: Any, peer: int, tag: int, *, timeout: Optional[float] = ...,
                    wait: Literal[True] = ...) -> None: ...

    @overload
    def send_tagged(self, src: Any, peer: int, tag: int, *, timeout: Optional[float] = ...,
                    wait: Literal[False]) -> Request: ...

    @overload
    def send_tagged(self, src: Any, peer: int, tag: int, *, timeout: Optional[float] = ...,
                    wait: bool) -> Optional[Request]: ...

    def send_tagged(self, src: Any, peer: int, tag: int, *, timeout: Optional[float] = None,
                    wait: bool = True) -> Optional[Request]:
        """Send src to the rank peer, which may be this rank, as a message with a tag: 0 to 2**64 - 2.

        Tagged messages match only recv_tagged. Those with different tags do not wait for each other. A message of up to
        16 KiB is copied and sent without waiting for its receive, as long as at most 128 KiB to that rank were not
        received; others wait. Their failures, deadlines included, fail only the message and not the communicator.
        Threads: any.
        """
        part = _array(src, writes=False)
        return self._run(lib.send_tagged, [part], part.address, part.count, part.dtype, peer, _tag(tag, ANY_TAG - 1),
                         options=_options(timeout), wait=wait)

    @overload
    def recv_tagged(self, dst: Any, source: int = ..., tag: int = ..., *, timeout: Optional[float] = ...,
                    wait: Literal[True] = ...) -> Message: ...

    @overload
    def recv_tagged(self, dst: Any, source: int = ..., tag: int = ..., *, timeout: Optional[float] = ...,
                    wait: Literal[False]) -> Request: ...

    @overload
    def recv_tagged(self, dst: Any, source: int = ..., tag: int = ..., *, timeout: Optional[float] = ...,
                    wait: bool) -> Union[Message, Request]: ...

    def recv_tagged(self, dst: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, *, timeout: Optional[float] = None,
                    wait: bool = True) -> Union[Message, Request]:
        """Receive the first message of send_tagged that fits into dst, and return who sent it and how long it is.

        source  a rank, this one included, or ANY_SOURCE
        tag     a tag or ANY_TAG

        The message may be shorter than dst. One that is longer, or of another type, raises WeftError ERR_MISMATCH, and
        is lost. With wait=False, Request.result returns the Message, and Request.cancel gives the receive up. Threads:
        any.
        """
        part = _array(dst, writes=True)
        taken = _abi.Message()
        request = self._run(lib.recv_tagged, [part, taken], part.address, part.count, part.dtype, source,
                            _tag(tag, ANY_TAG), taken, options=_options(timeout), wait=wait)
        if request is None:
            return Message(taken.source, taken.tag, taken.count)
        request._convert = lambda: Message(taken.source, taken.tag, taken.count)
        return request

    def _raise(self, code: int) -> None:
        raise NotImplementedError

    def _run(self, call: Any, lent: list[Any], *arguments: Any, options: Optional[_abi.CollOptions],
             wait: bool, result: Optional[_abi.Sparse] = None) -> Optional[Request]:
        self._drop_complete()
        if wait:
            if self._grouped is not None:
                self._grouped.append(lent)
            try:
                self._raise(call(self._handle, *arguments, options, *(() if result is None else (result,)), None))
            except WeftError as error:
                add_cause(error, lent)
                raise
            return None
        return self._start(call, lent, *arguments, options)

    def _start(self, call: Any, lent: Any, *arguments: Any) -> Request:
        """Make a call that returns a request. lent is what the operation uses until it is complete."""
        request = Request(ctypes.c_void_p(), lent)
        try:
            # Before the call: a signal handler may raise as soon as the call returns, when the operation is in flight.
            self._outstanding.append(request)
            self._raise(call(self._handle, *arguments, request._handle))
        except BaseException:
            if request.closed:
                self._forget(request)
                request._abandon()
            raise
        return request

    def _drop_complete(self) -> None:
        """Drop outstanding requests that are complete. Tests some of them in turn, so that many cost each call little.

        Tagged messages may come from several threads: each operation on the deque is atomic.
        """
        for _ in range(min(len(self._outstanding), _TESTED)):
            try:
                request = self._outstanding[0]
            except IndexError:  # another thread dropped the last one
                return
            if request.over():
                self._forget(request)
            else:
                self._outstanding.rotate(-1)

    def _forget(self, request: Request) -> None:
        with contextlib.suppress(ValueError):  # another thread dropped it
            self._outstanding.remove(request)


@dataclasses.dataclass(frozen=True)
class Message:
    """A message that recv_tagged has received. count is in elements."""

    source: int
    tag: int
    count: int


class _Blocks:
    """Sizes and places of the ranks' blocks in a buffer, in elements. Checks them against the arrays."""

    def __init__(self, counts: Sequence[int], offsets: Optional[Sequence[int]], size: int):
        if len(counts) != size or (offsets is not None and len(offsets) != size):
            got = f"{len(counts)} counts" + ("" if offsets is None else f" and {len(offsets)} offsets")
            raise ValueError(f"got {got}, expected {size} of each: one per rank")
        self.counts = [int(count) for count in counts]
        starts = [sum(self.counts[:r]) for r in range(size)] if offsets is None else [int(at) for at in offsets]
        self.end = max((at + count for at, count in zip(starts, self.counts) if count), default=0)
        numbers = ctypes.c_uint64 * size
        self.arrays = (numbers(*self.counts), None if offsets is None else numbers(*starts))

    @staticmethod
    def check(part: Region, needed: int, name: str) -> None:
        if part.count < needed:
            raise ValueError(f"{name} has {part.count} elements, expected at least {needed} for the given counts and "
                             "offsets")


def _options(timeout: Optional[float], factor: float = 0.0, op: Operation = Op.SUM) -> Optional[_abi.CollOptions]:
    if isinstance(op, Reduction):
        return _abi.CollOptions(timeout_ms=milliseconds(timeout), factor=factor, reduction=ctypes.pointer(op.struct))
    return None if timeout is None and not factor else _shared_options(timeout, float(factor))


@functools.lru_cache(maxsize=64)
def _shared_options(timeout: Optional[float], factor: float) -> _abi.CollOptions:
    """Make options that many calls use: the library only reads them."""
    return _abi.CollOptions(timeout_ms=milliseconds(timeout), factor=factor)


def _tag(tag: int, most: int) -> int:
    if not 0 <= tag <= most:
        raise ValueError(f"tag is {tag}, expected 0 to {most}")
    return tag


def _array(array: Any, writes: bool) -> Region:
    """Describe the array's memory, and check that a collective can use it. writes: the result goes into it."""
    part = region(array)
    if not part.row_major:
        raise ValueError(f"the array is strided: shape {part.shape} has strides {part.strides} (in elements), expected "
                         "a row-major array; pass a contiguous copy (numpy.ascontiguousarray)")
    if writes and not part.writable:
        raise ValueError(f"this {type(array).__name__} is read-only, but the collective writes its result into it; use "
                         "the collectives of Comm.new, which return a new array: y = comm.new.all_reduce(x)")
    return part


def _same_type(src: Region, dst: Region) -> None:
    if src.dtype != dst.dtype:
        raise ValueError(f"src is {src.dtype.name}, dst is {dst.dtype.name}; expected the same element type")


def _pair(src: Any, dst: Any, src_blocks: int, dst_blocks: int, result: bool = True) -> tuple[Region, Region]:
    """Describe the memory of src and dst, and check that src is src_blocks blocks where dst is dst_blocks of them."""
    source = _array(src, writes=dst is None and result)
    target = source if dst is None else _array(dst, writes=result)
    _same_type(source, target)
    if source.count * dst_blocks != target.count * src_blocks:
        if src_blocks == 1:
            expected = f"{source.count * dst_blocks} in dst"
        else:
            expected = f"{target.count * src_blocks} in src"
        raise ValueError(f"src has {source.count} elements and dst has {target.count}, expected {expected}")
    return source, target


def _optional(array: Any, like: Region, needed: bool, count: int, name: str) -> Optional[Region]:
    """Describe the larger array of gather or scatter, which only the rank root uses: None if not needed here."""
    if not needed:
        return None
    if array is None:
        raise ValueError(f"{name} is None, expected an array of {count} elements: this rank is the root")
    part = _array(array, writes=name == "dst")
    if part.dtype != like.dtype or part.count != count:
        raise ValueError(f"{name} has {part.count} elements of type {part.dtype.name}, expected {count} of "
                         f"type {like.dtype.name}")
    return part
