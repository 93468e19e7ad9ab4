"""Describes the memory of a caller's array. Collectives and reducers access arrays through `region`.

An array is a NumPy array, or an object with __dlpack__ (PyTorch, JAX, CuPy) or the buffer protocol (array, memoryview).
`region` copies nothing. `fresh` and `converted` make new arrays, for frameworks whose arrays are immutable.
Threads: any.
"""
from __future__ import annotations

import ctypes
import dataclasses
import math
import mmap
import sys
import weakref
from typing import Any, Optional

import numpy as np

from .constants import DType

_NUMPY = {np.dtype(name): dtype for name, dtype in {
    "uint8": DType.U8, "int8": DType.I8, "uint16": DType.U16, "int16": DType.I16, "uint32": DType.U32,
    "int32": DType.I32, "uint64": DType.U64, "int64": DType.I64, "float16": DType.F16, "float32": DType.F32,
    "float64": DType.F64, "complex64": DType.C64, "complex128": DType.C128, "bool": DType.BOOL}.items()}
_TO_NUMPY = {dtype: key for key, dtype in _NUMPY.items()}
_TO_NUMPY[DType.BF16] = np.dtype("uint16")

# From dlpack.h: codes of types, devices and flags; DLTensor; the versioned struct that contains a DLTensor.
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_DLPACK = {(_UINT, 8): DType.U8, (_INT, 8): DType.I8, (_UINT, 16): DType.U16, (_INT, 16): DType.I16,
           (_UINT, 32): DType.U32, (_INT, 32): DType.I32, (_UINT, 64): DType.U64, (_INT, 64): DType.I64,
           (_FLOAT, 16): DType.F16, (_FLOAT, 32): DType.F32, (_FLOAT, 64): DType.F64, (_BFLOAT, 16): DType.BF16,
           (_COMPLEX, 64): DType.C64, (_COMPLEX, 128): DType.C128, (_BOOL, 8): DType.BOOL}
_HOST_DEVICES = (1, 3)  # kDLCPU, kDLCUDAHost
_READ_ONLY, _IS_COPIED = 1, 2
_MAJOR = 1  # the major version of DLPack whose layout is declared here
_MUTABLE = {"torch", "cupy"}  # their arrays are writable, even where an unversioned capsule has no flag for it
_ALIGNMENT = 64  # bytes, of new arrays; JAX copies arrays with a smaller alignment


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager_ctx", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor)]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is_valid.restype = ctypes.c_int
_capsule_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]


@dataclasses.dataclass  # frozen=True would make every call of a collective slower
class Region:
    """Describes elements in memory; constant. As long as `owner` lives, the memory is neither freed nor moved."""

    address: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    writable: bool
    owner: Any

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def row_major(self) -> bool:
        """True if the elements are contiguous in row-major order, or there are none."""
        if len(self.shape) == 1:  # every call of the torch backend
            return self.shape[0] < 2 or self.strides[0] == 1
        return self.count == 0 or same_strides(self.shape, self.strides, row_major(self.shape))


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a row-major array, in elements."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def same_strides(shape: tuple[int, ...], one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """True if both strides give the same layout. The stride of an extent of 1 has no effect on it."""
    return all(extent == 1 or a == b for extent, a, b in zip(shape, one, other))


def dtype_of(what: Any) -> DType:
    """Return the DType for a DType, a name ("f32", "bf16") or a NumPy type. Raises TypeError if there is none."""
    if isinstance(what, DType):
        return what
    if isinstance(what, str) and what.upper() in DType.__members__:
        return DType[what.upper()]
    try:
        return _from_numpy(np.dtype(what))
    except TypeError as error:
        names = ", ".join(DType.__members__).lower()
        raise TypeError(f"no element type {what!r} ({error}); expected a NumPy type or one of: {names}") from None


def _from_numpy(dtype: np.dtype[Any]) -> DType:
    if dtype.name == "bfloat16":  # the type of the package ml_dtypes
        return DType.BF16
    if dtype not in _NUMPY:  # it has types of the native byte order alone
        raise TypeError(f"Weft has no element type for NumPy's {dtype.str} ({dtype}); it has bool, integers, floats "
                        "and complex numbers in native byte order")
    return _NUMPY[dtype]


def region(array: Any) -> Region:
    """Describe the memory of an array. Raises TypeError for a non-array, an unknown element type or device memory."""
    if isinstance(array, Region):
        return array
    if isinstance(array, np.ndarray):
        # NumPy refuses to resize an array that has a weak reference, even with refcheck=False. A view's memory is that
        # of its base.
        owners, base = [array], array.base
        while isinstance(base, np.ndarray):
            owners.append(base)
            base = base.base
        guards: list[Any] = [weakref.ref(owner) for owner in owners]
        if base is not None:
            guards.append(_exported(base))
        return _from_ndarray(array, (array, guards))
    if hasattr(array, "__dlpack__"):
        return _from_dlpack(array)
    try:
        exported = np.asarray(memoryview(array))
    except TypeError:
        raise TypeError(f"got an object of type {type(array).__name__}, expected a NumPy array or an object with "
                        "__dlpack__ or the buffer protocol") from None
    # The array references the memoryview. While it exists, resizing the object raises BufferError.
    return _from_ndarray(exported, exported)


def _exported(base: Any) -> Optional[memoryview]:
    """Export the buffer that an array was made of. While the export exists, releasing that buffer raises BufferError.

    numpy.ndarray(buffer=...) and numpy.memmap only keep the object alive, which does not keep a mapping from being
    closed or a bytearray from being resized. Returns None for an object without a buffer.
    """
    try:
        return memoryview(base)
    except Exception as error:
        if isinstance(error, ValueError) and isinstance(base, (memoryview, mmap.mmap)):  # released, closed
            raise ValueError(f"the array's memory is gone: {error}") from None
        return None


def _from_ndarray(array: np.ndarray[Any, Any], owner: Any) -> Region:
    size = array.itemsize
    if any(step % size for step in array.strides):
        raise TypeError(f"the array has strides {array.strides} in bytes, expected multiples of its element size "
                        f"{size}; pass a copy (numpy.ascontiguousarray)")
    return Region(array.__array_interface__["data"][0], _from_numpy(array.dtype), array.shape,
                  tuple(step // size for step in array.strides), array.flags.writeable, owner)


def _from_dlpack(array: Any) -> Region:
    try:
        capsule = array.__dlpack__(max_version=(_MAJOR, 0))
    except TypeError:  # the producer implements DLPack 0.x
        capsule = array.__dlpack__()
    tensor, flags = _dlpack_tensor(capsule)
    if flags is None:
        flags = 0 if _frameworks(array) & _MUTABLE else _READ_ONLY
    if tensor.device_type not in _HOST_DEVICES:
        raise TypeError(f"the array is on a device (DLPack device type {tensor.device_type}), expected host memory; "
                        "copy it to the host")
    dtype = _DLPACK.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise TypeError(f"Weft has no element type for DLPack type code {tensor.code} with {tensor.bits} bits and "
                        f"{tensor.lanes} lanes")
    shape = tuple(tensor.shape[:tensor.ndim])
    strides = tuple(tensor.strides[:tensor.ndim]) if tensor.strides else row_major(shape)
    writable = not flags & (_READ_ONLY | _IS_COPIED)  # a result written to a copy would not reach the array
    # The capsule is not marked as used, so it releases the producer's memory when it is deleted.
    return Region((tensor.data or 0) + tensor.byte_offset, dtype, shape, strides, writable, (array, capsule))


def _dlpack_tensor(capsule: Any) -> tuple[_DLTensor, Optional[int]]:
    """Return the tensor of a capsule and its flags; the flags of an unversioned capsule are None."""
    if not _capsule_is_valid(capsule, b"dltensor_versioned"):
        return _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor")), None
    managed = _DLManagedTensorVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
    if managed.major != _MAJOR:
        raise TypeError(f"the array's DLPack capsule has version {managed.major}.{managed.minor}, expected {_MAJOR}.x; "
                        "pass a NumPy array instead")
    return managed.tensor, managed.flags


def _frameworks(array: Any) -> set[str]:
    """Return the top-level modules of the array's class and its base classes."""
    return {kind.__module__.partition(".")[0] for kind in type(array).__mro__}


def fresh(like: Region, shape: tuple[int, ...]) -> Region:
    """Allocate memory for elements of like's type. Its owner is a row-major NumPy array.

    BF16 elements are uint16, and BOOL elements uint8, because NumPy exports neither through DLPack before 1.25.
    """
    dtype = np.dtype(np.uint8) if like.dtype == DType.BOOL else _TO_NUMPY[like.dtype]
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    array = memory[start:start + size].view(dtype).reshape(shape)
    return dataclasses.replace(_from_ndarray(array, array), dtype=like.dtype)


def part_of(made: Region, start: int, shape: tuple[int, ...]) -> Region:
    """Describe a part of the memory of a flat region of `fresh`, from an element on."""
    view = made.owner[start:start + math.prod(shape)].reshape(shape)
    return dataclasses.replace(_from_ndarray(view, view), dtype=made.dtype)


def converted(made: Region, array: Any) -> Any:
    """Convert memory of `fresh` to an array of the same framework as array. The framework's from_dlpack may copy it.

    The result is a NumPy array if array is one, if it is a buffer, or if its framework has no from_dlpack.
    """
    if isinstance(array, np.ndarray):
        return made.owner.view(array.dtype)
    if hasattr(array, "__array_namespace__"):
        spaces = [array.__array_namespace__()]
    else:
        names = _frameworks(array) if hasattr(array, "__dlpack__") else []
        spaces = [sys.modules.get(name) for name in names]
    for space in spaces:
        if hasattr(space, "from_dlpack"):
            return space.from_dlpack(_Export(made))
    return made.owner.view(np.bool_) if made.dtype == DType.BOOL else made.owner


class _Export:
    """Exports memory of `fresh` through DLPack, with the types bool and BF16 where NumPy's export has others."""

    def __init__(self, made: Region) -> None:
        self._made = made

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # kDLCPU

    def __dlpack__(self, **wanted: Any) -> Any:
        capsule = self._made.owner.__dlpack__(**wanted)
        tensor, _ = _dlpack_tensor(capsule)
        if self._made.dtype == DType.BOOL:
            tensor.code = _BOOL
        elif self._made.dtype == DType.BF16:
            tensor.code = _BFLOAT
        return capsule


def memory_array(address: int, dtype: DType, shape: tuple[int, ...], strides: Optional[tuple[int, ...]],
                 owner: Any) -> np.ndarray[Any, Any]:
    """Return the library's memory as an array that keeps owner alive. strides are in elements; None is row-major.

    BF16 elements appear as their bits, in uint16.
    """
    numpy_dtype = _TO_NUMPY[dtype]
    strides = row_major(shape) if strides is None else strides
    extent = 0 if 0 in shape else 1 + sum((n - 1) * step for n, step in zip(shape, strides))
    if extent == 0:
        return np.empty(shape, numpy_dtype)
    memory = (ctypes.c_uint8 * (extent * numpy_dtype.itemsize)).from_address(address)
    setattr(memory, "_weft_owner", owner)
    flat = np.frombuffer(memoryview(memory), numpy_dtype)
    return np.lib.stride_tricks.as_strided(flat, shape, [step * numpy_dtype.itemsize for step in strides])
