"""average_gradients: averages the arrays of a pytree over ranks, outside jit."""
from __future__ import annotations

import dataclasses
from typing import Any, Optional, Union

import jax
import jax.numpy as jnp

from .._memory import Region, converted, fresh, memory_array, part_of, region
from ..comm import Comm
from ..constants import DType, Op
from . import _comms

_ALONE_BYTES = 1 << 20  # larger arrays are not copied into a bucket
_ALIGNMENT = 64         # of the arrays in a bucket; JAX copies arrays with a smaller alignment


@dataclasses.dataclass
class _Part:
    """An array of the tree. Its result is at `offset` bytes in its bucket."""

    leaf: jax.Array
    memory: Region
    place: int  # in the list of leaves
    offset: int = 0

    @property
    def size(self) -> int:
        return self.memory.count * self.memory.dtype.size


def average_gradients(tree: Any, comm: Optional[Comm] = None, *, op: Union[Op, str] = Op.AVG,
                      bucket_bytes: int = 25 << 20, timeout: Optional[float] = None) -> Any:
    """Return a pytree of new arrays: the mean of tree's arrays over all ranks, with the same bits on all.

    tree          arrays of floats or complex numbers. All ranks have the same structure, shapes and types. Entries of
                  type float0, the gradients of integers, stay as they are
    comm          weftsync.Comm; None: `default_comm()`
    op            "mean", or "sum"
    bucket_bytes  arrays up to 1 MiB are copied into buckets of one type and up to this size. Larger ones are read in
                  place
    timeout       deadline of the call in seconds; None: the communicator's

    All buckets are in progress at once. Outside jit only: inside jit use `all_reduce`. Raises WeftError: ERR_MISMATCH
    if the ranks' trees differ, and the communicator's failure; TypeError for entries of other types.
    """
    comm = _comms.default_comm() if comm is None else comm
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    made: list[Any] = [leaf for _, leaf in leaves]
    jax.block_until_ready([leaf for leaf in made if isinstance(leaf, jax.Array)])
    parts = [_part(path, leaf, place) for place, (path, leaf) in enumerate(leaves)]
    buckets = _divided([part for part in parts if part is not None and part.memory.count > 0], bucket_bytes)
    with _comms.exclusive(_comms.number_of(comm)):
        requests = [_started(comm, bucket, op, timeout) for bucket in buckets]
        for request, _ in requests:
            request.wait(float("inf"))  # the operation has a deadline
    for bucket, (_, result) in zip(buckets, requests):
        for part in bucket:
            made[part.place] = converted(_view(result, part), part.leaf)
    return jax.tree_util.tree_unflatten(structure, made)


def _part(path: Any, leaf: Any, place: int) -> Optional[_Part]:
    """Describe an entry of the tree; None for one of type float0."""
    name = jax.tree_util.keystr(path) or "tree"
    if isinstance(leaf, jax.core.Tracer):
        raise TypeError(f"{name} is traced: average_gradients is for arrays outside jit; use all_reduce inside jit")
    if getattr(leaf, "dtype", None) == jax.dtypes.float0:
        return None
    array = jnp.asarray(leaf)
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        raise TypeError(f"{name} has the type {array.dtype}, expected floats or complex numbers")
    return _Part(array, region(array), place)


def _divided(parts: list[_Part], bucket_bytes: int) -> list[list[_Part]]:
    """Divide the arrays into buckets. The division depends on shapes and types alone, which are equal on all ranks."""
    buckets: list[list[_Part]] = []
    filling: dict[DType, tuple[list[_Part], int]] = {}
    for part in parts:
        if part.size > _ALONE_BYTES:
            buckets.append([part])
            continue
        bucket, used = filling.get(part.memory.dtype, ([], 0))
        if not bucket or used + part.size > bucket_bytes:
            bucket, used = [], 0
            buckets.append(bucket)
        part.offset = used
        bucket.append(part)
        filling[part.memory.dtype] = bucket, -(-(used + part.size) // _ALIGNMENT) * _ALIGNMENT
    return buckets


def _started(comm: Comm, bucket: list[_Part], op: Union[Op, str], timeout: Optional[float]) -> tuple[Any, Region]:
    """Start the reduction of a bucket. Returns its request and the memory of its result."""
    first, last = bucket[0].memory, bucket[-1]
    result = fresh(first, ((last.offset + last.size) // first.dtype.size,))
    if len(bucket) == 1 and first.row_major:
        return comm.all_reduce(first, result, op, timeout=timeout, wait=False), result
    result.owner[...] = 0  # between the arrays
    for part in bucket:
        source = part.memory
        _view(result, part).owner[...] = memory_array(source.address, source.dtype, source.shape, source.strides,
                                                      source.owner)
    return comm.all_reduce(result, None, op, timeout=timeout, wait=False), result


def _view(result: Region, part: _Part) -> Region:
    """Describe the place of an array in its bucket."""
    return part_of(result, part.offset // result.dtype.size, part.memory.shape)
