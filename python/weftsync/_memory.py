"""Where the elements of a caller's array lie. Collectives and reducers read arrays through `region`.

An array is a NumPy array, or anything with __dlpack__ (PyTorch, JAX, CuPy) or the buffer protocol (array, memoryview).
Nothing is copied. `fresh` and `converted` make new arrays, for frameworks whose arrays are immutable.
Threads: any.
"""
from __future__ import annotations

import ctypes
import dataclasses
import sys
import weakref
from typing import Any, Optional

import numpy as np

from .constants import DType

_NUMPY = {np.dtype(name): dtype for name, dtype in {
    "uint8": DType.U8, "int8": DType.I8, "uint16": DType.U16, "int16": DType.I16, "uint32": DType.U32,
    "int32": DType.I32, "uint64": DType.U64, "int64": DType.I64, "float16": DType.F16, "float32": DType.F32,
    "float64": DType.F64, "complex64": DType.C64, "complex128": DType.C128}.items()}
_TO_NUMPY = {dtype: key for key, dtype in _NUMPY.items()}
_TO_NUMPY[DType.BF16] = np.dtype("uint16")

# dlpack.h: the codes of types, devices and flags, DLTensor and the versioned struct that holds one.
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_DLPACK = {(_UINT, 8): DType.U8, (_INT, 8): DType.I8, (_UINT, 16): DType.U16, (_INT, 16): DType.I16,
           (_UINT, 32): DType.U32, (_INT, 32): DType.I32, (_UINT, 64): DType.U64, (_INT, 64): DType.I64,
           (_FLOAT, 16): DType.F16, (_FLOAT, 32): DType.F32, (_FLOAT, 64): DType.F64, (_BFLOAT, 16): DType.BF16,
           (_COMPLEX, 64): DType.C64, (_COMPLEX, 128): DType.C128, (_BOOL, 8): DType.U8}
_HOST_DEVICES = (1, 3)  # kDLCPU, kDLCUDAHost
_READ_ONLY, _IS_COPIED = 1, 2
_MAJOR = 1  # of the versions whose layout is known
_MUTABLE = {"torch", "cupy"}  # frameworks whose arrays may be written to, though their capsules may not say so
_ALIGNMENT = 64  # of new arrays; JAX copies what has less


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


@dataclasses.dataclass(frozen=True)
class Region:
    """Elements in memory. `owner` keeps them alive and where they are."""

    address: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    writable: bool
    owner: Any
    boolean: bool = False  # elements of U8 are truth values: 0 or 1

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
    if dtype == np.bool_:
        return DType.U8
    if dtype not in _NUMPY:  # other byte orders are not in it
        raise TypeError(f"Weft has no elements of type {dtype}")
    return _NUMPY[dtype]


def region(array: Any) -> Region:
    """Where array's elements are. Raises TypeError for what is no array, no type of Weft's, or not host memory."""
    if isinstance(array, Region):
        return array
    if isinstance(array, np.ndarray):
        # NumPy refuses to resize an array that has a weak reference, also with refcheck=False.
        return _from_ndarray(array, (array, weakref.ref(array)))
    if hasattr(array, "__dlpack__"):
        return _from_dlpack(array)
    try:
        exported = np.asarray(memoryview(array))
    except TypeError:
        raise TypeError(f"{type(array).__name__} is no array: neither NumPy's, nor DLPack, nor a buffer") from None
    # It holds the memoryview: while a buffer has one, its object raises BufferError instead of resizing it.
    return _from_ndarray(exported, exported)


def _from_ndarray(array: np.ndarray[Any, Any], owner: Any) -> Region:
    size = array.itemsize
    if any(step % size for step in array.strides):
        raise TypeError("the array's strides are not multiples of its elements' size")
    return Region(array.__array_interface__["data"][0], _from_numpy(array.dtype), array.shape,
                  tuple(step // size for step in array.strides), array.flags.writeable, owner,
                  array.dtype == np.bool_)


def _from_dlpack(array: Any) -> Region:
    try:
        capsule = array.__dlpack__(max_version=(_MAJOR, 0))
    except TypeError:  # a producer of DLPack 0.x
        capsule = array.__dlpack__()
    tensor, flags = _dlpack_tensor(capsule)
    if flags is None:
        flags = 0 if _frameworks(array) & _MUTABLE else _READ_ONLY
    if tensor.device_type not in _HOST_DEVICES:
        raise TypeError("the array is not in host memory, which this version is limited to")
    dtype = _DLPACK.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise TypeError(f"Weft has no elements of DLPack's type {tensor.code} of {tensor.bits} bits")
    shape = tuple(tensor.shape[:tensor.ndim])
    strides = tuple(tensor.strides[:tensor.ndim]) if tensor.strides else row_major(shape)
    writable = not flags & (_READ_ONLY | _IS_COPIED)  # a result in a copy would never reach the array
    # The capsule stays as its producer made it: when it goes, it gives the memory back.
    return Region((tensor.data or 0) + tensor.byte_offset, dtype, shape, strides, writable, (array, capsule),
                  tensor.code == _BOOL)


def _dlpack_tensor(capsule: Any) -> tuple[_DLTensor, Optional[int]]:
    """The tensor of a capsule, and its flags; None where its version has none."""
    if not _capsule_is_valid(capsule, b"dltensor_versioned"):
        return _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor")), None
    managed = _DLManagedTensorVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
    if managed.major != _MAJOR:
        raise TypeError(f"the array's capsule has version {managed.major}.{managed.minor} of DLPack, asked for "
                        f"was {_MAJOR}.0")
    return managed.tensor, managed.flags


def _frameworks(array: Any) -> set[str]:
    """The top-level modules of the array's class and its bases."""
    return {kind.__module__.partition(".")[0] for kind in type(array).__mro__}


def fresh(like: Region, shape: tuple[int, ...]) -> Region:
    """New memory for elements of like's type. owner is a row-major NumPy array, where BF16 elements are uint16."""
    dtype = _TO_NUMPY[like.dtype]
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    array = memory[start:start + size].view(dtype).reshape(shape)
    return dataclasses.replace(_from_ndarray(array, array), dtype=like.dtype, boolean=like.boolean)


def converted(made: Region, array: Any) -> Any:
    """Converts memory of `fresh` to an array of array's framework, whose from_dlpack may copy it.

    The result is a NumPy array where array is one, or a buffer, or of a framework without from_dlpack.
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
    return made.owner.view(np.bool_) if made.boolean else made.owner


class _Export:
    """Exports memory of `fresh` through DLPack, also with a type that NumPy lacks."""

    def __init__(self, made: Region) -> None:
        self._made = made

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # kDLCPU

    def __dlpack__(self, **wanted: Any) -> Any:
        capsule = self._made.owner.__dlpack__(**wanted)
        tensor, _ = _dlpack_tensor(capsule)
        if self._made.boolean:
            tensor.code = _BOOL
        elif self._made.dtype == DType.BF16:
            tensor.code = _BFLOAT
        return capsule


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
