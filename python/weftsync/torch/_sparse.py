"""Sums of sparse tensors over all ranks."""
from __future__ import annotations

import ctypes
import math
import weakref
from typing import TYPE_CHECKING, Optional

import torch

from .. import _abi
from .._collectives import _options
from .._library import lib
from ..constants import Op
from ._errors import refused
from ._tensors import part

if TYPE_CHECKING:
    from ..comm import Comm


class SparseSum:
    """One sparse all-reduce. It keeps the memory of its arguments and of its result. Threads: one at a time."""

    def __init__(self, comm: Comm, tensor: torch.Tensor, seconds: Optional[float]) -> None:
        if tensor.layout != torch.sparse_coo:
            raise refused("all_reduce", "unsupported layout: sparse tensors must be in the COO format")
        own = tensor.detach().coalesce()
        self._tensor = tensor
        self._indices, self._values = own.indices().contiguous(), own.values().contiguous()
        values = part(self._values)
        src = _abi.Sparse(count=own.indices().shape[1], values=values.address)
        src.indices = ctypes.cast(self._indices.data_ptr(), ctypes.POINTER(ctypes.c_int64))
        shape = (ctypes.c_int64 * tensor.dim())(*tensor.shape)
        self._dtype = values.dtype
        self._result = _abi.Sparse()
        # `finish` may fail or never run. Until the operation is complete, its request keeps this object alive.
        self._release = weakref.finalize(self, lib.sparse_release, self._result)
        self._release.atexit = False
        self.request = comm._start(lib.sparse_all_reduce, self, src, shape, tensor.dim(), own.sparse_dim(), self._dtype,
                                   Op.SUM, _options(seconds), self._result)

    def finish(self) -> None:
        """Copy the result into the tensor, once the request is complete."""
        try:
            count, indices, values = self._copied()
        finally:
            self._release()
        whole = math.prod(self._tensor.shape[:self._indices.shape[0]])
        if count == whole:  # the library may return the whole array; the others have the union of the ranks' indices
            given = values.reshape(count, -1).ne(0).any(1)
            indices, values = indices[:, given], values[given]
        made = torch.sparse_coo_tensor(indices, values, self._tensor.shape, check_invariants=False, is_coalesced=True)
        with torch.no_grad():  # detach() of a sparse tensor would give an object with indices of its own
            self._tensor.copy_(made)

    def _copied(self) -> tuple[int, torch.Tensor, torch.Tensor]:
        """Copy the library's result. Returns the number of indices, the indices and the values."""
        count = int(self._result.count)
        rows, blocks = self._indices.shape[0], self._values.shape[1:]
        if count:
            at = ctypes.cast(self._result.indices, ctypes.c_void_p).value or 0
            indices = torch.empty((rows, count), dtype=torch.int64)
            ctypes.memmove(indices.data_ptr(), at, indices.nbytes)
            values = torch.empty((count, *blocks), dtype=self._values.dtype)
            ctypes.memmove(values.data_ptr(), self._result.values, values.nbytes)
        else:
            indices = torch.empty((rows, 0), dtype=torch.int64)
            values = torch.empty((0, *blocks), dtype=self._values.dtype)
        return count, indices, values
