"""NewArrays (Comm.new): the collectives in a form that returns a new array."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

from ._memory import Region, converted, fresh, memory_array, region
from .constants import Op

if TYPE_CHECKING:
    from ._collectives import Collectives, Operation


class NewArrays:
    """The collectives of a communicator in a form that returns a new array and does not change its argument.

        y = comm.new.all_reduce(x)  # x may be immutable, a JAX array for example

    Type    The new array has the element type of the argument and belongs to the same framework: `from_dlpack` of the
            framework's module makes it (JAX, PyTorch, CuPy), usually without a copy. For a buffer, or a framework
            without `from_dlpack`, it is a NumPy array.
    Shape   Blocks of equal size are the entries of the first dimension: all_gather of shape (3,) returns (size, 3), and
            reduce_scatter of shape (size, 3) returns (3,). The calls that end with _v return flat arrays, block after
            block. reduce and gather return None on ranks other than root.
    wait    With wait=False a call returns a Request, whose `result()` is the new array. Inside a group wait=False is
            required.

    Each call is the collective of the same name in Collectives, with its order, deadline, errors and threads. Some
    ranks may use this form and others the in-place form of one collective.
    """

    def __init__(self, comm: Collectives) -> None:
        self._comm = comm

    def all_reduce(self, src: Any, op: Operation = Op.SUM, *, factor: float = 0.0,
                   timeout: Optional[float] = None, wait: bool = True) -> Any:
        """Return the reduction of src over all ranks, with the shape of src."""
        part = region(src)
        return self._call(self._comm.all_reduce, part, fresh(part, part.shape), src, op, factor=factor,
                          timeout=timeout, wait=wait)

    def reduce(self, src: Any, op: Operation = Op.SUM, *, root: int = 0, factor: float = 0.0,
               timeout: Optional[float] = None, wait: bool = True) -> Any:
        """Return the reduction of src over all ranks on the rank root; None on other ranks."""
        part = region(src)
        dst = fresh(part, part.shape) if self._comm.rank == root else None
        return self._call(self._comm.reduce, part, dst, src, op, root=root, factor=factor, timeout=timeout,
                          wait=wait)

    def broadcast(self, array: Any, root: int = 0, *, timeout: Optional[float] = None,
                  wait: bool = True) -> Any:
        """Return a copy of the array of the rank root. The arrays of other ranks only give the shape and the type."""
        part = region(array)
        dst = fresh(part, part.shape)
        sends = self._comm.rank == root
        self._check(wait)
        request = self._comm.broadcast(part if sends else dst, root, timeout=timeout, wait=wait)
        if sends:
            dst.owner[...] = memory_array(part.address, part.dtype, part.shape, None, part.owner)
        return self._done(request, dst, array)

    def all_gather(self, src: Any, *, timeout: Optional[float] = None, wait: bool = True) -> Any:
        """Return src of every rank, in rank order, with shape (size, *src.shape)."""
        part = region(src)
        return self._call(self._comm.all_gather, part, fresh(part, (self._comm.size, *part.shape)), src,
                          timeout=timeout, wait=wait)

    def reduce_scatter(self, src: Any, op: Operation = Op.SUM, *, factor: float = 0.0,
                       timeout: Optional[float] = None, wait: bool = True) -> Any:
        """Return the reduction of src[rank] over all ranks. src has shape (size, ...)."""
        part = self._blocks(src)
        dst = fresh(part, part.shape[1:])
        return self._call(self._comm.reduce_scatter, part, dst, src, op, factor=factor, timeout=timeout,
                          wait=wait)

    def gather(self, src: Any, root: int = 0, *, timeout: Optional[float] = None, wait: bool = True) -> Any:
        """Return src of every rank, with shape (size, *src.shape), on the rank root; None on other ranks."""
        part = region(src)
        dst = fresh(part, (self._comm.size, *part.shape)) if self._comm.rank == root else None
        return self._call(self._comm.gather, part, dst, src, root, timeout=timeout, wait=wait)

    def scatter(self, src: Any, root: int = 0, *, like: Any = None, timeout: Optional[float] = None,
                wait: bool = True) -> Any:
        """Return src[rank] of the rank root, whose src has shape (size, ...).

        Other ranks pass either src, or None and an array `like`, for the shape and the type of the result.
        """
        if src is None and self._comm.rank != root:
            part = None
            dst = fresh(*_shaped(like))
        else:
            part = self._blocks(src)
            dst = fresh(part, part.shape[1:])
        return self._call(self._comm.scatter, part, dst, like if part is None else src, root, timeout=timeout,
                          wait=wait)

    def all_to_all(self, src: Any, *, timeout: Optional[float] = None, wait: bool = True) -> Any:
        """Return an array of src's shape (size, ...), whose entry r is src[rank] of rank r."""
        part = self._blocks(src)
        return self._call(self._comm.all_to_all, part, fresh(part, part.shape), src, timeout=timeout,
                          wait=wait)

    def all_gather_v(self, src: Any, counts: Sequence[int], *, timeout: Optional[float] = None,
                     wait: bool = True) -> Any:
        """Return counts[r] elements of each rank r, as a flat array of sum(counts) elements."""
        part = region(src)
        return self._call(self._comm.all_gather_v, part, fresh(part, (sum(counts),)), src, counts,
                          timeout=timeout, wait=wait)

    def reduce_scatter_v(self, src: Any, counts: Sequence[int], op: Operation = Op.SUM,
                         offsets: Optional[Sequence[int]] = None, *, factor: float = 0.0,
                         timeout: Optional[float] = None, wait: bool = True) -> Any:
        """Return the reduction of block `rank` of src; block r has counts[r] elements at offsets[r] (in elements)."""
        part = region(src)
        dst = fresh(part, (counts[self._comm.rank],))
        return self._call(self._comm.reduce_scatter_v, part, dst, src, counts, op, offsets, factor=factor,
                          timeout=timeout, wait=wait)

    def gather_v(self, src: Any, counts: Sequence[int], root: int = 0, *, timeout: Optional[float] = None,
                 wait: bool = True) -> Any:
        """Return counts[r] elements of each rank r as a flat array on the rank root; None on other ranks."""
        part = region(src)
        dst = fresh(part, (sum(counts),)) if self._comm.rank == root else None
        return self._call(self._comm.gather_v, part, dst, src, counts, root=root, timeout=timeout, wait=wait)

    def scatter_v(self, src: Any, counts: Sequence[int], offsets: Optional[Sequence[int]] = None,
                  root: int = 0, *, like: Any = None, timeout: Optional[float] = None, wait: bool = True) -> Any:
        """Return block `rank` of src on the rank root; block r has counts[r] elements at offsets[r] (in elements).

        Other ranks pass either src, or None and an array `like`, for the type of the result.
        """
        part = None if src is None and self._comm.rank != root else region(src)
        dst = fresh(_shaped(like)[0] if part is None else part, (counts[self._comm.rank],))
        return self._call(self._comm.scatter_v, part, dst, like if part is None else src, counts, offsets,
                          root, timeout=timeout, wait=wait)

    def all_to_all_v(self, src: Any, src_counts: Sequence[int], dst_counts: Sequence[int], *,
                     src_offsets: Optional[Sequence[int]] = None, timeout: Optional[float] = None,
                     wait: bool = True) -> Any:
        """Send block r of src to rank r. Block r of the flat result, dst_counts[r] elements, comes from rank r."""
        part = region(src)
        dst = fresh(part, (sum(dst_counts),))
        self._check(wait)
        return self._done(self._comm.all_to_all_v(part, src_counts, dst, dst_counts, src_offsets=src_offsets,
                                                  timeout=timeout, wait=wait), dst, src)

    def recv(self, like: Any, peer: int, *, timeout: Optional[float] = None, wait: bool = True) -> Any:
        """Return the array that the rank peer sends. like only gives the shape and the type."""
        dst = fresh(*_shaped(like))
        self._check(wait)
        return self._done(self._comm.recv(dst, peer, timeout=timeout, wait=wait), dst, like)

    def _blocks(self, src: Any) -> Region:
        """Describe src, and check that its first dimension is one block per rank."""
        part = region(src)
        if not part.shape or part.shape[0] != self._comm.size:
            raise ValueError(f"src has the shape {part.shape}, expected a first dimension of {self._comm.size}: one "
                             "block per rank")
        return part

    def _check(self, wait: bool) -> None:
        if wait and self._comm._grouped is not None:
            raise ValueError("wait=True inside a group: the new array is complete only when the group ends; pass "
                             "wait=False, and call result() of the request after the group")

    def _call(self, call: Any, part: Optional[Region], dst: Optional[Region], array: Any, *arguments: Any,
              **options: Any) -> Any:
        self._check(options["wait"])
        return self._done(call(part, dst, *arguments, **options), dst, array)

    @staticmethod
    def _done(request: Any, dst: Optional[Region], array: Any) -> Any:
        """Return the new array of a complete call, or its request, whose result() makes the array."""
        made = dst
        if request is None:
            return None if made is None else converted(made, array)
        if made is not None:
            request._convert = lambda: converted(made, array)
        return request


def _shaped(like: Any) -> tuple[Region, tuple[int, ...]]:
    """Describe the array that gives the shape and the type of a result."""
    if like is None:
        raise ValueError("like is None, expected an array with the shape and the type that this rank receives")
    part = region(like)
    return part, part.shape
