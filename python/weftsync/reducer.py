"""Reducer: gradient synchronisation for one list of parameters."""
from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, Union

import numpy as np

from . import _abi, _interrupt
from ._deferred import deferred
from ._handle import Handle, milliseconds
from ._interrupt import raised
from ._library import check, lib, raise_error
from ._memory import memory_array, region, same_strides
from .comm import Comm
from .constants import (NO_STEP, ROOT_LAST_ACTIVE, BeginFlag, BroadcastFlag, Divide, DType, FinishFlag, GradientMode,
                        ParamFlag, Planner, ReducerFlag, Status, choice)
from .errors import WeftError
from .hook import Hook
from .records import BucketInfo, JoinResult, Norms, Param, ParamInfo, Slice, Stats, Verdict

LISTED_NAMES = 20  # of parameters, in an error
_READ_ONLY = ("the gradient of {} is read-only, and the result goes there; copy it into an array that can be "
              "written to (numpy.array), or into its view with mode=\"view\"")


class Reducer(Handle):
    """Averages gradients over the ranks of comm. Creating one is collective: all ranks give the same parameters.

    mode           "copy": ready takes the gradient's array, where the result is written; "view": gradients are
                   computed in the arrays of `views`
    bucket_limits  bytes; the last repeats, 0 is one parameter a bucket; default 1 MiB, then 25 MiB
    on_bucket      receives (step, bucket, Status) when a bucket's result is in the gradients, or will not be; on any
                   thread
    timeout        of a step from its finish on, in seconds; default: the communicator's
    retain         keep what each rank contributes, for `retry`
    absent         parameters may be absent from a step
    static         the first step shows how often each parameter becomes ready, and which never do; that stays
    uneven         ranks may begin a step without data, with weights, and join
    stop_when_exhausted   with uneven: a step in which a rank has joined is not reduced; finish says so on all ranks
    divide_by      what sums are divided by; all but "world" need uneven
    norms          compute the norms of the results, see `norms`
    buffers        synchronised steps begin with a broadcast of the buffers from buffers_root: a rank, or "last_active",
                   the highest rank with data in the step
    check_interval compare the parameters' values as every so many synchronised steps begin, see `check`
    sharded        each rank receives the results that it owns alone, see `owned`
    own_whole      with sharded: a parameter is owned by one rank as a whole
    sparse_fixed   the indices of each rank's sparse gradients are those of its first step
    plan           which parameters share a bucket, in order of launch; default: by bucket_limits
    reduce_dtype   f16, bf16 or f32: the type in which gradients of these travel; default: their own
    accumulate_f32 local steps add 16-bit gradients up in f32
    deterministic  the same bits for every backend, algorithm and plan
    replan         re-plan as the second synchronised step begins; in view mode, `views` are others then
    model          by a model of the step then, as Planner.MODEL
    first_needed   with model: as Planner.FIRST_NEEDED
    reduced_views  with sharded, in view mode, over shm: results can be read where their owners have them, see
                   `reduced_view`
    copy_strays    view mode: ready takes gradients that are elsewhere, and copies them into their views
    keep_values    do not copy rank 0's values (Param.value) to all ranks here
    keep_plan      copy mode: do not re-plan after the first synchronised step
    strict_strides a gradient with other strides than its parameter's is an error; else it is copied by its own

    Threads: one at a time; ready: any, different parameters concurrently.
    """

    _destructor = "reducer_destroy"

    def __init__(self, comm: Comm, params: Sequence[Param], *, mode: Union[GradientMode, str] = GradientMode.COPY,
                 bucket_limits: Optional[Sequence[int]] = None, hook: Optional[Hook] = None,
                 on_bucket: Optional[Callable[[int, int, Status], None]] = None, timeout: Optional[float] = None,
                 retain: bool = False, absent: bool = False, uneven: bool = False, stop_when_exhausted: bool = False,
                 divide_by: Union[Divide, str] = Divide.WORLD, norms: bool = False, static: bool = False,
                 buffers: bool = False, buffers_root: Union[int, str] = 0, check_interval: int = 0,
                 sharded: bool = False, own_whole: bool = False, sparse_fixed: bool = False,
                 plan: Optional[Sequence[Sequence[Union[int, str]]]] = None,
                 reduce_dtype: Optional[Union[DType, str]] = None, accumulate_f32: bool = False,
                 deterministic: bool = False, copy_strays: bool = False, replan: bool = False,
                 model: bool = False, first_needed: bool = False, reduced_views: bool = False,
                 keep_values: bool = False, keep_plan: bool = False, strict_strides: bool = False) -> None:
        self.comm = comm
        self.params = list(params)
        self.mode = choice(GradientMode, mode, "mode")
        self._index = {param.name: index for index, param in enumerate(self.params)}
        self._lent: dict[int, Any] = {}
        self._on_bucket = None
        self._norms = norms
        self._places: Any = None
        list_, self._keep = _param_list(self.params)
        options = _abi.ReducerOptions(params=list_, param_count=len(params), param_size=ctypes.sizeof(_abi.Param),
                                      mode=self.mode, timeout_ms=milliseconds(timeout))
        self._set_plan(options, plan, bucket_limits)
        if hook is not None:
            options.hook = hook._handle
        if on_bucket is not None:
            tell = on_bucket  # the callback lives as long as this object
            self._on_bucket = _abi.bucket_fn(_interrupt.keeping(
                lambda _, step, bucket, code: tell(step, bucket, Status(code))))
            options.on_bucket = self._on_bucket
        for wanted, flag in ((retain, ReducerFlag.RETAIN), (absent, ReducerFlag.ABSENT), (uneven, ReducerFlag.UNEVEN),
                             (stop_when_exhausted, ReducerFlag.STOP_WHEN_EXHAUSTED), (norms, ReducerFlag.NORMS),
                             (static, ReducerFlag.STATIC), (buffers, ReducerFlag.BUFFERS),
                             (sharded, ReducerFlag.SHARDED), (own_whole, ReducerFlag.OWN_WHOLE),
                             (sparse_fixed, ReducerFlag.SPARSE_FIXED),
                             (accumulate_f32, ReducerFlag.ACCUMULATE_F32), (deterministic, ReducerFlag.DETERMINISTIC),
                             (copy_strays, ReducerFlag.COPY_STRAYS), (replan, ReducerFlag.REPLAN),
                             (model, ReducerFlag.MODEL), (first_needed, ReducerFlag.FIRST_NEEDED),
                             (reduced_views, ReducerFlag.REDUCED_VIEWS), (keep_values, ReducerFlag.KEEP_VALUES),
                             (keep_plan, ReducerFlag.KEEP_PLAN), (strict_strides, ReducerFlag.STRICT_STRIDES)):
            options.flags |= flag if wanted else 0
        options.buffers_root, options.check_interval = _root(buffers_root), check_interval
        options.divide_by = choice(Divide, divide_by, "divide_by")
        if reduce_dtype is not None:
            options.reduce_dtype = choice(DType, reduce_dtype, "reduce_dtype")
        handle, error = ctypes.c_void_p(), _abi.Error()
        code = lib.reducer_create(comm._handle, options, handle, error)
        if code:
            raise_error(code, error)
        super().__init__(handle)

    def close(self) -> None:
        """Destroy the object; a second call does nothing. The arrays of parameters are given back."""
        super().close()
        if self.closed:
            self._lent.clear()
            self._keep.clear()

    def view(self, param: Union[int, str]) -> np.ndarray[Any, Any]:
        """Where a gradient lives in view mode; BF16 elements appear as uint16. Not to be used after close."""
        index, memory = self.index(param), ctypes.c_void_p()
        self._check(lib.reducer_grad_view(self._handle, index, memory))
        what = self.params[index]
        strides = what.strides if _dense(what.shape, what.strides) else None
        return memory_array(memory.value or 0, what.dtype, what.shape, strides, self)

    @property
    def views(self) -> list[np.ndarray[Any, Any]]:
        """Of all parameters; an empty array for one without a gradient, or with sparse ones."""
        without = ParamFlag.STATE_ONLY | ParamFlag.BUFFER | ParamFlag.IGNORED | ParamFlag.SPARSE
        return [np.empty(0) if param.flags & without else self.view(index) for index, param in enumerate(self.params)]

    def index(self, param: Union[int, str]) -> int:
        """The number of a parameter. Raises ValueError for an unknown name, which lists the names."""
        if not isinstance(param, str):
            return param
        if param not in self._index:
            names, more = list(self._index)[:LISTED_NAMES], len(self._index) - LISTED_NAMES
            raise ValueError(f"no parameter is named {param!r}; the names are: {', '.join(names)}" +
                             (f" and {more} more" if more > 0 else ""))
        return self._index[param]

    def begin(self, *, local: bool = False, micro_batches: int = 1, no_data: bool = False, fixed: bool = False,
              weight: float = 1.0, record: bool = False, gradients: Optional[Mapping[Union[int, str], Any]] = None) -> None:
        """Begin a step.

        local          gradients are only added up here, for the next synchronised step
        micro_batches  the result is divided by so many, too
        no_data        this rank has none in this step: it contributes zeros and receives the results; finish at once
        fixed          the same parameters are absent on all ranks: nothing is exchanged about that
        weight         of this rank, where sums are divided by the weights
        record         note the order in which gradients become ready, for `replan`; the first step does
        gradients      in copy mode, where results of absent parameters go, by parameter, with the parameters' strides;
                       lent until finish
        """
        options = _abi.BeginOptions(flags=(BeginFlag.LOCAL if local else 0) | (BeginFlag.NO_DATA if no_data else 0) |
                                    (BeginFlag.FIXED if fixed else 0) | (BeginFlag.RECORD if record else 0), micro_batches=micro_batches, weight=weight)
        if gradients:
            places: list[Optional[int]] = [None] * len(self.params)
            for param, gradient in gradients.items():
                places[self.index(param)] = self._address(self.index(param), gradient)
            options.gradients = self._places = (ctypes.c_void_p * len(places))(*places)
        self._check(lib.reducer_begin(self._handle, options))

    def ready(self, param: Union[int, str], gradient: Any = None) -> None:
        """A gradient is complete. In copy mode its array is lent until its bucket is done, at the latest by finish.

        An array of another type or shape than the parameter's is refused (weft_reducer_ready_tensor). One with other
        strides is copied, and so is its result: stats().copied_gradients counts those, strict_strides refuses them. gradient
        may also be an address (torch.Tensor.data_ptr); then nothing is checked. In view mode, and where Param.gradient
        says it, it may be None. Threads: any.
        """
        index = self.index(param)
        if gradient is None or isinstance(gradient, int):
            self._check(lib.reducer_ready(self._handle, index, gradient, None))
            return
        part, what = region(gradient), self.params[index] if 0 <= index < len(self.params) else None
        if what is not None and not part.writable:
            raise ValueError(_READ_ONLY.format(what.name))
        bits = what is not None and (what.dtype, part.dtype) == (DType.BF16, DType.U16)  # NumPy has no bf16
        extents = ctypes.c_int64 * len(part.shape)
        tensor = _abi.Tensor(data=part.address, dtype=DType.BF16 if bits else part.dtype, ndim=len(part.shape),
                             shape=extents(*part.shape), strides=None if part.row_major else extents(*part.strides))
        self._check(lib.reducer_ready_tensor(self._handle, index, tensor, None))
        self._lent[index] = part.owner

    def ready_sparse(self, param: Union[int, str], indices: Any, values: Any) -> None:
        """A sparse gradient is complete; its entries are read during the call, the same index may come several times.

        indices: i64, row-major, of shape (sparse, entries), or (entries,) where one dimension is named; values: row-major,
        of shape (entries, *the other dimensions). Threads: any.
        """
        index = self.index(param)
        what = self.params[index] if 0 <= index < len(self.params) else Param("", ())
        where, numbers = region(indices), region(values)
        count = where.shape[-1] if where.shape else 0
        same_type = numbers.dtype == what.dtype or (what.dtype, numbers.dtype) == (DType.BF16, DType.U16)
        named = where.shape == (what.sparse, count) or (what.sparse == 1 and where.shape == (count,))
        if what.sparse and (not named or where.dtype != DType.I64 or not where.row_major):
            raise ValueError(f"{what.name} needs row-major i64 indices of shape ({what.sparse}, entries), not "
                             f"{where.dtype.name} {where.shape}")
        if what.sparse and (not same_type or numbers.shape != (count, *what.shape[what.sparse:]) or not numbers.row_major):
            raise ValueError(f"{what.name} needs row-major {what.dtype.name} values of shape "
                             f"{(count, *what.shape[what.sparse:])}, not {numbers.dtype.name} {numbers.shape}")
        entries = _abi.Sparse(count=count, values=numbers.address)
        entries.indices = ctypes.cast(where.address, ctypes.POINTER(ctypes.c_int64))
        self._check(lib.reducer_ready_sparse(self._handle, index, entries, None))

    def sparse_result(self, param: Union[int, str]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Indices (sparse, entries) and values of a sparse parameter's last result, sorted, each index once.

        Copies. BF16 values appear as uint16.
        """
        index, result = self.index(param), _abi.Sparse()
        self._check(lib.reducer_sparse_result(self._handle, index, result))
        what, count = self.params[index], result.count
        where = ctypes.cast(result.indices, ctypes.c_void_p).value or 0
        return (memory_array(where, DType.I64, (what.sparse, count), None, self).copy(),
                memory_array(result.values or 0, what.dtype, (count, *what.shape[what.sparse:]), None, self).copy())

    def absent(self, *params: Union[int, str]) -> None:
        """Parameters have no gradient on this rank in this step. Threads: any."""
        indices = (ctypes.c_uint64 * len(params))(*(self.index(param) for param in params))
        self._check(lib.reducer_absent(self._handle, indices, len(params)))

    def finish(self, *, commit: bool = False, rest_absent: bool = False, clip_norm: float = 0.0, skip: bool = False,
               skip_nonfinite: bool = False) -> None:
        """Wait until every result is in the gradients, and end the step. Raises WeftError ERR_STATE, which names every
        parameter that never became ready; the step stays open then.

        commit          until every rank has them
        rest_absent     what is neither ready nor absent is absent
        clip_norm       scale the results so that their norm is at most this; this and what follows needs norms
        skip            skip the step, on all ranks; gradients stay as they were
        skip_nonfinite  skip it if a result is not finite
        """
        self._end(lib.reducer_finish, commit, (FinishFlag.REST_ABSENT if rest_absent else 0) |
                  (FinishFlag.SKIP if skip else 0) | (FinishFlag.SKIP_NONFINITE if skip_nonfinite else 0), clip_norm)

    def norms(self) -> Norms:
        """Norms of the last synchronised step's results, equal on all ranks. Between steps."""
        norms, each = _abi.Norms(), (ctypes.c_double * len(self.params))()
        self._check(lib.reducer_norms(self._handle, norms, each))
        return Norms(norms.total, norms.clip_factor, norms.nonfinite_params, bool(norms.skipped), tuple(each))

    @property
    def skipped(self) -> bool:
        """Whether the last synchronised step was skipped on all ranks. Between steps; always False without norms."""
        if not self._norms or self.stats().steps == 0:
            return False
        norms = _abi.Norms()
        self._check(lib.reducer_norms(self._handle, norms, None))
        return bool(norms.skipped)

    def owned(self, rank: Optional[int] = None) -> list[Slice]:
        """The slices that a rank owns, by default this one, in the order of the buckets. Needs sharded."""
        count = ctypes.c_uint64()
        rank = self.comm.rank if rank is None else rank
        self._check(lib.reducer_owned(self._handle, rank, None, count))
        slices = (_abi.Slice * count.value)()
        self._check(lib.reducer_owned(self._handle, rank, slices, count))
        return [Slice(each.param, each.offset, each.count) for each in slices]

    def reduced_view(self, param: Union[int, str]) -> list[tuple[int, np.ndarray[Any, Any]]]:
        """The last step's result without a copy: (first element, array) of each piece, in the order of the view.

        The arrays are read-only, flat and of the gradient's dtype (of complex numbers: pairs of floats). They are not to be used after this rank's next
        begin, replan or rebind, or once a rank has closed its reducer. Needs reduced_views.
        """
        index, count = self.index(param), ctypes.c_uint64()
        self._check(lib.reducer_reduced_view(self._handle, index, None, count))
        pieces = (_abi.ReducedPiece * count.value)()
        self._check(lib.reducer_reduced_view(self._handle, index, pieces, count))
        dtype = {DType.C64: DType.F32, DType.C128: DType.F64}.get(self.params[index].dtype, self.params[index].dtype)
        out = [(int(each.offset), memory_array(each.data or 0, dtype, (each.count,), None, self)) for each in pieces]
        for _, array in out:
            array.flags.writeable = False
        return out

    def wait_param(self, param: Union[int, str], *, timeout: Optional[float] = None) -> None:
        """Wait for a parameter's result, in a synchronised step. Threads: any.

        Sharded, between steps: for its value; the first such call gathers them, if gather_params has not. Collective then.
        """
        self._check(lib.reducer_wait_param(self._handle, self.index(param), milliseconds(timeout)))

    def gather_params(self, *, timeout: Optional[float] = None) -> None:
        """Sharded: start to send each owner's slices of the parameters' values to all ranks. Collective.

        Returns at once. `wait_param` waits for one parameter (and starts this too), the next begin for all.
        """
        self._check(lib.reducer_gather_params(self._handle, _abi.GatherOptions(timeout_ms=milliseconds(timeout))))

    def result(self, param: Union[int, str], gradient: Any) -> None:
        """Copy the last step's result of a parameter to an array of its strides; for those that were absent here."""
        index = self.index(param)
        code = lib.reducer_result(self._handle, index, self._address(index, gradient))
        self._lent.pop(index, None)
        self._check(code)

    def join(self, *, timeout: Optional[float] = None, commit: bool = False) -> JoinResult:
        """This rank has no more data: take part in the others' steps until every rank has joined.

        timeout is for the wait for the others' next step; commit is that of the others' finish.
        """
        options = _abi.JoinOptions(timeout_ms=milliseconds(timeout), finish_flags=FinishFlag.COMMIT if commit else 0)
        result = _abi.JoinResult()
        self._check(lib.reducer_join(self._handle, options, result))
        return JoinResult(result.steps, None if result.last_active < 0 else int(result.last_active))

    @contextlib.contextmanager
    def step(self, *, commit: bool = False, rest_absent: bool = False, clip_norm: float = 0.0, skip: bool = False,
             skip_nonfinite: bool = False, **begin: Any) -> Iterator[Reducer]:
        """begin, the block, and finish. A block that raises fails the step on all ranks.

        The exception propagates on this rank. On the other ranks finish raises WeftError ERR_STEP_FAILED
        with its type and text: "rank 0: ValueError: bad batch". The gradients are not reduced. The next step
        works, so a bad batch can be skipped; but a block that raises more than 250 ms after its last gradient may
        fail the communicator, because others may have completed the step. A block that calls `fail` itself must leave it by an exception.
        KeyboardInterrupt and SystemExit do not wait for the other ranks: they abort the communicator.

            with reducer.step(skip_nonfinite=True):
                ...
            if not reducer.skipped:
                optimizer.step()
        """
        self.begin(**begin)
        try:
            yield self
        except BaseException as error:
            # The exception outranks a failure to report it: the reducer's next call reports that too.
            with contextlib.suppress(WeftError):
                if isinstance(error, Exception):
                    self.fail(_described(error))
                else:
                    self.comm.abort(_described(error))
            raise
        self.finish(commit=commit, rest_absent=rest_absent, clip_norm=clip_norm, skip=skip, skip_nonfinite=skip_nonfinite)

    def fail(self, text: str) -> None:
        """Fail the open step on all ranks, because this one cannot complete it; text says why, see `step`.

        The step is over here when it returns. The next step works on all ranks, except as `step` says.
        """
        code = lib.reducer_fail(self._handle, text.encode("utf-8", "replace").replace(b"\0", b"?"))
        if code == Status.OK:
            self._lent.clear()
        self._check(code)

    def retry(self, *, commit: bool = False) -> None:
        """Do the step that failed again without computing it again, after `rebind`. Needs retain."""
        self._end(lib.reducer_retry, commit)

    def replan(self, plan: Optional[Sequence[Sequence[Union[int, str]]]] = None,
               bucket_limits: Optional[Sequence[int]] = None, planner: Union[Planner, str] = Planner.LIMITS) -> None:
        """Assign parameters to buckets anew, by default in the order in which gradients became ready. Collective.

        planner  where buckets end: at bucket_limits, or ("model") where least communication is left over

        In view mode the views move: ask for them again, and use the old ones no more.
        """
        options, error = _abi.ReplanOptions(), _abi.Error()
        self._set_plan(options, plan, bucket_limits)
        options.planner = choice(Planner, planner, "planner")
        code = lib.reducer_replan(self._handle, options, error)
        if code:
            raise_error(code, error)

    def broadcast(self, root: Union[int, str] = 0, *, what: Union[BroadcastFlag, str] = BroadcastFlag(0),
                  chunk_bytes: int = 0, in_flight: int = 0, timeout: Optional[float] = None) -> None:
        """Copy the values of parameters from root to all ranks. Collective, between steps.

        root         a rank, or "last_active": the highest that had data in the last step
        what         "params", "state", "buffers", or flags; default all
        chunk_bytes  of one message, at most; default 250 MiB
        in_flight    messages at the same time; default 2
        timeout      in seconds; default: the communicator's
        """
        options, error = _abi.BroadcastOptions(root=_root(root), chunk_bytes=chunk_bytes, in_flight=in_flight,
                                               timeout_ms=milliseconds(timeout)), _abi.Error()
        options.flags = choice(BroadcastFlag, what, "what")
        code = lib.reducer_broadcast(self._handle, options, error)
        if code:
            raise_error(code, error)

    def check(self) -> None:
        """Compare the parameters' values on all ranks. Raises WeftError ERR_MISMATCH on every rank, which names the first
        parameter that differs and the ranks of the minority. Collective, between steps."""
        error = _abi.Error()
        code = lib.reducer_check(self._handle, error)
        if code:
            raise_error(code, error)

    def rebind(self, comm: Comm) -> None:
        """Go on over another communicator, as a rule the one that Comm.shrink made. Collective over its ranks."""
        error = _abi.Error()
        code = lib.reducer_rebind(self._handle, comm._handle, error)
        if code:
            raise_error(code, error)
        self.comm = comm

    def verdict(self) -> Verdict:
        """How far the steps have come."""
        verdict = _abi.Verdict()
        self._check(lib.reducer_verdict(self._handle, verdict))
        finished, committed = (None if step == NO_STEP else int(step)
                               for step in (verdict.last_finished_step, verdict.last_committed_step))
        return Verdict(finished, committed, verdict.next_step, bool(verdict.can_retry), bool(verdict.rolled_back))

    def stats(self) -> Stats:
        """Counters, memory and times. Threads: any."""
        stats = _abi.ReducerStats()
        self._check(lib.reducer_query(self._handle, stats))
        return Stats(*(getattr(stats, field.name) for field in dataclasses.fields(Stats)))

    def report(self) -> dict[str, Any]:
        """Everything that is known of the reducer and its steps; docs/reducer.md lists the fields. Between steps."""
        size = ctypes.c_uint64()
        self._check(lib.reducer_report(self._handle, None, size))
        while True:  # times have other digits at the next call
            room = size.value + 1024
            size.value, text = room, ctypes.create_string_buffer(room)
            code = lib.reducer_report(self._handle, text, size)
            if size.value <= room:
                self._check(code)
                return dict(json.loads(text.value))

    def buckets(self) -> list[BucketInfo]:
        """The buckets in order of launch. Between steps."""
        count, found = ctypes.c_uint32(), []
        self._check(lib.reducer_bucket_count(self._handle, count))
        members = (ctypes.c_uint64 * len(self.params))()
        for index in range(count.value):
            info = _abi.BucketInfo()
            self._check(lib.reducer_bucket(self._handle, index, info, members, len(members)))
            found.append(BucketInfo(info.index, DType(info.dtype), tuple(members[:info.param_count]), info.count,
                                    info.bytes, info.limit_bytes, info.ready_ns, info.launch_ns, info.done_ns,
                                    info.transfer_ns, info.sent_bytes))
        return found

    def param(self, param: Union[int, str]) -> ParamInfo:
        """A parameter's place in the plan, and whether the last synchronised step had it. Between steps."""
        info = _abi.ParamInfo()
        self._check(lib.reducer_param(self._handle, self.index(param), info))
        return ParamInfo(info.bucket, info.offset, info.count, bool(info.absent), bool(info.absent_everywhere))

    def error(self) -> Optional[WeftError]:
        """Its last error, or None."""
        try:
            self._check(lib.reducer_error(self._handle, _abi.Error()))
        except WeftError as failure:
            return failure
        return None

    def _set_plan(self, options: Any, plan: Optional[Sequence[Sequence[Union[int, str]]]],
                  bucket_limits: Optional[Sequence[int]]) -> None:
        if bucket_limits is not None:
            options.bucket_limits = (ctypes.c_uint64 * len(bucket_limits))(*bucket_limits)
            options.bucket_limit_count = len(bucket_limits)
        if plan is not None:
            members = [self.index(param) for bucket in plan for param in bucket]
            options.plan = ctypes.pointer(_abi.Plan(
                bucket_count=len(plan), sizes=(ctypes.c_uint64 * len(plan))(*map(len, plan)),
                params=(ctypes.c_uint64 * len(members))(*members)))

    def _end(self, call: Any, commit: bool, flags: int = 0, clip_norm: float = 0.0) -> None:
        options = _abi.FinishOptions(flags=flags | (FinishFlag.COMMIT if commit else 0), clip_norm=clip_norm)
        code = call(self._handle, options)
        if code in (Status.OK, Status.ERR_STEP_FAILED):
            self._lent.clear()
        self._check(code)

    def _address(self, index: int, gradient: Any) -> int:
        if not 0 <= index < len(self.params):
            return 0  # the library has the text for it
        part, what = region(gradient), self.params[index]
        same_type = part.dtype == what.dtype or (what.dtype, part.dtype) == (DType.BF16, DType.U16)  # NumPy has no bf16
        if not same_type or part.shape != what.shape:
            raise ValueError(f"{what.name} is {what.dtype.name} {what.shape}, its gradient {part.dtype.name} {part.shape}")
        if part.count and not same_strides(part.shape, part.strides, what.strides):
            raise ValueError(f"{what.name} has strides {what.strides}, its gradient {part.strides}")
        if not part.writable:
            raise ValueError(_READ_ONLY.format(what.name))
        self._lent[index] = part.owner
        return part.address

    def _check(self, code: int) -> None:
        if code or raised or deferred:
            check(code, lambda error: lib.reducer_error(self._handle, error))


def _param_list(params: Sequence[Param]) -> tuple[Any, list[Any]]:
    """The C array of params, and what must be kept: what it points to."""
    array, keep = (_abi.Param * len(params))(), []
    for place, param in zip(array, params):
        extents = ctypes.c_int64 * len(param.shape)
        shape, strides = extents(*param.shape), extents(*param.strides)
        keep += [shape, strides]
        place.struct_size = ctypes.sizeof(_abi.Param)
        place.uses, place.sparse_ndim = param.uses, param.sparse
        place.name, place.dtype, place.ndim = param.name.encode(), param.dtype, len(param.shape)
        place.shape, place.strides = shape, strides
        place.flags, (place.parameter, place.gradient, owners) = param.flags, param.places()
        keep += owners
    return array, keep


def _described(error: BaseException) -> str:
    """The type and the text of an exception, whose __str__ may itself raise."""
    try:
        text = str(error)
    except Exception:
        text = "its text cannot be had"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _root(root: Union[int, str]) -> int:
    if isinstance(root, str) and root != "last_active":
        raise ValueError(f"root is a rank or 'last_active', not {root!r}")
    return ROOT_LAST_ACTIVE if isinstance(root, str) else root


def _dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements fill consecutive places, in whatever order of dimensions."""
    expected = 1
    for step, extent in sorted((step, extent) for step, extent in zip(strides, shape) if extent != 1):
        if step != expected:
            return False
        expected *= extent
    return True
