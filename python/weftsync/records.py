"""What a Reducer is made of, and what it tells: parameters, buckets, statistics."""
from __future__ import annotations

import dataclasses
import math
from typing import Any, Optional, Sequence, Union

from ._memory import dtype_of, region, row_major, same_strides
from .constants import DType, ParamFlag, choice


class Param:
    """One parameter of the model, equal on all ranks. strides are in elements; None is row-major.

    uses      how often it becomes ready in a step; the last time counts
    value     where its value is, for broadcasts, comparisons and hooks: an array of this shape, type and strides, which
              the parameter keeps, or an address; this rank's own
    gradient  where its gradient is in copy mode, if it is there in every step, likewise: for ready without one, and for
              the result where it was absent
    flags     "state_only", "buffer" or "ignored" for what has no gradient; such state needs a value
    sparse    how many leading dimensions the indices of its gradients name, where they are sparse; see
              Reducer.ready_sparse
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
        """A parameter of array's shape, type and strides."""
        part = region(array)
        return cls(name, part.shape, part.dtype, part.strides, **more)

    def address(self) -> int:
        """Where the value is; 0 without one."""
        return self._place("value", self.value)[0]

    def gradient_address(self) -> int:
        """Where the gradient is; 0 if that is said in each step."""
        return self._place("gradient", self.gradient)[0]

    def places(self) -> tuple[int, int, list[Any]]:
        """Both addresses, and what must be kept so that the memory stays there."""
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
                             f"{'' if part.writable else ', read-only'}, not {self!r}"
                             f"{'' if part.writable else ' that can be written to (numpy.array copies)'}")
        return part.address, part.owner


@dataclasses.dataclass(frozen=True)
class Stats:
    """Counters, memory, and times of the last synchronised step in nanoseconds (weft_reducer_stats)."""

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
    """A bucket, in order of launch; times are of the last synchronised step, in nanoseconds since its begin."""

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
    """Where a parameter is in the plan, and whether it was absent from the last synchronised step."""

    bucket: int
    offset: int
    count: int
    absent: bool
    absent_everywhere: bool


@dataclasses.dataclass(frozen=True)
class Norms:
    """Of the last step's results (weft_norms): L2 norms of all and of each, before clipping."""

    total: float
    clip_factor: float
    nonfinite_params: int
    skipped: bool
    params: tuple[float, ...]

    @property
    def nonfinite(self) -> tuple[int, ...]:
        """Which parameters have an infinity or a NaN in their result: nonfinite_params of them."""
        return tuple(index for index, norm in enumerate(self.params) if not math.isfinite(norm))


@dataclasses.dataclass(frozen=True)
class Slice:
    """A piece of a parameter: elements in the order in which its gradient is laid out."""

    param: int
    offset: int
    count: int


@dataclasses.dataclass(frozen=True)
class JoinResult:
    """The others' steps in which this rank took part without data; the highest rank with data in the last, or None."""

    steps: int
    last_active: Optional[int]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """How far the synchronised steps have come (weft_verdict); None where there is none."""

    last_finished_step: Optional[int]
    last_committed_step: Optional[int]
    next_step: int
    can_retry: bool
    rolled_back: bool
