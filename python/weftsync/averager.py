"""Averager: averages the values of a model's parameters over ranks every few steps (local SGD)."""
from __future__ import annotations

import ctypes
from typing import Any, Mapping, Optional, Sequence, Union

from . import _abi
from ._handle import Handle, milliseconds
from ._library import lib, raise_error
from ._memory import region
from .comm import Comm
from .records import Param
from .reducer import _param_list


class Averager(Handle):
    """Averages arrays in place over the ranks of comm every `period` steps. It completes the hook post_local_sgd.

    Creating an averager is collective: all ranks pass the same names, shapes, types and options. A difference raises
    WeftError ERR_MISMATCH on every rank.

    values       maps each parameter's name to its array, which must be writable. The averager uses the arrays until
                 close
    period       average every so many steps, at least 1; or a list of levels (period, comm) with ascending periods. The
                 level with the longest period that divides a step averages over its comm; None stands for comm
    warmup       number of steps without averaging; the step after them averages
    first_step   number of the first step, for a training run that is resumed
    chunk_bytes  small values are sent together in messages of so many bytes; 0: 25 MiB
    timeout      deadline of one average in seconds; None: the communicator's

    The averager keeps its communicators alive. Threads: one at a time.
    """

    _destructor = "averager_destroy"

    def __init__(self, comm: Comm, values: Mapping[str, Any], period: Union[int, Sequence[Any]], *, warmup: int = 0,
                 first_step: int = 0, chunk_bytes: int = 0, timeout: Optional[float] = None) -> None:
        levels = [(period, None)] if isinstance(period, int) else list(period)
        list_, self._keep = _param_list([Param.like(name, array) for name, array in values.items()])
        for place, (name, array) in zip(list_, values.items()):
            part = region(array)
            if not part.writable:
                raise ValueError(f"the array of {name} is read-only, but the average is written into it; pass a "
                                 "writable copy (numpy.array)")
            place.parameter = part.address
            self._keep.append(part.owner)
        level_list = (_abi.AverageLevel * len(levels))()
        for level, (every, over) in zip(level_list, levels):
            level.struct_size, level.period = ctypes.sizeof(_abi.AverageLevel), every
            level.comm = None if over is None else over._handle
        self._comms = [comm] + [over for _, over in levels]
        options = _abi.AveragerOptions(params=list_, param_count=len(list_), param_size=ctypes.sizeof(_abi.Param),
                                       levels=level_list, level_count=len(levels), warmup=warmup, first_step=first_step,
                                       chunk_bytes=chunk_bytes, timeout_ms=milliseconds(timeout))
        handle, error = ctypes.c_void_p(), _abi.Error()
        code = lib.averager_create(comm._opened("communicator"), options, handle, error)
        if code:
            raise_error(code, error)
        super().__init__(handle)

    def close(self) -> None:
        """Destroy the averager; a second call does nothing. The arrays are no longer used afterwards."""
        super().close()
        if self.closed:
            self._keep.clear()

    def step(self) -> int:
        """Count an optimizer step, and average the values if a period ends with it. Blocks while it averages.

        Every rank calls it after every optimizer step. Returns the period of the level that averaged, or 0 for none.
        Raises WeftError, the communicator's failure; some values may be averaged then, and the step is not counted.
        """
        period, error = ctypes.c_uint64(), _abi.Error()
        code = lib.averager_step(self._handle, period, error)
        if code:
            raise_error(code, error)
        return period.value
