"""Comm.new: the collectives in a form that returns a new array."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

from ._memory import Region, converted, fresh, memory_array, region
from .constants import Op

if TYPE_CHECKING:
    from ._collectives import Collectives, Operation


class NewArrays:
    """The collectives of a communicator, each of which leaves its array as it is and returns a new one.

        y = comm.new.all_reduce(x)  # x may be immutable, a JAX array for example

    The new array has the type of the given one, and is of the same framework: the `from_dlpack` of the
    framework's module makes it (JAX, PyTorch, CuPy), as a rule without a copy. It is a NumPy array for a
    buffer and for a framework without `from_dlpack`.

    Blocks of equal size are the entries of the first dimension: all_gather of shape (3,) returns (size, 3),
    and reduce_scatter of shape (size, 3) returns (3,). The calls that end with _v return flat arrays, block
    after block. reduce and gather return None on other ranks than root.

    With wait=False a call returns a Request, whose `result()` is the new array. A group needs wait=False.
    Each call is the collective of the same name, and matches the calls of ranks that use the other form.
    """

    def __init__(self, comm: Collectives) -> None:
        self._comm = comm

    def all_reduce(self, src: Any, op: Operation = Op.SUM, *, factor: float = 0.0,
                   timeout: Optional[float] = None, wait: bool = True) -> Any:
        """op over ranks of src."""
        part = region(src)
        return self._call(self._comm.all_reduce, part, fresh(part, part.shape), src, op, factor=factor,
                          timeout=timeout, wait=wait)

    def reduce(self, src: Any, op: Operation = Op.SUM, *, root: int = 0, factor: float = 0.0,
               timeout: Optional[float] = None, wait: bool = True) -> Any:
        """The same at root; None elsewhere."""
        part = region(src)
        dst = fresh(part, part.shape) if self._comm.rank == root else None
        return self._call(self._comm.reduce, part, dst, src, op, root=root, factor=factor, timeout=timeout,
                          wait=wait)

    def broadcast(self, array: Any, root: int = 0, *, timeout: Optional[float] = None,
                  wait: bool = True) -> Any:
        """The array of root; the arrays of other ranks only give the shape and the type."""
        part = region(array)
        dst = fresh(part, part.shape)
        sends = self._comm.rank == root
        self._check(wait)
        request = self._comm.broadcast(part if sends else dst, root, timeout=timeout, wait=wait)
        if sends:
            dst.owner[...] = memory_array(part.address, part.dtype, part.shape, None, part.owner)
        return self._done(request, dst, array)

    def all_gather(self, src: Any, *, timeout: Optional[float] = None, wait: bool = True) -> Any:
        """src of every rank, in rank order."""
        part = region(src)
        return self._call(self._comm.all_gather, part, fresh(part, (self._comm.size, *part.shape)), src,
                          timeout=timeout, wait=wait)

    def reduce_scatter(self, src: Any, op: Operation = Op.SUM, *, factor: float = 0.0,
                       timeout: Optional[float] = None, wait: bool = True) -> Any:
        """The reduction of src[rank]."""
        part = self._blocks(src)
        dst = fresh(part, part.shape[1:])
        return self._call(self._comm.reduce_scatter, part, dst, src, op, factor=factor, timeout=timeout,
                          wait=wait)

    def gather(self, src: Any, root: int = 0, *, timeout: Optional[float] = None, wait: bool = True) -> Any:
        """src of every rank at root, in rank order; None elsewhere."""
        part = region(src)
        dst = fresh(part, (self._comm.size, *part.shape)) if self._comm.rank == root else None
        return self._call(self._comm.gather, part, dst, src, root, timeout=timeout, wait=wait)

    def scatter(self, src: Any, root: int = 0, *, like: Any = None, timeout: Optional[float] = None,
                wait: bool = True) -> Any:
        """src[rank] of root. Other ranks give src, or None and like, for the shape and the type."""
        if src is None and self._comm.rank != root:
            part = None
            dst = fresh(*_shaped(like))
        else:
            part = self._blocks(src)
            dst = fresh(part, part.shape[1:])
        return self._call(self._comm.scatter, part, dst, like if part is None else src, root, timeout=timeout,
                          wait=wait)

    def all_to_all(self, src: Any, *, timeout: Optional[float] = None, wait: bool = True) -> Any:
        """Entry r is src[rank] of rank r."""
        part = self._blocks(src)
        return self._call(self._comm.all_to_all, part, fresh(part, part.shape), src, timeout=timeout,
                          wait=wait)

    def all_gather_v(self, src: Any, counts: Sequence[int], *, timeout: Optional[float] = None,
                     wait: bool = True) -> Any:
        """counts[r] elements of rank r, for all ranks."""
        part = region(src)
        return self._call(self._comm.all_gather_v, part, fresh(part, (sum(counts),)), src, counts,
                          timeout=timeout, wait=wait)

    def reduce_scatter_v(self, src: Any, counts: Sequence[int], op: Operation = Op.SUM,
                         offsets: Optional[Sequence[int]] = None, *, factor: float = 0.0,
                         timeout: Optional[float] = None, wait: bool = True) -> Any:
        """The reduction of block `rank` of src; block r has counts[r] elements at offsets[r]."""
        part = region(src)
        dst = fresh(part, (counts[self._comm.rank],))
        return self._call(self._comm.reduce_scatter_v, part, dst, src, counts, op, offsets, factor=factor,
                          timeout=timeout, wait=wait)

    def gather_v(self, src: Any, counts: Sequence[int], root: int = 0, *, timeout: Optional[float] = None,
                 wait: bool = True) -> Any:
        """counts[r] elements of rank r at root; None elsewhere."""
        part = region(src)
        dst = fresh(part, (sum(counts),)) if self._comm.rank == root else None
        return self._call(self._comm.gather_v, part, dst, src, counts, root=root, timeout=timeout, wait=wait)

    def scatter_v(self, src: Any, counts: Sequence[int], offsets: Optional[Sequence[int]] = None,
                  root: int = 0, *, like: Any = None, timeout: Optional[float] = None, wait: bool = True) -> Any:
        """Block `rank` of root's src. Other ranks give src, or None and like, for the type."""
        part = None if src is None and self._comm.rank != root else region(src)
        dst = fresh(_shaped(like)[0] if part is None else part, (counts[self._comm.rank],))
        return self._call(self._comm.scatter_v, part, dst, like if part is None else src, counts, offsets,
                          root, timeout=timeout, wait=wait)

    def all_to_all_v(self, src: Any, src_counts: Sequence[int], dst_counts: Sequence[int], *,
                     src_offsets: Optional[Sequence[int]] = None, timeout: Optional[float] = None,
                     wait: bool = True) -> Any:
        """Block r of src to rank r; block r of the result is from rank r."""
        part = region(src)
        dst = fresh(part, (sum(dst_counts),))
        self._check(wait)
        return self._done(self._comm.all_to_all_v(part, src_counts, dst, dst_counts, src_offsets=src_offsets,
                                                  timeout=timeout, wait=wait), dst, src)

    def recv(self, like: Any, peer: int, *, timeout: Optional[float] = None, wait: bool = True) -> Any:
        """The array that peer sends; like only gives the shape and the type."""
        dst = fresh(*_shaped(like))
        self._check(wait)
        return self._done(self._comm.recv(dst, peer, timeout=timeout, wait=wait), dst, like)

    def _blocks(self, src: Any) -> Region:
        part = region(src)
        if not part.shape or part.shape[0] != self._comm.size:
            raise ValueError(f"src has the shape {part.shape}; its first dimension must be the blocks of "
                             f"{self._comm.size} ranks")
        return part

    def _check(self, wait: bool) -> None:
        if wait and self._comm._grouped is not None:
            raise ValueError("in a group the new array is complete after the group's end: give wait=False, "
                             "and call result() of the request then")

    def _call(self, call: Any, part: Optional[Region], dst: Optional[Region], array: Any, *arguments: Any,
              **options: Any) -> Any:
        self._check(options["wait"])
        return self._done(call(part, dst, *arguments, **options), dst, array)

    @staticmethod
    def _done(request: Any, dst: Optional[Region], array: Any) -> Any:
        """The new array of a call that is complete, or its request, which makes it."""
        made = dst
        if request is None:
            return None if made is None else converted(made, array)
        if made is not None:
            request._convert = lambda: converted(made, array)
        return request


def _shaped(like: Any) -> tuple[Region, tuple[int, ...]]:
    if like is None:
        raise ValueError("like is None; give an array of the shape and the type that this rank receives")
    part = region(like)
    return part, part.shape
