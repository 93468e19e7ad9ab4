"""Reducer: synchronises the gradients of a list of parameters over ranks."""
from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
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
from .constants import (NO_STEP, ROOT_LAST_ACTIVE, Accumulation, BeginFlag, BroadcastFlag, Divide, DType, FinishFlag,
                        GradientMode, ParamFlag, Planner, ReducerFlag, Status, choice)
from .errors import WeftError, described
from .hook import Hook
from .records import BucketInfo, JoinResult, Norms, Param, ParamInfo, Slice, Stats, Verdict

LISTED_NAMES = 20  # number of parameter names that an error lists
_READ_ONLY = ("the gradient of {} is read-only, but the result is written into it; pass a writable copy (numpy.array), "
              "or copy it into its view with mode=\"view\"")


class Reducer(Handle):
    """Averages gradients over the ranks of comm.

    Creating a reducer is collective: all ranks pass the same parameters and options. A difference raises WeftError
    ERR_MISMATCH on every rank, which names the first parameter that differs. Creation copies rank 0's values
    (Param.value) to all ranks. A step is begin, ready for each gradient, and finish; `step` calls begin and finish.

    params               list of Param; the reducer keeps their arrays alive until close
    mode                 "copy": `ready` takes the gradient's array, and the result is written into it; "view": the
                         program computes gradients in the arrays of `views`, without a copy; "in_place": gradients are
                         reduced where Param.gradient lies, without a copy (docs/reference/reducer.md)
    bucket_limits        sizes at which buckets end, in bytes; the last one repeats, 0 is one parameter per bucket.
                         None: 1 MiB, then 25 MiB
    hook                 a Hook, which decides how buckets are reduced; None: allreduce. The reducer keeps it alive
    on_bucket            function that receives (step, bucket, Status) once for each bucket of a synchronised step, when
                         the result is in the gradients or the bucket has failed. It runs on any thread, one call at a
                         time
    timeout              deadline of a step in seconds, counted from finish; None: the communicator's
    retain               True: keep each rank's contribution for `retry`; needs the memory of the buckets once more
    absent               True: parameters may be absent from a step, see `absent`
    uneven               True: ranks may begin a step without data, have weights, and `join`
    stop_when_exhausted  with uneven: a step in which a rank has joined is not reduced; finish raises on all ranks
    divide_by            divisor of the sums: "world", "active" or "weights" (see Divide); the last two need uneven
    norms                True: compute the norms of the results, see `norms`
    static               True: the first step fixes how often each parameter becomes ready, and which ones never do
    buffers              True: each synchronised step begins with a broadcast of the buffers (Param flag "buffer")
    buffers_root         the rank that broadcasts buffers, or "last_active": the highest rank with data in the step
    check_interval       compare the parameters' values as every n-th synchronised step begins, see `check`; 0: never
    sharded              True: each rank receives only the results that it owns, see `owned`
    own_whole            with sharded: one rank owns a parameter as a whole
    plan                 the parameters of each bucket, by index or name, in the order of launch; None: by bucket_limits
    reduce_dtype         "f16", "bf16" or "f32": element type in which gradients of these types are communicated and
                         summed; None: their own
    accumulate           who adds up the gradients of local steps: "program" (each `ready` takes the sum so far) or
                         "reducer" (copy mode: each takes the gradient of its micro-batch alone). Local steps in copy
                         mode need the choice; "unset" is "program" in the view modes
    accumulate_f32       with accumulate="reducer": gradients that are communicated in 16 bits are added up in f32
    deterministic        True: the same bits for every backend, algorithm and plan, at the cost of more traffic between
                         hosts
    copy_strays          view mode: `ready` accepts a gradient outside its view, and copies it into the view, where it
                         replaces what is there
    replan               planner ("limits", "model", "none") of the re-plan by the ready order as the
                         second synchronised step begins. In view mode the views move: get `views` again. "default":
                         "limits" in copy mode where possible, else "none"
    keep_values          True: do not copy rank 0's values to all ranks at creation
    strict_strides       True: a gradient with other strides than its parameter raises WeftError; False: it is copied
    ddp_buckets          True: the buckets are those of torch's DistributedDataParallel
    flags                more flags (ReducerFlag)

    Raises ValueError for an unknown choice or an array that does not fit. `close` in the middle of a synchronised step
    fails the communicator.

    Threads: one at a time; absent, ready, ready_sparse, stats, view and wait_param from any thread, ready for different
    parameters concurrently.
    """

    _destructor = "reducer_destroy"

    def __init__(self, comm: Comm, params: Sequence[Param], *, mode: Union[GradientMode, str] = GradientMode.COPY,
                 bucket_limits: Optional[Sequence[int]] = None, hook: Optional[Hook] = None,
                 on_bucket: Optional[Callable[[int, int, Status], None]] = None, timeout: Optional[float] = None,
                 retain: bool = False, absent: bool = False, uneven: bool = False, stop_when_exhausted: bool = False,
                 divide_by: Union[Divide, str] = Divide.WORLD, norms: bool = False, static: bool = False,
                 buffers: bool = False, buffers_root: Union[int, str] = 0, check_interval: int = 0,
                 sharded: bool = False, own_whole: bool = False,
                 plan: Optional[Sequence[Sequence[Union[int, str]]]] = None,
                 reduce_dtype: Optional[Union[DType, str]] = None,
                 accumulate: Union[Accumulation, str] = Accumulation.UNSET, accumulate_f32: bool = False,
                 deterministic: bool = False, copy_strays: bool = False, replan: Union[Planner, str] = Planner.DEFAULT,
                 keep_values: bool = False, strict_strides: bool = False, ddp_buckets: bool = False,
                 flags: Union[ReducerFlag, int] = 0) -> None:
        if hook is not None and not isinstance(hook, Hook):
            raise TypeError(f"hook is a {type(hook).__name__}, expected a Hook or None")
        self.comm = comm
        self.params = list(params)
        self.mode = choice(GradientMode, mode, "mode")
        self._index = {param.name: index for index, param in enumerate(self.params)}
        # Objects that the open step uses, by number. A refused call only adds some, so it frees nothing that is in use.
        self._lent: dict[int, Any] = {}
        self._numbers = itertools.count()
        self._on_bucket = None
        self._norms = norms
        self._hook = hook
        list_, self._keep = _param_list(self.params)
        options = _abi.ReducerOptions(params=list_, param_count=len(params), param_size=ctypes.sizeof(_abi.Param),
                                      mode=self.mode, timeout_ms=milliseconds(timeout))
        self._set_plan(options, plan, bucket_limits)
        if hook is not None:
            options.hook = hook._handle
        if on_bucket is not None:
            report = on_bucket
            # The library calls the callback as long as the reducer exists, so the object keeps it alive.
            self._on_bucket = _interrupt.void_function(
                _abi.bucket_fn, lambda _, step, bucket, code: report(step, bucket, Status(code)))
            options.on_bucket = self._on_bucket
        for wanted, flag in ((retain, ReducerFlag.RETAIN), (absent, ReducerFlag.ABSENT), (uneven, ReducerFlag.UNEVEN),
                             (stop_when_exhausted, ReducerFlag.STOP_WHEN_EXHAUSTED), (norms, ReducerFlag.NORMS),
                             (static, ReducerFlag.STATIC), (buffers, ReducerFlag.BUFFERS),
                             (sharded, ReducerFlag.SHARDED), (own_whole, ReducerFlag.OWN_WHOLE),
                             (accumulate_f32, ReducerFlag.ACCUMULATE_F32), (deterministic, ReducerFlag.DETERMINISTIC),
                             (copy_strays, ReducerFlag.COPY_STRAYS), (keep_values, ReducerFlag.KEEP_VALUES),
                             (strict_strides, ReducerFlag.STRICT_STRIDES), (ddp_buckets, ReducerFlag.DDP_BUCKETS),
                             (flags, flags)):
            options.flags |= flag if wanted else 0
        options.buffers_root, options.check_interval = _root(buffers_root), check_interval
        options.divide_by = choice(Divide, divide_by, "divide_by")
        options.accumulation = choice(Accumulation, accumulate, "accumulate")
        options.replan = choice(Planner, replan, "replan")
        if reduce_dtype is not None:
            options.reduce_dtype = choice(DType, reduce_dtype, "reduce_dtype")
        handle, error = ctypes.c_void_p(), _abi.Error()
        code = lib.reducer_create(comm._opened("communicator"), options, handle, error)
        if code:
            raise_error(code, error, self._cause(code))
        super().__init__(handle)
        if hook is not None:
            hook._used_by(self)

    def close(self) -> None:
        """Destroy the reducer; a second call does nothing. The program's arrays are not used afterwards."""
        super().close()
        if self.closed:
            self._lent.clear()
            self._keep.clear()

    def view(self, param: Union[int, str]) -> np.ndarray[Any, Any]:
        """Return the array in which a gradient is computed in view mode.

        It has the parameter's strides if these are dense, else it is row-major. BF16 elements appear as uint16. It must
        not be used after close, or after a re-plan has moved the views (stats().plan_generation counts those). Raises
        WeftError ERR_STATE in copy mode. Threads: any.
        """
        index, memory = self.index(param), ctypes.c_void_p()
        self._check(lib.reducer_grad_view(self._handle, index, memory))
        what = self.params[index]
        strides = what.strides if _dense(what.shape, what.strides) else None
        return memory_array(memory.value or 0, what.dtype, what.shape, strides, self)

    @property
    def views(self) -> list[np.ndarray[Any, Any]]:
        """The views of all parameters; an empty array for a parameter without a gradient or with a sparse one."""
        without = ParamFlag.STATE_ONLY | ParamFlag.BUFFER | ParamFlag.IGNORED | ParamFlag.SPARSE
        return [np.empty(0) if param.flags & without else self.view(index) for index, param in enumerate(self.params)]

    def index(self, param: Union[int, str]) -> int:
        """Return the index of a parameter. Raises ValueError for an unknown name, and lists the names."""
        if not isinstance(param, str):
            return param
        if param not in self._index:
            names, more = list(self._index)[:LISTED_NAMES], len(self._index) - LISTED_NAMES
            raise ValueError(f"no parameter is named {param!r}, expected one of: {', '.join(names)}" +
                             (f" and {more} more" if more > 0 else ""))
        return self._index[param]

    def begin(self, *, local: bool = False, micro_batches: int = 1, no_data: bool = False, fixed: bool = False,
              weight: float = 1.0, record: bool = False, gradients: Optional[Mapping[Union[int, str], Any]] = None) -> None:
        """Begin a step.

        local          True: accumulate gradients on this rank for the next synchronised step, as `accumulate` of the
                       reducer says; nothing is communicated
        micro_batches  divide the results by this number as well, at least 1; equal on all ranks
        no_data        this rank has no data in this step: it contributes zeros and receives the results. Call finish
                       next. Needs uneven
        fixed          the program promises that the same parameters are absent on all ranks with data, so that the
                       ranks exchange nothing about it
        weight         this rank's weight, finite and positive, for divide_by="weights"
        record         True: record the ready order for `replan`, as the first synchronised step always does
        gradients      copy mode: maps absent parameters to the arrays for their results, with the parameters' strides.
                       They are used until finish

        Raises WeftError: ERR_STATE while a step is open, or the reducer's failure.
        """
        options = _abi.BeginOptions(flags=(BeginFlag.LOCAL if local else 0) | (BeginFlag.NO_DATA if no_data else 0) |
                                    (BeginFlag.FIXED if fixed else 0) | (BeginFlag.RECORD if record else 0),
                                    micro_batches=micro_batches, weight=weight)
        lent: list[Any] = []
        if gradients:
            places: list[Optional[int]] = [None] * len(self.params)
            for param, gradient in gradients.items():
                places[self.index(param)], owner = self._address(self.index(param), gradient)
                lent.append(owner)
            addresses = (ctypes.c_void_p * len(places))(*places)
            options.gradients = addresses
            lent.append(addresses)
        number = self._lend(lent)
        code = lib.reducer_begin(self._handle, options)
        self._returned(code, number)
        self._check(code)

    def ready(self, param: Union[int, str], gradient: Any = None) -> None:
        """Mark a gradient as complete. The reduction of a bucket starts once all its gradients are complete.

        param     index or name
        gradient  a writable array of the parameter's type and shape, in which the result is written. In copy mode the
                  reducer uses it until its bucket is done, at the latest until finish returns. An array with other
                  strides is copied, and so is its result (stats().copied_gradients; strict_strides refuses it). An
                  address (torch.Tensor.data_ptr) is used without a check. In view mode, and for a parameter with
                  Param.gradient, None stands for that memory

        Raises ValueError for a read-only array. Raises WeftError: ERR_ARG for another type or shape, ERR_STATE outside
        a step or if the parameter is already ready. Threads: any.
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
        # Before the call: a signal handler may raise as soon as it returns, when the reducer uses the gradient.
        number = self._lend(part.owner)
        code = lib.reducer_ready_tensor(self._handle, index, tensor, None)
        self._returned(code, number)
        self._check(code)

    def ready_sparse(self, param: Union[int, str], indices: Any, values: Any) -> None:
        """Mark a sparse gradient (COO) as complete. The arrays are read during the call.

        indices  row-major i64 array of shape (Param.sparse, entries), or (entries,) if Param.sparse is 1. An index may
                 occur several times; its values add up
        values   row-major array of the parameter's type and of shape (entries, *the dense dimensions)

        Raises ValueError if they do not fit, and WeftError as `ready`. Threads: any.
        """
        index = self.index(param)
        what = self.params[index] if 0 <= index < len(self.params) else Param("", ())
        where, numbers = region(indices), region(values)
        count = where.shape[-1] if where.shape else 0
        same_type = numbers.dtype == what.dtype or (what.dtype, numbers.dtype) == (DType.BF16, DType.U16)
        named = where.shape == (what.sparse, count) or (what.sparse == 1 and where.shape == (count,))
        if what.sparse and (not named or where.dtype != DType.I64 or not where.row_major):
            raise ValueError(f"the indices of {what.name} are {where.dtype.name} {where.shape}, expected row-major i64 "
                             f"indices of shape ({what.sparse}, entries)")
        shape = (count, *what.shape[what.sparse:])
        if what.sparse and (not same_type or numbers.shape != shape or not numbers.row_major):
            raise ValueError(f"the values of {what.name} are {numbers.dtype.name} {numbers.shape}, expected row-major "
                             f"{what.dtype.name} values of shape {shape}")
        entries = _abi.Sparse(count=count, values=numbers.address)
        entries.indices = ctypes.cast(where.address, ctypes.POINTER(ctypes.c_int64))
        self._check(lib.reducer_ready_sparse(self._handle, index, entries, None))

    def sparse_result(self, param: Union[int, str]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the indices and values of a sparse parameter's last result, as copies.

        The indices have shape (Param.sparse, entries); they are sorted, and each occurs once. The values have shape
        (entries, *the dense dimensions); BF16 values appear as uint16.
        """
        index, result = self.index(param), _abi.Sparse()
        self._check(lib.reducer_sparse_result(self._handle, index, result))
        what, count = self.params[index], result.count
        where = ctypes.cast(result.indices, ctypes.c_void_p).value or 0
        return (memory_array(where, DType.I64, (what.sparse, count), None, self).copy(),
                memory_array(result.values or 0, what.dtype, (count, *what.shape[what.sparse:]), None, self).copy())

    def absent(self, *params: Union[int, str]) -> None:
        """Declare that parameters (indices or names) have no gradient on this rank in this step.

        If another rank has a gradient, the result goes to begin's gradients or to Param.gradient, or `result` copies
        it. Needs absent, or a step with fixed. Threads: any.
        """
        indices = (ctypes.c_uint64 * len(params))(*(self.index(param) for param in params))
        self._check(lib.reducer_absent(self._handle, indices, len(params)))

    def finish(self, *, commit: bool = False, rest_absent: bool = False, clip_norm: float = 0.0, skip: bool = False,
               skip_nonfinite: bool = False) -> None:
        """Wait until every result is in the gradients, and end the step.

        commit          True: return only when every rank has all results; costs a barrier
        rest_absent     True: parameters that are neither ready nor absent are absent
        clip_norm       scale the results so that their total L2 norm is at most this; 0: no limit. Needs norms, as the
                        next two do
        skip            True: skip the step on all ranks; in copy mode the gradients stay as they were
        skip_nonfinite  True: skip the step on all ranks if a result is not finite

        Raises WeftError: ERR_STATE names every parameter that never became ready, and the step stays open;
        ERR_STEP_FAILED if a rank failed the step; otherwise the communicator's failure.
        """
        self._end(lib.reducer_finish, commit, (FinishFlag.REST_ABSENT if rest_absent else 0) |
                  (FinishFlag.SKIP if skip else 0) | (FinishFlag.SKIP_NONFINITE if skip_nonfinite else 0), clip_norm)

    def norms(self) -> Norms:
        """Return the norms of the last synchronised step's results, equal on all ranks. Between steps; needs norms."""
        norms, each = _abi.Norms(), (ctypes.c_double * len(self.params))()
        self._check(lib.reducer_norms(self._handle, norms, each))
        return Norms(norms.total, norms.clip_factor, norms.nonfinite_params, bool(norms.skipped), tuple(each))

    @property
    def skipped(self) -> bool:
        """True if the last synchronised step was skipped on all ranks. Between steps; always False without norms."""
        if not self._norms or self.stats().steps == 0:
            return False
        norms = _abi.Norms()
        self._check(lib.reducer_norms(self._handle, norms, None))
        return bool(norms.skipped)

    def owned(self, rank: Optional[int] = None) -> list[Slice]:
        """Return the slices that a rank owns, in bucket order. None: this rank. Between steps; needs sharded."""
        count = ctypes.c_uint64()
        rank = self.comm.rank if rank is None else rank
        self._check(lib.reducer_owned(self._handle, rank, None, count))
        slices = (_abi.Slice * count.value)()
        self._check(lib.reducer_owned(self._handle, rank, slices, count))
        return [Slice(each.param, each.offset, each.count) for each in slices]

    def wait_param(self, param: Union[int, str], *, timeout: Optional[float] = None) -> None:
        """Wait until a parameter's result is in its gradient, during a synchronised step or after it.

        With sharded, between steps: wait until the parameter's value has been gathered. If gather_params was not called
        since finish, the first such call starts the gathering, and all ranks must make it. timeout is in seconds,
        None: 300. Raises WeftError ERR_NOT_DONE when it passes. Threads: any, not inside a callback.
        """
        self._check(lib.reducer_wait_param(self._handle, self.index(param), milliseconds(timeout)))

    def gather_params(self, *, timeout: Optional[float] = None) -> None:
        """With sharded: start to send each owner's slices of the parameters' values to all ranks. Collective.

        Returns at once. `wait_param` waits for one parameter, the next begin for all. Between steps. timeout is in
        seconds, None: the reducer's.
        """
        self._check(lib.reducer_gather_params(self._handle, _abi.GatherOptions(timeout_ms=milliseconds(timeout))))

    def result(self, param: Union[int, str], gradient: Any) -> None:
        """Copy the last step's result of a parameter into an array of its type, shape and strides.

        For parameters that were absent on this rank, in copy mode. Between steps. Raises WeftError ERR_STATE if the
        last synchronised step did not reduce the parameter.
        """
        index = self.index(param)
        address, owner = self._address(index, gradient)
        code = lib.reducer_result(self._handle, index, address)
        del owner
        self._check(code)

    def join(self, *, timeout: Optional[float] = None, commit: bool = False) -> JoinResult:
        """Take part in the other ranks' steps without data until every rank has joined: this rank has no more data.

        timeout  longest wait for the other ranks' next step in seconds; None: the reducer's
        commit   the argument commit of the other ranks' finish

        Between steps; needs uneven. Raises WeftError as finish does.
        """
        options = _abi.JoinOptions(timeout_ms=milliseconds(timeout), finish_flags=FinishFlag.COMMIT if commit else 0)
        result = _abi.JoinResult()
        self._check(lib.reducer_join(self._handle, options, result))
        return JoinResult(result.steps, None if result.last_active < 0 else int(result.last_active))

    @contextlib.contextmanager
    def step(self, *, commit: bool = False, rest_absent: bool = False, clip_norm: float = 0.0, skip: bool = False,
             skip_nonfinite: bool = False, **begin: Any) -> Iterator[Reducer]:
        """Run begin, the with-block, and finish. Other arguments go to begin. A block that raises fails the step.

        The exception propagates on this rank. On the other ranks finish raises WeftError ERR_STEP_FAILED with the type
        and the text of the exception: "rank 0: ValueError: bad batch". The gradients are not reduced. The next step
        works, so a bad batch can be skipped. But a block that raises more than 250 ms after its last gradient may fail
        the communicator (ERR_ABORTED), because other ranks may have completed the step. A block that calls `fail` must end with an
        exception. KeyboardInterrupt and SystemExit abort the communicator instead, without waiting for other ranks.

            with reducer.step(skip_nonfinite=True):
                ...
            if not reducer.skipped:
                optimizer.step()
        """
        self.begin(**begin)
        try:
            yield self
        except BaseException as error:
            # The block's exception is raised even if failing the step fails; the reducer's next call reports that.
            with contextlib.suppress(WeftError):
                if isinstance(error, Exception):
                    self.fail(described(error))
                else:
                    self.comm.abort(described(error))
            raise
        self.finish(commit=commit, rest_absent=rest_absent, clip_norm=clip_norm, skip=skip, skip_nonfinite=skip_nonfinite)

    def fail(self, text: str) -> None:
        """Fail the open step on all ranks, because this rank cannot complete it.

        text is the reason that finish reports on the other ranks (UTF-8, cut at 512 bytes). The step has ended on this
        rank when fail returns, and the next step works, with the exception that `step` describes.
        """
        code = lib.reducer_fail(self._handle, text.encode("utf-8", "replace").replace(b"\0", b"?"))
        if code == Status.OK:
            self._lent.clear()
        self._check(code)

    def retry(self, *, commit: bool = False) -> None:
        """Repeat the failed step from the contributions that retain kept, after `rebind`. Needs retain.

        The results are written into the gradients of the failed step. Raises WeftError ERR_STATE if nothing was kept
        (see Verdict.can_retry), and otherwise as finish.
        """
        self._end(lib.reducer_retry, commit)

    def replan(self, plan: Optional[Sequence[Sequence[Union[int, str]]]] = None,
               bucket_limits: Optional[Sequence[int]] = None, planner: Union[Planner, str] = Planner.LIMITS) -> None:
        """Assign parameters to buckets again, by default in the recorded ready order. Collective, between steps.

        plan           as for Reducer; None: the ready order
        bucket_limits  as for Reducer; None: those in use
        planner        "limits" or "model" (see Planner); not with plan

        Gradients keep their values. In view mode the views move: get `views` again, and do not use the old ones. Raises
        WeftError ERR_STATE inside a step or without a recorded order; the old plan stays then.
        """
        options, error = _abi.ReplanOptions(), _abi.Error()
        self._set_plan(options, plan, bucket_limits)
        options.planner = choice(Planner, planner, "planner")
        code = lib.reducer_replan(self._handle, options, error)
        if code:
            raise_error(code, error, self._cause(code))

    def broadcast(self, root: Union[int, str] = 0, *, what: Union[BroadcastFlag, str] = BroadcastFlag(0),
                  chunk_bytes: int = 0, in_flight: int = 0, timeout: Optional[float] = None) -> None:
        """Copy the values of parameters from root to all ranks. Collective, between steps.

        root         a rank, or "last_active": the highest rank that had data in the last step
        what         "params", "state" or "buffers", or flags of BroadcastFlag; no flag: all of them
        chunk_bytes  largest message in bytes; 0: 250 MiB
        in_flight    number of messages in flight; 0: 2
        timeout      seconds; None: the communicator's

        Raises WeftError: ERR_MISMATCH if the ranks' arguments differ, ERR_STATE inside a step.
        """
        options, error = _abi.BroadcastOptions(root=_root(root), chunk_bytes=chunk_bytes, in_flight=in_flight,
                                               timeout_ms=milliseconds(timeout)), _abi.Error()
        options.flags = choice(BroadcastFlag, what, "what")
        code = lib.reducer_broadcast(self._handle, options, error)
        if code:
            raise_error(code, error)

    def check(self) -> None:
        """Compare the parameters' values on all ranks, by hash; buffers are left out. Collective, between steps.

        A difference raises WeftError ERR_MISMATCH on every rank. It names the first parameter that differs, and its
        ranks are those in the minority. The reducer stays usable.
        """
        error = _abi.Error()
        code = lib.reducer_check(self._handle, error)
        if code:
            raise_error(code, error)

    def rebind(self, comm: Comm) -> None:
        """Continue over another communicator of the same context, usually that of Comm.shrink. Collective.

        Parameters, buckets, views and the hook's state are kept; gradients of local steps that retain did not keep are
        dropped. Between steps. Raises WeftError: ERR_MISMATCH if the ranks bring different reducers; an error of one
        rank is raised on all, and all may call again.
        """
        error = _abi.Error()
        code = lib.reducer_rebind(self._handle, comm._opened("communicator"), error)
        if code:
            raise_error(code, error, self._cause(code))
        self.comm = comm

    def verdict(self) -> Verdict:
        """Return how many synchronised steps are finished and committed."""
        verdict = _abi.Verdict()
        self._check(lib.reducer_verdict(self._handle, verdict))
        finished, committed = (None if step == NO_STEP else int(step)
                               for step in (verdict.last_finished_step, verdict.last_committed_step))
        return Verdict(finished, committed, verdict.next_step, bool(verdict.can_retry), bool(verdict.rolled_back))

    def stats(self) -> Stats:
        """Return counters, memory and times. Threads: any."""
        stats = _abi.ReducerStats()
        self._check(lib.reducer_query(self._handle, stats))
        return Stats(*(getattr(stats, field.name) for field in dataclasses.fields(Stats)))

    def report(self) -> dict[str, Any]:
        """Return all settings, statistics and times of the reducer, between steps.

        docs/reference/report.md lists the fields.
        """
        size = ctypes.c_uint64()
        self._check(lib.reducer_report(self._handle, None, size))
        while True:  # the text may be longer at the next call, because times gain digits
            room = size.value + 1024
            size.value, text = room, ctypes.create_string_buffer(room)
            code = lib.reducer_report(self._handle, text, size)
            if size.value <= room:
                self._check(code)
                return dict(json.loads(text.value))

    def buckets(self) -> list[BucketInfo]:
        """Return the buckets in the order of launch. Between steps."""
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
        """Return a parameter's place in the plan, and its absence from the last synchronised step. Between steps."""
        info = _abi.ParamInfo()
        self._check(lib.reducer_param(self._handle, self.index(param), info))
        return ParamInfo(info.bucket, info.offset, info.count, bool(info.absent), bool(info.absent_everywhere))

    def error(self) -> Optional[WeftError]:
        """Return the reducer's last error, or None."""
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

    def _lend(self, owner: Any) -> int:
        """Keep an object alive until the step has ended. Returns its number."""
        number = next(self._numbers)
        self._lent[number] = owner
        return number

    def _returned(self, code: int, number: int) -> None:
        """Drop an object that a refused call does not use."""
        if code in (Status.ERR_ARG, Status.ERR_STATE):
            self._lent.pop(number, None)

    def _address(self, index: int, gradient: Any) -> tuple[int, Any]:
        """Return the address of a gradient in a parameter's layout, and what keeps its memory alive."""
        if not 0 <= index < len(self.params):
            return 0, None  # the library reports the unknown index
        part, what = region(gradient), self.params[index]
        same_type = part.dtype == what.dtype or (what.dtype, part.dtype) == (DType.BF16, DType.U16)  # NumPy has no bf16
        if not same_type or part.shape != what.shape:
            raise ValueError(f"the gradient of {what.name} is {part.dtype.name} {part.shape}, expected "
                             f"{what.dtype.name} {what.shape}")
        if part.count and not same_strides(part.shape, part.strides, what.strides):
            raise ValueError(f"the gradient of {what.name} has strides {part.strides} (in elements), expected "
                             f"{what.strides}; pass an array with the layout of the parameter")
        if not part.writable:
            raise ValueError(_READ_ONLY.format(what.name))
        return part.address, part.owner

    def _check(self, code: int) -> None:
        if code or raised or deferred:
            check(code, self._cause(code))

    def _cause(self, code: int) -> Optional[BaseException]:
        """Return the exception of this rank's hook that made a call fail, if there is one."""
        return self._hook._take_exception() if code == Status.ERR_HOOK and self._hook is not None else None


def _param_list(params: Sequence[Param]) -> tuple[Any, list[Any]]:
    """Return the C array of params, and the objects to which it points."""
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


def _root(root: Union[int, str]) -> int:
    """Convert a rank or "last_active" to the number of weft.h."""
    if isinstance(root, str) and root != "last_active":
        raise ValueError(f"root is {root!r}, expected a rank or 'last_active'")
    return ROOT_LAST_ACTIVE if isinstance(root, str) else root


def _dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """True if the elements fill consecutive places, in any order of dimensions."""
    expected = 1
    for step, extent in sorted((step, extent) for step, extent in zip(strides, shape) if extent != 1):
        if step != expected:
            return False
        expected *= extent
    return True
