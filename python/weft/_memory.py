"""Where the elements of a caller's array lie. Collectives and reducers read arrays through `region`.

An array is a NumPy array, or anything with __dlpack__ (PyTorch, JAX, CuPy) or the buffer protocol (array, memoryview).
Nothing is copied. Threads: any.
"""
from __future__ import annotations

import ctypes
import dataclasses
from typing import Any, Optional

import numpy as np

from .constants import DType

_NUMPY = {np.dtype(name): dtype for name, dtype in {
    "uint8": DType.U8, "int8": DType.I8, "uint16": DType.U16, "int16": DType.I16, "uint32": DType.U32,
    "int32": DType.I32, "uint64": DType.U64, "int64": DType.I64, "float16": DType.F16, "float32": DType.F32,
    "float64": DType.F64, "complex64": DType.C64, "complex128": DType.C128}.items()}
_TO_NUMPY = {dtype: key for key, dtype in _NUMPY.items()}
_TO_NUMPY[DType.BF16] = np.dtype("uint16")

# DLPack 0.x: dlpack.h's DLTensor and the codes of its types and devices.
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX = 0, 1, 2, 4, 5
_DLPACK = {(_UINT, 8): DType.U8, (_INT, 8): DType.I8, (_UINT, 16): DType.U16, (_INT, 16): DType.I16,
           (_UINT, 32): DType.U32, (_INT, 32): DType.I32, (_UINT, 64): DType.U64, (_INT, 64): DType.I64,
           (_FLOAT, 16): DType.F16, (_FLOAT, 32): DType.F32, (_FLOAT, 64): DType.F64, (_BFLOAT, 16): DType.BF16,
           (_COMPLEX, 64): DType.C64, (_COMPLEX, 128): DType.C128}
_HOST_DEVICES = (1, 3)  # kDLCPU, kDLCUDAHost


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


@dataclasses.dataclass(frozen=True)
class Region:
    """Elements in memory. `owner` keeps them alive."""

    address: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    writable: bool
    owner: Any

    @property
    def count(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def row_major(self) -> bool:
        return self.count == 0 or same_strides(self.shape, self.strides, row_major(self.shape))


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def same_strides(shape: tuple[int, ...], one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether both place the elements alike: the stride of an extent of 1 has no meaning."""
    return all(extent == 1 or a == b for extent, a, b in zip(shape, one, other))


def dtype_of(what: Any) -> DType:
    """A DType from itself, its name ("f32", "bf16") or a NumPy type."""
    if isinstance(what, DType):
        return what
    if isinstance(what, str) and what.upper() in DType.__members__:
        return DType[what.upper()]
    return _from_numpy(np.dtype(what))


def _from_numpy(dtype: np.dtype[Any]) -> DType:
    if dtype.name == "bfloat16":  # of the package ml_dtypes
        return DType.BF16
    if dtype not in _NUMPY:  # other byte orders are not in it
        raise TypeError(f"Weft has no elements of type {dtype}")
    return _NUMPY[dtype]


def region(array: Any) -> Region:
    """Where array's elements are. Raises TypeError for what is no array, no type of Weft's, or not host memory."""
    if isinstance(array, np.ndarray):
        return _from_ndarray(array, array)
    if hasattr(array, "__dlpack__"):
        return _from_dlpack(array)
    try:
        return _from_ndarray(np.asarray(memoryview(array)), array)
    except TypeError:
        raise TypeError(f"{type(array).__name__} is no array: neither NumPy's, nor DLPack, nor a buffer") from None


def _from_ndarray(array: np.ndarray[Any, Any], owner: Any) -> Region:
    size = array.itemsize
    if any(step % size for step in array.strides):
        raise TypeError("the array's strides are not multiples of its elements' size")
    return Region(array.__array_interface__["data"][0], _from_numpy(array.dtype), array.shape,
                  tuple(step // size for step in array.strides), array.flags.writeable, owner)


def _from_dlpack(array: Any) -> Region:
    capsule = array.__dlpack__()
    tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    if tensor.device_type not in _HOST_DEVICES:
        raise TypeError("the array is not in host memory, which this version is limited to")
    dtype = _DLPACK.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise TypeError(f"Weft has no elements of DLPack's type {tensor.code} of {tensor.bits} bits")
    shape = tuple(tensor.shape[:tensor.ndim])
    strides = tuple(tensor.strides[:tensor.ndim]) if tensor.strides else row_major(shape)
    # The capsule stays as its producer made it: when it goes, it gives the memory back.
    return Region((tensor.data or 0) + tensor.byte_offset, dtype, shape, strides, True, (array, capsule))


def memory_array(address: int, dtype: DType, shape: tuple[int, ...], strides: Optional[tuple[int, ...]],
                 owner: Any) -> np.ndarray[Any, Any]:
    """The library's memory as an array, which keeps owner. BF16 elements appear as their bits, in uint16."""
    numpy_dtype = _TO_NUMPY[dtype]
    strides = row_major(shape) if strides is None else strides
    extent = 0 if 0 in shape else 1 + sum((n - 1) * step for n, step in zip(shape, strides))
    if extent == 0:
        return np.empty(shape, numpy_dtype)
    memory = (ctypes.c_uint8 * (extent * numpy_dtype.itemsize)).from_address(address)
    setattr(memory, "_weft_owner", owner)
    flat = np.frombuffer(memoryview(memory), numpy_dtype)
    return np.lib.stride_tricks.as_strided(flat, shape, [step * numpy_dtype.itemsize for step in strides])
