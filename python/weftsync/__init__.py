"""Python bindings of Weft: collectives and gradient synchronisation on NumPy arrays, DLPack tensors and buffers.

    import numpy as np
    import weftsync

    with weftsync.Comm() as comm:    # rank, size and store address come from `weftsync run`, mpirun, torchrun or srun
        x = np.ones(3, np.float32)
        comm.all_reduce(x)           # in place; every rank receives the same bits
        y = comm.new.all_reduce(x)   # a new array; x may be immutable, a JAX array for example

The package calls libweft.so through ctypes and needs only NumPy. It searches for the library in this order:
- the file that the environment variable WEFT_LIBRARY names; if it is set, nothing else is tried
- the package's folder
- the folder build of the source tree
- the dynamic linker's search path

include/weft/weft.h specifies everything that these docstrings leave out.

Calls that the library refuses raise WeftError, which names the failed operation and the ranks at fault. Arguments that
the package itself refuses raise ValueError or TypeError before anything is sent. Calls release the interpreter's lock
(GIL) while they run.
"""
from . import _interpreter  # noqa: F401  # first: NumPy's own error in a subinterpreter does not name the cause
from . import constants as _constants
from ._collectives import Message
from .averager import Averager
from .comm import Comm, CommInfo
from .constants import (ANY_SOURCE, ANY_TAG, Accumulation, BroadcastFlag, Coll, DeviceKind, Divide, DType, Evidence,
                        GradientMode, HookCollectiveFlag, LogLevel, Op, Planner, Progress, ReducerFlag, Space,
                        Status)
from .context import BackendInfo, Context, DeviceInfo, version
from .custom_hook import (CustomHook, HookBucket, HookCollective, HookEntries, HookFunctions, HookParam, HookPlan,
                          HookStage, StageToken)
from .errors import WeftError
from .hook import Hook
from .launch import LaunchInfo, launch_info
from .records import BucketInfo, JoinResult, Norms, Param, ParamInfo, Slice, Stats, Verdict
from .reducer import Reducer
from .reduction import Reduction
from .request import Request
from .threads import Gathering, run_threads

__version__ = f"{_constants.VERSION_MAJOR}.{_constants.VERSION_MINOR}.{_constants.VERSION_PATCH}"

__all__ = ["ANY_SOURCE", "ANY_TAG", "Accumulation", "Averager", "BackendInfo", "BroadcastFlag", "BucketInfo", "Coll",
           "Comm", "CommInfo", "Context", "CustomHook", "DType", "DeviceInfo", "DeviceKind", "Divide", "Evidence", "Gathering",
           "GradientMode", "Hook", "HookBucket", "HookCollective", "HookCollectiveFlag", "HookEntries",
           "HookFunctions", "HookParam", "HookPlan", "HookStage", "JoinResult", "LaunchInfo", "LogLevel", "Message", "Norms", "Op",
           "Param", "ParamInfo", "Planner", "Progress", "Reducer", "ReducerFlag", "Reduction", "Request", "Slice",
           "Space", "StageToken", "Stats", "Status", "Verdict", "WeftError", "__version__", "launch_info", "run_threads",
           "version"]
