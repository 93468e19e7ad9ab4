"""Weft from Python: collectives and gradient synchronisation on NumPy arrays and anything with __dlpack__ or a buffer.

    import numpy as np, weftsync

    with weftsync.Comm() as comm:        # rank, size and meeting point come from `weft run`, mpirun, torchrun or srun
        x = np.ones(3, np.float32)
        comm.all_reduce(x)           # in place; every rank receives the same bits
        y = comm.new.all_reduce(x)   # a new array; x may be immutable, a JAX array for example

The package calls libweft.so through ctypes and needs NumPy alone. It looks for the library in WEFT_LIBRARY, beside
itself, in the folder build of the source tree, and where the system has libraries. include/weft/weft.h is the contract
of what is not said here. A WeftError says what failed, and which ranks. Calls into the library do not hold the
interpreter's lock.
"""
from . import constants as _constants
from .averager import Averager
from .comm import Comm, CommInfo
from .constants import (Coll, DeviceKind, Divide, DType, Evidence, GradientMode, LogLevel, Op, Planner, Progress,
                        Status)
from .context import BackendInfo, Context, version
from .errors import WeftError
from .hook import Hook
from .records import BucketInfo, JoinResult, Norms, Param, ParamInfo, Slice, Stats, Verdict
from .reducer import Reducer
from .request import Request
from .threads import Gathering, run_threads

__version__ = f"{_constants.VERSION_MAJOR}.{_constants.VERSION_MINOR}.{_constants.VERSION_PATCH}"

__all__ = ["Averager", "BackendInfo", "BucketInfo", "Coll", "Comm", "CommInfo", "Context", "DType", "DeviceKind",
           "Divide", "Evidence", "Gathering", "GradientMode", "Hook", "JoinResult", "LogLevel", "Norms", "Op",
           "Param", "ParamInfo", "Planner", "Progress", "Reducer", "Request", "Slice", "Stats", "Status", "Verdict",
           "WeftError", "__version__", "run_threads", "version"]
