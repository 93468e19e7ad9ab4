"""CustomHook: a communication hook of the program's own, written in Python."""
from __future__ import annotations

import ctypes
import dataclasses
import itertools
import threading
import traceback
import weakref
from typing import Any, Callable, Optional, Sequence, Union

import numpy as np

from . import _abi, _interrupt
from ._library import check, lib
from ._memory import dtype_of, memory_array
from .constants import HOOK_COLLECTIVES, Coll, DType, HookCollectiveFlag, HookFlag, Op, Space, Status, choice
from .context import Context
from .errors import WeftError, described
from .hook import Hook

_MESSAGE_BYTES = 256  # of a function's message, with the zero at its end


@dataclasses.dataclass
class HookCollective:
    """A collective that a hook declares for a bucket. Stage k runs before collective k, and one stage after the last.

    coll        "all_reduce", "reduce_scatter", "all_gather", "all_to_all" or "broadcast"
    dtype       element type: a DType, its name or a NumPy type
    count       number of elements, as in the collective's call
    op          the reduction, for example "sum"; "avg" divides by the step's divisor
    src, dst    memory of the input and of the result: "bucket" (its buffer) or "scratch"
    src_offset  offset of the input in that memory in bytes, a multiple of the element size; dst_offset likewise
    root        the rank that broadcasts
    flags       flags of HookCollectiveFlag. DYNAMIC: count is the largest, and the stage before sets
                HookStage.dynamic_count. OPTIONAL: the stage before sets dynamic_count to count, or to 0 to leave the
                collective out. WORLD: over the reducer's communicator, although a hook around this one has its own
    """

    coll: Union[Coll, str]
    dtype: Any
    count: int
    op: Union[Op, str, None] = None
    src: Union[Space, str] = Space.BUCKET
    dst: Union[Space, str] = Space.BUCKET
    src_offset: int = 0
    dst_offset: int = 0
    root: int = 0
    flags: Union[HookCollectiveFlag, str] = HookCollectiveFlag(0)


@dataclasses.dataclass
class HookPlan:
    """A hook's plan of one bucket.

    collectives    at most 8 HookCollective; their order is that of the stages
    scratch_bytes  memory for this bucket, 64-byte aligned; it is zero at first
    result         memory of the result after the last stage: "bucket" or "scratch"
    result_offset  offset of the result in that memory, in bytes
    """

    collectives: Sequence[HookCollective] = ()
    scratch_bytes: int = 0
    result: Union[Space, str] = Space.BUCKET
    result_offset: int = 0


@dataclasses.dataclass(frozen=True)
class HookParam:
    """A parameter of a bucket.

    index      position in the reducer's list
    name       as in Param
    dtype      element type of the gradient in the bucket, as it is communicated
    shape      extents; complex gradients are pairs in an additional last dimension
    strides    in elements
    offset     position of the first element in the bucket
    count      number of elements
    parameter  address of the parameter's value, see Param.value; 0: none
    """

    index: int
    name: str
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    count: int
    parameter: int


class HookEntries:
    """Entries of a sparse gradient, for hooks with `sparse`. An entry is a row of the gradient with its values.

    row_count     number of rows of the gradient
    row_elements  number of values in a row
    rows          numbers of the rows, ascending, each once: an array of i64; empty in plan
    values        array of shape (count, row_elements); empty in plan

    Stage 0 may change values, and remove entries: it moves the others to the front and calls `keep`.
    """

    def __init__(self, struct: _abi.BucketEntries, dtype: DType, owner: Any) -> None:
        self._struct: Optional[_abi.BucketEntries] = struct
        self.row_count, self.row_elements = int(struct.row_count), int(struct.row_elements)
        rows = ctypes.cast(struct.rows, ctypes.c_void_p).value or 0
        self.rows = memory_array(rows, DType.I64, (struct.count,), None, owner)
        self.values = memory_array(struct.values or 0, dtype, (struct.count, self.row_elements), None, owner)

    def keep(self, count: int) -> None:
        """Remove all entries but the first `count`. Raises ValueError if there are fewer."""
        if self._struct is None:
            raise RuntimeError("keep is called after the stage has returned")
        if not 0 <= count <= self._struct.count:
            raise ValueError(f"keep({count}): the gradient has {self._struct.count} entries")
        self._struct.count = count
        self.rows, self.values = self.rows[:count], self.values[:count]


class HookBucket:
    """A bucket of gradients, as a hook sees it.

    index          of the bucket in the plan, less than bucket_count
    bucket_count   number of buckets of the plan
    is_last        True for the last bucket that hooks see in a step
    dtype, count   element type and number of the elements in `buffer`
    step           number of synchronised steps before this one
    divisor        divisor of "avg" in this step
    rank, size     this rank, and the number of ranks
    scratch_bytes  as planned
    params         the parameters, in the bucket's order
    entries        HookEntries of a sparse gradient, which has neither buffer nor count; else None
    shares         of a sharded reducer, a tuple of size + 1 numbers: the hook leaves this rank the results of
                   buffer[shares[rank]:shares[rank + 1]], and the rest does not matter. None: of the whole buffer

    `buffer`, `scratch` and `gradient` are arrays without a copy, in host memory. Do not use them after the function has
    returned, or after StageToken.complete: the library then reads and writes this memory. Later accesses to these
    attributes raise RuntimeError. An array that is kept all the same keeps its reducer alive, but not open.
    """

    def __init__(self, struct: _abi.Bucket, owner: Callable[[], Any]) -> None:
        self.index, self.bucket_count, self.is_last = struct.index, struct.bucket_count, bool(struct.is_last)
        self.dtype, self.count, self.step = DType(struct.dtype), struct.count, struct.step
        self.divisor, self.rank, self.size = struct.divisor, struct.rank, struct.size
        self.scratch_bytes = struct.scratch_bytes
        self.shares: Optional[tuple[int, ...]] = tuple(struct.shares[:self.size + 1]) if struct.shares else None
        self._struct: Optional[_abi.Bucket] = struct
        self._owner = owner
        self._params: Optional[tuple[HookParam, ...]] = None
        self._entries: Optional[HookEntries] = None
        self._addresses: Optional[tuple[int, int]] = (struct.buffer or 0, struct.scratch or 0)

    @property
    def params(self) -> tuple[HookParam, ...]:
        """The parameters, in the bucket's order."""
        if self._params is None:
            struct = self._valid()
            first = ctypes.cast(struct.params, ctypes.c_void_p).value or 0
            self._params = tuple(_param(_abi.BucketParam.from_address(first + index * struct.param_size))
                                 for index in range(struct.param_count))
        return self._params

    @property
    def entries(self) -> Optional[HookEntries]:
        """The entries of a sparse gradient, else None."""
        struct = self._valid()
        if self._entries is None and struct.entries:
            self._entries = HookEntries(struct.entries.contents, self.dtype, self._owner())
        return self._entries

    @property
    def buffer(self) -> np.ndarray[Any, Any]:
        """The gradients: a flat array of `count` elements. BF16 elements appear as their bits, in uint16."""
        return memory_array(self._memory(0), self.dtype, (self.count,), None, self._owner())

    @property
    def scratch(self) -> np.ndarray[Any, Any]:
        """The hook's memory for this bucket: a flat array of scratch_bytes bytes. Its method view gives other types."""
        return memory_array(self._memory(1), DType.U8, (self.scratch_bytes,), None, self._owner())

    def gradient(self, param: HookParam) -> np.ndarray[Any, Any]:
        """Return a parameter's part of `buffer`, with the parameter's shape and strides."""
        address = self._memory(0) + param.offset * param.dtype.size
        return memory_array(address, param.dtype, param.shape, param.strides, self._owner())

    def _memory(self, which: int) -> int:
        if self._addresses is None:
            raise self._expired()
        if not self._addresses[which] and (self.count, self.scratch_bytes)[which]:
            raise RuntimeError(f"bucket {self.index} has no memory in plan: the stages have it")
        return self._addresses[which]

    def _valid(self) -> _abi.Bucket:
        if self._struct is None:
            raise self._expired()
        return self._struct

    def _expired(self) -> RuntimeError:
        return RuntimeError(f"bucket {self.index} is used after the hook's function has returned or the stage is "
                            "complete; copy what is needed later")

    def _end(self, keep_memory: bool = False) -> None:
        """End the access to the library's structs, and to its memory unless a stage completes later. Threads: any."""
        if not keep_memory:
            self._addresses = None
        if self._entries is not None:
            self._entries._struct = None
        self._struct = self._entries = None


class HookStage:
    """A stage that runs.

    index          0 to the number of collectives
    counts         after a DYNAMIC collective: the count of each rank; else None
    moved_count    the largest of counts; 0: the collective did not take place
    dynamic_count  to be set: the count of the DYNAMIC or OPTIONAL collective that follows
    """

    def __init__(self, struct: _abi.Stage, bucket: HookBucket, calls: _Calls) -> None:
        self._id, self._bucket, self._calls = struct.token, bucket, calls
        self._token: Optional[StageToken] = None
        self.index: int = struct.index
        self.moved_count: int = struct.moved_count
        self.counts = tuple(struct.counts[:bucket.size]) if struct.counts else None
        self.dynamic_count: int = struct.dynamic_count

    def later(self) -> StageToken:
        """Let the stage complete after it has returned, when the token's method complete is called.

        The stages of sparse gradients, and the last stage inside "fp16" and "bf16", cannot complete later. The hook must
        stay open until then.
        """
        if self._token is None:
            self._bucket._valid()
            self._bucket.params  # reads them, because a later access is too late
            self._token = StageToken(self._calls.owner(), self._id, self._bucket)
        return self._token


class StageToken:
    """Identifies a stage that completes later (HookStage.later)."""

    def __init__(self, hook: CustomHook, token: _abi.StageToken, bucket: HookBucket) -> None:
        self._hook, self._bucket = hook, bucket
        self._token = _abi.StageToken(token.bucket, token.stage, token.generation)

    def complete(self, error: Union[BaseException, str, None] = None) -> None:
        """Complete the stage. A late or repeated completion does nothing, as does one after the hook was closed.

        With an error, an exception or a text, the step fails on every rank. Threads: any, also inside callbacks.
        """
        self._bucket._end()
        code, text = (Status.OK, b"") if error is None else _failure(error)
        if isinstance(error, BaseException):
            self._hook._calls.keep(error)
        check(self._hook._complete(self._token, code, text))


class HookFunctions:
    """The functions of a custom hook: subclass it, and give an instance to CustomHook.

        class Signs(weftsync.HookFunctions):
            name = "signs"

            def plan(self, bucket):
                return weftsync.HookPlan([weftsync.HookCollective("all_reduce", bucket.dtype, bucket.count, "avg")])

            def stage(self, bucket, stage):
                if stage.index == 0:
                    bucket.buffer[...] = numpy.sign(bucket.buffer)

    `plan` and `stage` are required. Calls of one hook never overlap, also where reducers share it. `stage` and `join` run
    on a thread of the library ("weft-worker"), or with Context(progress="caller") inside the program's calls; the others
    run inside the program's calls. They must not call Weft, except StageToken.complete.

    An exception fails the step, or the call that ran the function, on every rank, with its type and its text (cut at 255
    bytes); on this rank it is the __cause__ of the WeftError. A WeftError keeps its code. KeyboardInterrupt and SystemExit
    on the main thread do the same, and the program's call then raises them. A stage that has not returned or been
    completed by the step's deadline fails the step as well.

    name    equal on all ranks; None: the name of the class
    sparse  True: the hook also sees sparse gradients, see docs/how-to/write-a-hook.md
    shares  True: the hook obeys HookBucket.shares, so it may be used in sharded reducers
    """

    name: Optional[str] = None
    sparse: bool = False
    shares: bool = False

    def plan(self, bucket: HookBucket) -> HookPlan:
        """Declare scratch memory and collectives of a bucket."""
        raise NotImplementedError(f"{type(self).__name__} has no function plan")

    def stage(self, bucket: HookBucket, stage: HookStage) -> None:
        """Compute between two collectives."""
        raise NotImplementedError(f"{type(self).__name__} has no function stage")

    def replan(self, bucket_count: int) -> None:
        """React to a changed bucket plan; `plan` follows for each bucket.

        State kept by parameter stays valid, state kept by bucket does not. A class without this function has its buckets
        re-planned only on the program's request.
        """

    def join(self, bucket: HookBucket) -> None:
        """React to a step in which this rank has no data: the buffer is zero and not read. All stages run as well."""

    def rebind(self, rank: int, size: int) -> None:
        """React to a changed communicator. An exception is raised by Reducer.rebind, on all ranks."""

    def save(self) -> bytes:
        """Return the state, for Hook.save."""
        return b""

    def load(self, state: bytes) -> None:
        """Restore the state that `save` returned, for Hook.load."""


class CustomHook(Hook):
    """A communication hook that calls functions of the program.

    functions  a HookFunctions. The library keeps it alive as long as this object, a reducer or another hook uses the hook

    Raises TypeError if plan or stage is missing, and WeftError ERR_ARG for an empty or very long name. A hook whose stages
    complete later must stay open as long as its reducers. Threads: as Hook.
    """

    def __init__(self, context: Context, functions: HookFunctions) -> None:
        kind = type(functions)
        if not isinstance(functions, HookFunctions):
            raise TypeError(f"functions is a {kind.__name__}, expected an instance of a subclass of HookFunctions")
        for required in ("plan", "stage"):
            if getattr(kind, required) is getattr(HookFunctions, required):
                raise TypeError(f"{kind.__name__} has no function {required}: override that of HookFunctions")
        self._lock = threading.RLock()  # keeps the handle while a completion uses it
        self._calls = _Calls(self, functions)
        name = kind.__name__ if functions.name is None else functions.name
        table, number, handle = _table(self._calls, name), next(_numbers), ctypes.c_void_p()
        _alive[number] = table
        code = lib.hook_create_custom(context._handle, table, number, handle)
        if code:
            del _alive[number]
            check(code)
        self._init(handle, name, None)

    def close(self) -> None:
        """Destroy the handle; a second call does nothing. Reducers that use the hook keep it alive."""
        with self._lock:
            super().close()

    def _destroyed(self) -> bool:
        with self._lock:
            return super()._destroyed()

    def _complete(self, token: _abi.StageToken, code: int, text: bytes) -> int:
        with self._lock:
            return Status.OK if self.closed else int(lib.hook_stage_complete(self._handle, token, code, text))

    def _take_exception(self) -> Optional[BaseException]:
        exception, self._calls.exception = self._calls.exception, None
        return exception


class _Calls:
    """Calls the program's functions, and converts their arguments, results and exceptions."""

    def __init__(self, hook: CustomHook, functions: HookFunctions) -> None:
        self._hook = weakref.ref(hook)
        self.functions = functions
        self.exception: Optional[BaseException] = None  # the last one of a function
        self._saved = b""

    def owner(self) -> CustomHook:
        """Return the open hook. Raises RuntimeError if it is closed."""
        hook = self._hook()
        if hook is None or hook.closed:
            raise RuntimeError("the stage cannot complete later, because its CustomHook is closed; close the reducer "
                               "before the hook")
        return hook

    def keep(self, error: BaseException) -> None:
        """Store an exception, which becomes the __cause__ of the reducer's error."""
        traceback.clear_frames(error.__traceback__)  # their variables may be arrays of the bucket
        self.exception = error

    def plan(self, _: int, bucket: int, plan: int, message: int) -> int:
        def call(seen: HookBucket) -> None:
            made = self.functions.plan(seen)
            if not isinstance(made, HookPlan):
                raise TypeError(f"plan returned a {type(made).__name__}, expected a HookPlan")
            _write_plan(made, _abi.HookPlan.from_address(plan))
        return self._run(message, lambda: self._with_bucket(bucket, call))

    def stage(self, _: int, bucket: int, stage: int, message: int) -> int:
        struct = _abi.Stage.from_address(stage)

        def call(seen: HookBucket) -> bool:
            running = HookStage(struct, seen, self)
            self.functions.stage(seen, running)
            struct.dynamic_count = running.dynamic_count
            struct.pending = running._token is not None
            return bool(struct.pending)
        return self._run(message, lambda: self._with_bucket(bucket, call))

    def replan(self, _: int, bucket_count: int, message: int) -> int:
        return self._run(message, lambda: self.functions.replan(bucket_count))

    def join(self, _: int, bucket: int, message: int) -> int:
        return self._run(message, lambda: self._with_bucket(bucket, self.functions.join))

    def rebind(self, _: int, rank: int, size: int, message: int) -> int:
        return self._run(message, lambda: self.functions.rebind(rank, size))

    def save(self, _: int, buffer: int, size: int, message: int) -> int:
        def call() -> None:
            if not buffer:  # the library asks for the size first, and writes this state
                self._saved = memoryview(self.functions.save()).tobytes()
            elif len(self._saved) <= ctypes.c_uint64.from_address(size).value:
                ctypes.memmove(buffer, self._saved, len(self._saved))
            ctypes.c_uint64.from_address(size).value = len(self._saved)
        return self._run(message, call)

    def load(self, _: int, buffer: int, size: int, message: int) -> int:
        return self._run(message, lambda: self.functions.load(ctypes.string_at(buffer, size) if size else b""))

    def _with_bucket(self, address: int, function: Callable[[HookBucket], Any]) -> None:
        """Call function with the bucket, which is valid until it returns, or until its stage is complete."""
        bucket, later = HookBucket(_abi.Bucket.from_address(address), self._users), False
        try:
            later = function(bucket) is True
        finally:
            bucket._end(keep_memory=later)

    def _users(self) -> list[Any]:
        """Return the reducers that may own a bucket, for arrays to keep alive."""
        hook = self._hook()
        return [] if hook is None else [one() for one in hook._users]

    def _run(self, message: int, function: Callable[[], None]) -> int:
        try:
            function()
            return Status.OK
        except BaseException as error:  # must not propagate into C code
            code, text = _failure(error)
            ctypes.memmove(message, text + b"\0", len(text) + 1)
            if not isinstance(error, Exception) and _interrupt.on_main_thread():
                _interrupt.raised.append(error)
            self.keep(error)
            return code


# The tables of the hooks that the library uses, by their user_data. They keep the functions alive. Threads: any.
_alive: dict[int, _abi.HookTable] = {}
_numbers = itertools.count(1)
# A function without Python code, because a table's own functions could not free themselves.
_types: dict[str, Any] = {field[0]: field[1] for field in _abi.HookTable._fields_}
_free = _types["free_user_data"](_alive.pop)


def _table(calls: _Calls, name: str) -> _abi.HookTable:
    """Make the C table of the functions that the program has overridden."""
    table = _abi.HookTable(name=name.encode(), free_user_data=_free)
    table.flags = (HookFlag.SPARSE if calls.functions.sparse else 0) | (HookFlag.SHARES if calls.functions.shares else 0)
    for function in ("plan", "stage", "replan", "join", "rebind", "save", "load"):
        if getattr(type(calls.functions), function) is not getattr(HookFunctions, function):
            setattr(table, function, _interrupt.c_function(_types[function], getattr(calls, function), Status.ERR_HOOK))
    return table


def _failure(error: Union[BaseException, str]) -> tuple[int, bytes]:
    """Return the status and the message of a failed function; the message is cut at the library's limit."""
    code: int = Status.ERR_HOOK
    text = error if isinstance(error, str) else described(error)
    if isinstance(error, WeftError) and error.code != Status.OK:
        code, text = error.code, error.text
    cut = text.encode("utf-8", "replace").replace(b"\0", b"?")[:_MESSAGE_BYTES - 1]
    return code, cut.decode("utf-8", "ignore").encode()


def _param(struct: _abi.BucketParam) -> HookParam:
    return HookParam(struct.index, struct.name.decode("utf-8", "replace"), DType(struct.dtype),
                     tuple(struct.shape[:struct.ndim]), tuple(struct.strides[:struct.ndim]), struct.offset,
                     struct.count, struct.parameter or 0)


def _write_plan(plan: HookPlan, struct: _abi.HookPlan) -> None:
    collectives = list(plan.collectives)
    if len(collectives) > HOOK_COLLECTIVES:
        raise ValueError(f"the plan has {len(collectives)} collectives, at most {HOOK_COLLECTIVES} are allowed")
    for place, one in zip(struct.collectives, collectives):
        place.coll, place.dtype = choice(Coll, one.coll, "coll"), dtype_of(one.dtype)
        place.op = 0 if one.op is None else choice(Op, one.op, "op")
        place.root, place.count, place.flags = one.root, one.count, choice(HookCollectiveFlag, one.flags, "flags")
        place.src_space, place.dst_space = choice(Space, one.src, "src"), choice(Space, one.dst, "dst")
        place.src_offset_bytes, place.dst_offset_bytes = one.src_offset, one.dst_offset
    struct.collective_count, struct.scratch_bytes = len(collectives), plan.scratch_bytes
    struct.result_space, struct.result_offset_bytes = choice(Space, plan.result, "result"), plan.result_offset
