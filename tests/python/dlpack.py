"""Objects that export an array only through DLPack, with a chosen version, device and flags."""
import ctypes

READ_ONLY, IS_COPIED = 1, 2
CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # DLPack's type codes, by the kind of a NumPy type

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p),
                ("byte_offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor)]


class Producer:
    """Exports values, a row-major NumPy array. With flags None the capsule is unversioned, as before DLPack 1.0."""

    def __init__(self, values, flags=0, major=1, device=1):
        self.values = values
        self.shape = (ctypes.c_int64 * values.ndim)(*values.shape)
        tensor = Tensor(values.ctypes.data, device, 0, values.ndim, CODES[values.dtype.kind], 8 * values.itemsize, 1,
                        self.shape, None, 0)
        self.managed = Managed(tensor) if flags is None else Versioned(major, 0, None, None, flags, tensor)

    def _capsule(self):
        name = b"dltensor" if isinstance(self.managed, Managed) else b"dltensor_versioned"
        return new_capsule(ctypes.addressof(self.managed), name, None)

    def __dlpack__(self, *, max_version=None):
        return self._capsule() if isinstance(self.managed, Managed) or max_version else 1 / 0


class OldProducer(Producer):
    """A producer of DLPack 0.x, whose __dlpack__ has no argument max_version."""

    def __init__(self, values):
        super().__init__(values, flags=None)

    def __dlpack__(self):
        return self._capsule()


class Torch(OldProducer):
    """A tensor like those of PyTorch before 2.9: it is mutable, but its unversioned capsule has no flag for that."""


Torch.__module__ = "torch.fake"
