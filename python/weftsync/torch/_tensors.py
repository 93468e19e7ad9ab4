"""Describes the memory of tensors, and converts torch's element types and reductions to Weft's."""
from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .._memory import Region
from ..constants import DType, Op
from ._errors import refused

_ELEMENTS = {torch.uint8: DType.U8, torch.int8: DType.I8, torch.int16: DType.I16, torch.int32: DType.I32,
             torch.int64: DType.I64, torch.uint16: DType.U16, torch.uint32: DType.U32, torch.uint64: DType.U64,
             torch.float16: DType.F16, torch.bfloat16: DType.BF16, torch.float32: DType.F32, torch.float64: DType.F64,
             torch.float8_e4m3fn: DType.F8_E4M3, torch.float8_e5m2: DType.F8_E5M2, torch.bool: DType.BOOL,
             torch.complex64: DType.C64, torch.complex128: DType.C128}

_Red = dist.ReduceOp.RedOpType
_OPS = {_Red.SUM: Op.SUM, _Red.AVG: Op.AVG, _Red.PRODUCT: Op.PROD, _Red.MIN: Op.MIN, _Red.MAX: Op.MAX,
        _Red.BAND: Op.BAND, _Red.BOR: Op.BOR, _Red.BXOR: Op.BXOR, _Red.PREMUL_SUM: Op.PREMUL_SUM}
_COMPLEX_OPS = (Op.SUM, Op.AVG, Op.PREMUL_SUM)
_UNDIVIDED = (torch.uint16, torch.uint32, torch.uint64)  # torch has no division for them
_BITWISE = (Op.BAND, Op.BOR, Op.BXOR)


class Reduction(NamedTuple):
    """A reduction as the library takes it, and the divisor that the caller applies to the result (1: none)."""

    op: Op
    factor: float = 0.0
    divisor: int = 1


def reduction(reduce_op: Any, dtype: torch.dtype, size: int) -> Reduction:
    """Convert a ReduceOp for elements of dtype. Raises RuntimeError where the type does not have the operation."""
    how = _reduction(getattr(reduce_op, "op", reduce_op), dtype, size)  # reduce_op is a ReduceOp, or its type
    return how._replace(factor=_factor(reduce_op)) if how.op == Op.PREMUL_SUM else how


@functools.lru_cache(maxsize=None)
def _reduction(kind: Any, dtype: torch.dtype, size: int) -> Reduction:
    op = _OPS[kind]
    if op in _BITWISE and (dtype.is_floating_point or dtype.is_complex):
        raise refused("reduction", f"Cannot use ReduceOp.{op.name} with elements of type {dtype}", RuntimeError)
    if dtype.is_complex and op not in _COMPLEX_OPS:
        raise refused("reduction", f"all_reduce does not support {kind} on complex tensors", RuntimeError)
    if dtype == torch.bool and op in (Op.AVG, Op.PREMUL_SUM):
        raise refused("reduction", f"Cannot use ReduceOp.{op.name} with Boolean tensors", RuntimeError)
    if op == Op.AVG and dtype in _UNDIVIDED:
        raise refused("reduction", f"Cannot use ReduceOp.AVG with elements of type {dtype}, which torch cannot divide: "
                      "use ReduceOp.SUM", RuntimeError)
    if op == Op.AVG and not (dtype.is_floating_point or dtype.is_complex):
        return Reduction(Op.SUM, divisor=size)
    return Reduction(op)


def _factor(reduce_op: Any) -> float:
    """Return the factor of a PREMUL_SUM, which torch makes accessible only through the pickle protocol."""
    _, factor = reduce_op.__getstate__()
    return float(factor)


def element(dtype: torch.dtype) -> DType:
    """Convert an element type. Raises KeyError for a type that Weft does not know."""
    return _ELEMENTS[dtype]


def part(tensor: torch.Tensor) -> Region:
    """Describe the elements of a contiguous tensor, which the Region keeps alive."""
    dtype = _ELEMENTS.get(tensor.dtype)
    if dtype is None:
        raise refused("collective", f"Invalid scalar type: elements of type {tensor.dtype} are not supported",
                      RuntimeError)
    return Region(tensor.data_ptr(), dtype, (tensor.numel(),), (1,), True, tensor)


def message(tensor: torch.Tensor) -> Region:
    """Describe a contiguous tensor as `part` does, or its bytes if Weft does not know the type of its elements."""
    if tensor.dtype in _ELEMENTS:
        return part(tensor)
    return Region(tensor.data_ptr(), DType.U8, (tensor.nbytes,), (1,), True, tensor)


def single(tensors: Sequence[torch.Tensor], name: str) -> torch.Tensor:
    """Return the only tensor of a list that c10d passes for devices: one process has one."""
    if len(tensors) != 1:
        raise refused(name, f"requires a single-element tensor list, got {len(tensors)} tensors")
    return checked(tensors[0], name)


def checked(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Check that the tensor is dense and in host memory."""
    if tensor.layout != torch.strided:
        raise refused(name, "only supports dense tensors")
    if tensor.device.type != "cpu":
        raise refused(name, f"No backend type associated with device type {tensor.device.type}: the tensor is on "
                      f"{tensor.device}, expected cpu", RuntimeError)
    return tensor


def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenate the tensors' elements in a new one-dimensional tensor, or return the only one, detached."""
    if len(tensors) == 1 and tensors[0].is_contiguous():
        return tensors[0].detach()
    return torch.cat([one.detach().reshape(-1) for one in tensors])


def spread(source: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy consecutive elements of source into the tensors."""
    begin = 0
    for one in tensors:
        one.detach().copy_(source[begin:begin + one.numel()].view(one.shape))
        begin += one.numel()
