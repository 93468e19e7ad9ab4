"""Averager: the values of a model's parameters, averaged every so many steps."""
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
    """Averages arrays in place over the ranks of comm, now and then: local SGD's other half, beside the hook
    post_local_sgd. Creating one is collective.

    values      the parameters' arrays by name, equal on all ranks but for their contents; lent until close
    period      in steps; or levels (period, comm), ascending: the longest that divides the step wins, None is comm
    warmup      steps without averaging
    first_step  the number of the first step, for a training that goes on
    timeout     of an average, in seconds; default: the communicator's

    Threads: one at a time.
    """

    _destructor = "averager_destroy"

    def __init__(self, comm: Comm, values: Mapping[str, Any], period: Union[int, Sequence[Any]], *, warmup: int = 0,
                 first_step: int = 0, chunk_bytes: int = 0, timeout: Optional[float] = None) -> None:
        levels = [(period, None)] if isinstance(period, int) else list(period)
        list_, self._keep = _param_list([Param.like(name, array) for name, array in values.items()])
        for place, (name, array) in zip(list_, values.items()):
            part = region(array)
            if not part.writable:
                raise ValueError(f"{name} is read-only, and the average goes there; copy it into an array that "
                                 "can be written to (numpy.array)")
            place.parameter = part.address
            self._keep.append(part.owner)  # lent
        level_list = (_abi.AverageLevel * len(levels))()
        for level, (every, over) in zip(level_list, levels):
            level.struct_size, level.period = ctypes.sizeof(_abi.AverageLevel), every
            level.comm = None if over is None else over._handle
        self._comms = [comm] + [over for _, over in levels]
        options = _abi.AveragerOptions(params=list_, param_count=len(list_), param_size=ctypes.sizeof(_abi.Param),
                                       levels=level_list, level_count=len(levels), warmup=warmup, first_step=first_step,
                                       chunk_bytes=chunk_bytes, timeout_ms=milliseconds(timeout))
        handle, error = ctypes.c_void_p(), _abi.Error()
        code = lib.averager_create(comm._handle, options, handle, error)
        if code:
            raise_error(code, error)
        super().__init__(handle)

    def close(self) -> None:
        """Destroy the object; a second call does nothing. The arrays are given back."""
        super().close()
        if self.closed:
            self._keep.clear()

    def step(self) -> int:
        """An optimizer step was made: average if it is time to. Returns the period of the level that did, or 0."""
        period, error = ctypes.c_uint64(), _abi.Error()
        code = lib.averager_step(self._handle, period, error)
        if code:
            raise_error(code, error)
        return period.value
