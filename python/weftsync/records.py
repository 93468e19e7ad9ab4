"""Records of a Reducer: parameters, buckets, statistics and results."""
from __future__ import annotations

import dataclasses
import math
from typing import Any, Optional, Sequence, Union

from ._memory import dtype_of, region, row_major, same_strides
from .constants import DType, ParamFlag, choice


class Param:
    """A parameter of the model. All ranks pass the same parameters, except for value and gradient.

    name      unique in the list; errors use it
    shape     extents of the parameter and of its gradient; () is a scalar
    dtype     a DType, its name ("f32", "bf16") or a NumPy type
    strides   in elements; None: row-major
    uses      number of `ready` calls in a step, at least 1; the last one hands the gradient over
    value     memory of the parameter's value, which creation, `broadcast`, `check` and some hooks use: a writable array
              of this shape, type and strides, which the parameter keeps alive, or an address, which is not checked
    gradient  memory of the gradient in copy mode, if it is the same in every step: an array or an address, like value.
              `ready` then needs no array, and the result is written there even if the parameter is absent on this rank
    flags     "state_only", "buffer" or "ignored" for entries without a gradient. The first two need a value; a "buffer"
              (a running mean) is also broadcast as steps begin, see buffers of Reducer. An "ignored" entry is never
              compared, reduced or broadcast
    sparse    for sparse gradients: number of leading dimensions that the indices address; see Reducer.ready_sparse.
              0: the gradient is dense

    Raises TypeError for an unknown element type, and ValueError for unknown flags.
    """

    def __init__(self, name: str, shape: Sequence[int], dtype: Union[DType, str] = DType.F32,
                 strides: Optional[Sequence[int]] = None, uses: int = 1, *, value: Any = None, gradient: Any = None,
                 flags: Union[ParamFlag, str] = ParamFlag(0), sparse: int = 0) -> None:
        self.name = name
        self.uses = uses
        self.value = value
        self.gradient = gradient
        self.flags = choice(ParamFlag, flags, f"flags of {name}")
        self.flags |= ParamFlag.SPARSE if sparse else 0
        self.sparse = sparse
        self.shape = tuple(shape)
        self.dtype = dtype_of(dtype)
        self.strides = row_major(self.shape) if strides is None else tuple(strides)

    def __repr__(self) -> str:
        return f"Param({self.name!r}, {self.shape}, {self.dtype.name}, {self.strides})"

    @classmethod
    def like(cls, name: str, array: Any, **more: Any) -> Param:
        """Make a parameter with the shape, type and strides of an array. more are further arguments of Param."""
        part = region(array)
        return cls(name, part.shape, part.dtype, part.strides, **more)

    def address(self) -> int:
        """Return the address of the value, or 0. Raises ValueError if its array does not fit the parameter."""
        return self._place("value", self.value)[0]

    def gradient_address(self) -> int:
        """Return the address of the gradient, or 0. Raises ValueError if its array does not fit the parameter."""
        return self._place("gradient", self.gradient)[0]

    def places(self) -> tuple[int, int, list[Any]]:
        """Return both addresses, and the objects that keep the memory alive."""
        value, of_value = self._place("value", self.value)
        gradient, of_gradient = self._place("gradient", self.gradient)
        return value, gradient, [of_value, of_gradient]

    def _place(self, what: str, memory: Any) -> tuple[int, Any]:
        if memory is None or isinstance(memory, int):
            return memory or 0, None
        part = region(memory)
        bits = (self.dtype, part.dtype) == (DType.BF16, DType.U16)  # NumPy has no bf16
        alike = (bits or part.dtype == self.dtype) and part.shape == self.shape
        if not alike or not same_strides(self.shape, part.strides, self.strides) or not part.writable:
            raise ValueError(f"the {what} of {self.name} is {part.dtype.name} {part.shape} with strides {part.strides}"
                             f"{'' if part.writable else ', read-only'}; expected {self.dtype.name} {self.shape} with "
                             f"strides {self.strides}"
                             f"{'' if part.writable else ', writable (numpy.array makes a writable copy)'}")
        return part.address, part.owner


@dataclasses.dataclass(frozen=True)
class Stats:
    """Counters, bytes of memory and times in nanoseconds (weft_reducer_stats).

    The comments of weft_reducer_stats in weft.h define each field. Times without a prefix are those of the last
    synchronised step; mean_ is over all synchronised steps; p50 and p99 are percentiles of the last 128. straggler,
    first_active and last_active are ranks, -1 for none.
    """

    steps: int
    local_steps: int
    failed_steps: int
    bytes_reduced: int
    bucket_bytes: int
    scratch_bytes: int
    other_bytes: int
    step_ns: int
    exposed_ns: int
    communication_ns: int
    retained_bytes: int
    active_ranks: int
    first_active: int
    last_active: int
    skipped_buckets: int
    divisor: float
    absent_params: int
    absent_everywhere: int
    hook_bytes: int
    sent_bytes: int
    plain_bytes: int
    plan_generation: int
    param_bytes: int
    absent_bytes: int
    compute_ns: int
    overlap_ns: int
    mean_step_ns: int
    mean_compute_ns: int
    mean_communication_ns: int
    mean_overlap_ns: int
    mean_exposed_ns: int
    step_p50_ns: int
    step_p99_ns: int
    exposed_p50_ns: int
    exposed_p99_ns: int
    straggler_ns: int
    straggler: int
    captures: int
    launches: int
    replays: int
    copied_gradients: int
    hook_error: float
    hook_error_bucket: int


@dataclasses.dataclass(frozen=True)
class BucketInfo:
    """A bucket of the plan (weft_bucket_info).

    index        position in the order of launch
    dtype        element type in which the bucket is communicated
    params       indices of its parameters, in the order of their layout
    count        number of elements
    bytes        its size
    limit_bytes  the limit that ended it
    ready_ns     the last gradient was ready, in nanoseconds since the begin of the last synchronised step; 0: not yet
    launch_ns    its communication started, likewise
    done_ns      the result was in the gradients, likewise
    transfer_ns  duration of its collectives, including the wait for late ranks
    sent_bytes   bytes that this rank moved for it
    """

    index: int
    dtype: DType
    params: tuple[int, ...]
    count: int
    bytes: int
    limit_bytes: int
    ready_ns: int
    launch_ns: int
    done_ns: int
    transfer_ns: int
    sent_bytes: int


@dataclasses.dataclass(frozen=True)
class ParamInfo:
    """A parameter's place in the plan (weft_param_info).

    bucket             index of its bucket; 2**32 - 1 if it has no gradient
    offset             its first element in the bucket
    count              number of elements
    absent             True if it was absent on this rank in the last synchronised step
    absent_everywhere  True if it was absent on all ranks, so that it has no result
    """

    bucket: int
    offset: int
    count: int
    absent: bool
    absent_everywhere: bool


@dataclasses.dataclass(frozen=True)
class Norms:
    """Norms of the last synchronised step's results (weft_norms), equal on all ranks.

    total             L2 norm of all results together, before clipping
    clip_factor       factor by which the results were scaled
    nonfinite_params  number of parameters with an infinity or a NaN in their result
    skipped           True if the step was skipped on all ranks
    params            L2 norm of each parameter's result
    """

    total: float
    clip_factor: float
    nonfinite_params: int
    skipped: bool
    params: tuple[float, ...]

    @property
    def nonfinite(self) -> tuple[int, ...]:
        """Indices of the parameters with an infinity or a NaN in their result."""
        return tuple(index for index, norm in enumerate(self.params) if not math.isfinite(norm))


@dataclasses.dataclass(frozen=True)
class Slice:
    """A range of a parameter's elements: count elements from offset on, in the order of the gradient's memory."""

    param: int
    offset: int
    count: int


@dataclasses.dataclass(frozen=True)
class JoinResult:
    """The result of Reducer.join.

    steps        number of the other ranks' steps in which this rank took part without data
    last_active  the highest rank that had data in the last step, whose state is the newest; None if no rank had data
    """

    steps: int
    last_active: Optional[int]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Progress of the synchronised steps, which count from 0 (weft_verdict).

    last_finished_step   the last step whose results are all in this rank's gradients; None if there is none
    last_committed_step  the last step whose results are known to be on every rank; None if there is none
    next_step            number of the next step, or of the open one
    can_retry            True if this rank's contribution to next_step is kept, see Reducer.retry
    rolled_back          True if next_step was finished on this rank, but not on all: undo the use of its gradients
    """

    last_finished_step: Optional[int]
    last_committed_step: Optional[int]
    next_step: int
    can_retry: bool
    rolled_back: bool
