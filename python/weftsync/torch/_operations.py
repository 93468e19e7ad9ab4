"""The operations of c10d, as a base class of the process group and of the backend.

Every operation returns a Work at once. Lists of tensors are copied through one buffer, because the library's
collectives have one source and one destination; a single contiguous tensor is used in place.
"""
from __future__ import annotations

import collections
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Callable, Optional

import torch

from ..comm import Comm
from ..constants import ANY_SOURCE, Status
from ..errors import WeftError
from ..request import Request
from . import _bootstrap, _profile
from ._errors import converted, failed_earlier, refused
from ._monitor import Monitor
from ._sparse import SparseSum
from ._tensors import Reduction, checked, flat, message, part, reduction, single, spread
from ._work import Finish, JointWork, RequestWork, Work

Tensors = Sequence[torch.Tensor]


class Operations:
    """Collectives and messages of one group of ranks. Threads: any; the callers agree on the order of collectives."""

    def _open(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        """Connect to the other ranks. Collective."""
        self._weft_rank, self._weft_size, self._timeout = rank, size, timeout
        self._calls = threading.RLock()  # the library takes one call at a time
        # An abort does not wait for calls, only for a shutdown, unless a finalizer or a signal handler inside that aborts.
        self._ending = threading.RLock()
        exchange = _bootstrap.StoreExchange(store, rank, size, timeout)
        self.comm: Comm = _bootstrap.create(exchange, rank, size)
        self._monitor = Monitor(store, rank, size, exchange.use)
        self._coalesced: Optional[list[Work]] = None
        # torch's Reducer keeps the C++ half of the Work of Join's all_reduce, which waits for ever without this half.
        self._kept: collections.deque[Work] = collections.deque(maxlen=64)
        self._count = 0

    # ---- how an operation starts

    def _seconds(self, options: Any) -> float:
        """Return the operation's deadline in seconds."""
        given = getattr(options, "timeout", None)
        if given is None or given.total_seconds() <= 0:
            given = self._timeout
        return float(given.total_seconds())

    def _start(self, name: str, call: Callable[[float], Optional[Request]], options: Any, inputs: Tensors,
               outputs: Tensors, finish: Optional[Finish] = None) -> Work:
        """Start one collective. finish copies its result into outputs, where that is needed."""
        def counted(seconds: float) -> Optional[Request]:
            self._count += 1
            return call(seconds)

        work = self._launch(name, counted, self._seconds(options), inputs, outputs, finish,
                            attended=finish is None or not getattr(options, "asyncOp", True))
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _launch(self, name: str, call: Callable[[float], Optional[Request]], seconds: float, inputs: Tensors,
                outputs: Tensors, finish: Optional[Finish], attended: bool) -> Work:
        """Start one request with this deadline. attended: nothing has to happen at its end before somebody asks."""
        if finish is not None:
            for one in outputs:
                _written(one, name)
        close = _profile.begin(name, inputs)
        try:
            with self._calls:  # shutdown does not close the communicator meanwhile
                self._check_alive(name)
                request = call(seconds)
        except Exception as error:
            if close is not None:
                close()
            if isinstance(error, WeftError):
                earlier = None if self.comm.closed else self.comm.error()
                if earlier is not None and earlier.code != Status.ERR_FORKED:
                    raise failed_earlier(earlier, name) from earlier
                raise converted(error, name, seconds) from error
            raise
        assert request is not None
        work = RequestWork(name, request, outputs, seconds, finish)
        work._profile = close
        if not attended or close is not None:
            work._watch()
        return work

    def _reduced(self, name: str, options: Any, inputs: Tensors, outputs: Tensors, source: torch.Tensor,
                 target: torch.Tensor, start: Callable[[Reduction, float], Optional[Request]],
                 finish: Optional[Finish] = None) -> Work:
        """Start a reduction. target holds its result, which may have to be divided."""
        how = reduction(options.reduceOp, source.dtype, self._weft_size)
        if how.divisor != 1:
            copy = finish

            def finish() -> None:
                target.div_(how.divisor, rounding_mode="trunc")
                if copy is not None:
                    copy()

        return self._start(name, lambda seconds: start(how, seconds), options, inputs, outputs, finish)

    # ---- reductions

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Optional[timedelta] = None) -> Work:
        """Reduce a tensor over all ranks, in place."""
        options = _options(opts, timeout)
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        if len(tensors) == 1 and tensors[0].layout != torch.strided:
            return self._sparse(tensors[0], options)
        tensor = single(tensors, "allreduce")
        return self._all_reduce("all_reduce", [tensor], options)

    allreduce_sparse = allreduce

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        """Reduce several tensors of one type over all ranks, in place."""
        if not tensors:
            raise refused("allreduce_coalesced", "requires non-empty tensor list")
        if any(one.dtype != tensors[0].dtype for one in tensors):
            raise refused("allreduce_coalesced", "tensors must all have the same type")
        return self._all_reduce("all_reduce", [checked(one, "allreduce_coalesced") for one in tensors], _options(opts))

    def _all_reduce(self, name: str, tensors: list[torch.Tensor], options: Any) -> Work:
        buffer = flat(tensors)
        in_place = len(tensors) == 1 and tensors[0].is_contiguous()
        work = self._reduced(
            name, options, tensors, tensors, buffer, buffer,
            lambda how, seconds: self.comm.all_reduce(part(buffer), op=how.op, factor=how.factor, timeout=seconds,
                                                      wait=False),
            None if in_place else lambda: spread(buffer, tensors))
        if buffer.numel() == 1:
            self._kept.append(work)
        return work

    def _sparse(self, tensor: torch.Tensor, options: Any) -> Work:
        how = reduction(options.reduceOp, tensor.dtype, self._weft_size)
        if how.op.name != "SUM" or how.divisor != 1:
            raise refused("all_reduce", "Can only use ReduceOp.SUM with sparse tensors", RuntimeError)
        made: list[SparseSum] = []

        def start(seconds: float) -> Request:
            made.append(SparseSum(self.comm, tensor, seconds))
            return made[0].request

        return self._start("all_reduce", start, options, [tensor], [tensor], lambda: made[0].finish())

    def reduce(self, tensors: Tensors, opts: Any = None) -> Work:
        """Reduce a tensor over all ranks, in place on the root rank."""
        options, tensor = _options(opts), single(tensors, "reduce")
        root = options.rootRank
        buffer = flat([tensor])
        # Elsewhere the tensor stays as it is.
        target = buffer if self._weft_rank == root else torch.empty(0, dtype=tensor.dtype)
        moved = self._weft_rank == root and not tensor.is_contiguous()
        return self._reduced(
            "reduce", options, [tensor], [tensor], buffer, target,
            lambda how, seconds: self.comm.reduce(part(buffer), op=how.op, root=root, factor=how.factor,
                                                  timeout=seconds, wait=False),
            (lambda: spread(buffer, [tensor])) if moved else None)

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:
        """Reduce a list of tensors, of which rank r receives entry r."""
        output, inputs = single(output_tensors, "reduce_scatter"), _only(input_tensors, "reduce_scatter")
        self._one_each(inputs, "reduce_scatter")
        return self._reduce_scatter("reduce_scatter", output, inputs, _options(opts))

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """Reduce a tensor, of which rank r receives block r."""
        self._check_reduce_scatter(output, input)
        return self._reduce_scatter("_reduce_scatter_base", output, [input], _options(opts))

    reduce_scatter_single = _reduce_scatter_base

    def _check_reduce_scatter(self, output: torch.Tensor, input: torch.Tensor) -> None:
        name = "_reduce_scatter_base"
        checked(output, name), checked(input, name)
        _written(output, name)
        if output.dtype != input.dtype:
            raise refused(name, "tensors must all have the same type")
        if input.numel() != output.numel() * self._weft_size:
            raise refused(name, "input tensor must be the same size as output size times world size")

    def _reduce_scatter(self, name: str, output: torch.Tensor, inputs: Tensors, options: Any) -> Work:
        if any(one.dtype != output.dtype for one in inputs):
            raise refused(name, "tensors must all have the same type")
        source, target = flat(inputs), output.detach() if output.is_contiguous() else torch.empty_like(
            output, memory_format=torch.contiguous_format)
        counts = [one.numel() for one in inputs] if len(inputs) > 1 else []
        if counts and output.numel() != counts[self._weft_rank]:
            raise refused(name, f"invalid tensor size of the output (expected {counts[self._weft_rank]} elements as in "
                          f"entry {self._weft_rank} of the inputs, got {output.numel()})")
        finish = None if target.data_ptr() == output.data_ptr() else lambda: spread(target.view(-1), [output])
        if _overlap(source, target):
            source = source.clone()

        def start(how: Reduction, seconds: float) -> Optional[Request]:
            if len(set(counts)) > 1:
                return self.comm.reduce_scatter_v(part(source), part(target), counts, how.op, factor=how.factor,
                                                  timeout=seconds, wait=False)
            return self.comm.reduce_scatter(part(source), part(target), how.op, factor=how.factor, timeout=seconds,
                                            wait=False)

        return self._reduced(name, options, inputs, [output], source, target, start, finish)

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Reduce several tensors; rank r receives block r of each."""
        pairs = _pairs(outputs, inputs, "reduce_scatter_tensor_coalesced")
        for output, input in pairs:  # all of them, before the first one is sent
            self._check_reduce_scatter(output, input)
        return self._joint("reduce_scatter", [self._reduce_scatter_base(output, input, opts)
                                              for output, input in pairs], opts)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    # ---- copies

    def broadcast(self, tensors: Any, opts: Any = None) -> Work:
        """Copy the root's tensor to all ranks."""
        options, tensor = _options(opts), single(tensors, "broadcast")
        buffer = flat([tensor])
        moved = not tensor.is_contiguous() and self._weft_rank != options.rootRank
        return self._start("broadcast", lambda seconds: self.comm.broadcast(
            part(buffer), options.rootRank, timeout=seconds, wait=False), options, [tensor], [tensor],
            (lambda: spread(buffer, [tensor])) if moved else None)

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:
        """Gather the tensors of all ranks in a list. The list's tensors may have different sizes."""
        outputs, input = _only(output_tensors, "allgather"), single(input_tensors, "allgather")
        self._one_each(outputs, "allgather")
        return self._all_gather(outputs, input, _options(opts))

    def _all_gather(self, outputs: Tensors, input: torch.Tensor, options: Any) -> Work:
        self._same(outputs, input, "allgather")
        source, counts = flat([input]), [one.numel() for one in outputs]
        if counts[self._weft_rank] != input.numel():
            raise refused("allgather", f"invalid tensor size at index {self._weft_rank} of the output list (expected "
                          f"{tuple(input.shape)}, got {tuple(outputs[self._weft_rank].shape)})")
        target = torch.empty(sum(one.numel() for one in outputs), dtype=input.dtype)

        def start(seconds: float) -> Optional[Request]:
            if len(set(counts)) > 1:
                return self.comm.all_gather_v(part(source), part(target), counts, timeout=seconds, wait=False)
            return self.comm.all_gather(part(source), part(target), timeout=seconds, wait=False)

        return self._start("all_gather", start, options, [input], outputs, lambda: spread(target, outputs))

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """Gather the tensors of all ranks in one tensor."""
        self._check_all_gather(output, input)
        source, target, finish = _destination(flat([input]), output)
        return self._start("_allgather_base", lambda seconds: self.comm.all_gather(
            part(source), part(target), timeout=seconds, wait=False), _options(opts), [input], [output], finish)

    all_gather_single = _allgather_base

    def _check_all_gather(self, output: torch.Tensor, input: torch.Tensor) -> None:
        name = "_allgather_base"
        checked(output, name), checked(input, name)
        _written(output, name)
        if output.dtype != input.dtype:
            raise refused(name, "output tensor must have the same type as input tensor")
        if output.numel() != input.numel() * self._weft_size:
            raise refused(name, "output tensor size must be equal to world_size times input tensor size")

    def allgather_coalesced(self, output_lists: Sequence[Tensors], input_list: Tensors, opts: Any = None) -> Work:
        """Gather several tensors of all ranks: output_lists[r][i] is input_list[i] of rank r."""
        self._one_each(output_lists, "allgather_coalesced")
        for outputs in output_lists:
            if len(outputs) != len(input_list):
                raise refused("allgather_coalesced", "invalid output size: (expected length "
                              f"{len(input_list)}, got {len(outputs)})")
        return self._joint("all_gather", [self._all_gather([outputs[i] for outputs in output_lists], input,
                                                           _options(opts))
                                          for i, input in enumerate(input_list)], opts)

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Gather several tensors of all ranks, each in one tensor."""
        pairs = _pairs(outputs, inputs, "allgather_into_tensor_coalesced")
        for output, input in pairs:  # all of them, before the first one is sent
            self._check_all_gather(output, input)
        return self._joint("all_gather", [self._allgather_base(output, input, opts) for output, input in pairs], opts)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:
        """Gather the tensors of all ranks in a list on the root rank."""
        options, input = _options(opts), single(input_tensors, "gather")
        root, outputs = options.rootRank, []
        if self._weft_rank == root:
            outputs = _only(output_tensors, "gather")
            self._one_each(outputs, "gather")
            self._same(outputs, input, "gather")
            self._equal_sizes(outputs, input, "gather")
        elif output_tensors and output_tensors[0]:
            raise refused("gather", "requires empty output on non-root")
        source, target = flat([input]), torch.empty(sum(one.numel() for one in outputs), dtype=input.dtype)
        return self._start("gather", lambda seconds: self.comm.gather(
            part(source), part(target) if outputs else None, root, timeout=seconds, wait=False), options, [input],
            outputs, (lambda: spread(target, outputs)) if outputs else None)

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:
        """Send entry r of the root's list to rank r."""
        options, output = _options(opts), single(output_tensors, "scatter")
        root, inputs = options.rootRank, []
        if self._weft_rank == root:
            inputs = _only(input_tensors, "scatter")
            self._one_each(inputs, "scatter")
            self._same(inputs, output, "scatter")
            self._equal_sizes(inputs, output, "scatter")
        elif input_tensors and input_tensors[0]:
            raise refused("scatter", "requires empty input on non-root")
        source = torch.cat([one.detach().reshape(-1) for one in inputs]) if inputs else None
        target = flat([output])
        return self._start("scatter", lambda seconds: self.comm.scatter(
            None if source is None else part(source), part(target), root, timeout=seconds, wait=False), options, inputs,
            [output], None if output.is_contiguous() else lambda: spread(target, [output]))

    def alltoall_base(self, output: torch.Tensor, input: torch.Tensor, output_split_sizes: Sequence[int],
                      input_split_sizes: Sequence[int], opts: Any = None) -> Work:
        """Send rows of input to every rank, and receive rows of output from every rank."""
        checked(output, "alltoall_base"), checked(input, "alltoall_base")
        if output.dtype != input.dtype:
            raise refused("alltoall_base", "tensors must all have the same type")
        taken, given = self._rows(output, output_split_sizes), self._rows(input, input_split_sizes)
        source, target, finish = _destination(flat([input]), output)
        return self._start("all_to_all", lambda seconds: self.comm.all_to_all_v(
            part(source), given, part(target), taken, timeout=seconds, wait=False), _options(opts), [input], [output],
            finish)

    all_to_all_single = alltoall_base

    def alltoall(self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None) -> Work:
        """Send entry r of the inputs to rank r, and receive entry r of the outputs from it."""
        self._one_each(output_tensors, "alltoall")
        self._one_each(input_tensors, "alltoall")
        self._same([*output_tensors, *input_tensors], output_tensors[0], "alltoall")
        source = torch.cat([one.detach().reshape(-1) for one in input_tensors])
        target = torch.empty(sum(one.numel() for one in output_tensors), dtype=source.dtype)
        given, taken = ([one.numel() for one in tensors] for tensors in (input_tensors, output_tensors))
        return self._start("all_to_all", lambda seconds: self.comm.all_to_all_v(
            part(source), given, part(target), taken, timeout=seconds, wait=False), _options(opts), input_tensors,
            output_tensors, lambda: spread(target, output_tensors))

    def barrier(self, opts: Any = None, timeout: Optional[timedelta] = None) -> Work:
        """Wait until all ranks have called barrier."""
        return self._start("barrier", lambda seconds: self.comm.barrier(timeout=seconds, wait=False),
                           _options(opts, timeout), [], [])

    # ---- messages

    def send(self, tensors: Tensors, dst_rank: int, tag: int = 0) -> Work:
        """Send a tensor to a rank, which receives it with the same tag."""
        tensor = _message(tensors, "send", tag)
        work = self._launch("send", lambda seconds: self.comm.send_tagged(
            message(tensor), dst_rank, tag, timeout=seconds, wait=False), self._seconds(None), [tensor], [tensor], None,
            attended=True)
        work.name = f"send to rank {dst_rank} with tag {tag}"
        return work

    def recv(self, tensors: Tensors, src_rank: int, tag: int = 0) -> Work:
        """Receive a tensor from a rank."""
        return self._receive("recv", tensors, src_rank, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        """Receive a tensor from any rank; the Work's source_rank tells which."""
        return self._receive("recvAnySource", tensors, ANY_SOURCE, tag)

    def _receive(self, name: str, tensors: Tensors, source: int, tag: int) -> Work:
        tensor = _message(tensors, "recv", tag)
        room = message(tensor)
        made: list[Request] = []

        def start(seconds: float) -> Request:
            made.append(self.comm.recv_tagged(room, source, tag, timeout=seconds, wait=False))
            return made[0]

        def finish() -> None:
            taken = made[0].result()
            if taken.count != room.count:
                unit = "elements" if room.count == tensor.numel() else "bytes"
                raise RuntimeError(f"weft recv: the message of rank {taken.source} with tag {tag} has {taken.count} "
                                   f"{unit}, expected {room.count}: send a tensor of the same size and type")

        work = self._launch(name, start, self._seconds(None), [tensor], [tensor], finish, attended=True)
        work.name = f"recv from {'any rank' if source == ANY_SOURCE else f'rank {source}'} with tag {tag}"
        return work

    # ---- several operations as one

    def _start_coalescing(self, device: Any = None) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: Any = None) -> Work:
        works, self._coalesced = self._coalesced or [], None
        return self._joint("coalesced", works, None)

    start_coalescing, end_coalescing = _start_coalescing, _end_coalescing

    def _joint(self, name: str, works: list[Work], options: Any) -> Work:
        return JointWork(name, works, self._seconds(options))

    @property
    def supports_splitting(self) -> bool:
        """False: torch creates groups from ranks of this one through the store."""
        return False

    @property
    def supports_coalescing(self) -> bool:
        """False: batches of sends and receives start one by one."""
        return False

    # ---- state

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the deadline of operations that have none of their own."""
        self._timeout = timeout

    _set_default_timeout = set_timeout

    def _get_sequence_number_for_group(self) -> int:
        return self._count

    def _set_sequence_number_for_group(self) -> None:
        self._count = 0

    # ---- end

    def abort(self) -> None:
        """Fail all operations of the group, on all ranks. Does nothing after `shutdown`."""
        with self._ending:
            if not self.comm.closed:
                self.comm.abort("the process group was aborted")

    def shutdown(self) -> None:
        """Leave the group. Operations that are outstanding fail."""
        with self._calls, self._ending:
            self.comm.close()

    def _check_alive(self, name: str) -> None:
        if self.comm.closed:
            raise refused(name, "the process group was destroyed: create a new one", RuntimeError)

    # ---- checks

    def _equal_sizes(self, entries: Sequence[torch.Tensor], other: torch.Tensor, name: str) -> None:
        for rank, entry in enumerate(entries):
            if entry.numel() != other.numel():
                raise refused(name, f"invalid tensor size at index {rank} (expected {other.numel()} elements as in this "
                              f"rank's own tensor, got {entry.numel()})")

    def _one_each(self, entries: Sequence[Any], name: str) -> None:
        if len(entries) != self._weft_size:
            raise refused(name, f"invalid list size: expected {self._weft_size} entries, one for each rank, got "
                          f"{len(entries)}")

    @staticmethod
    def _same(tensors: Tensors, like: torch.Tensor, name: str) -> None:
        for one in tensors:
            checked(one, name)
            if one.dtype != like.dtype:
                raise refused(name, f"tensors must all have the same type: invalid tensor type {one.dtype}, expected "
                              f"{like.dtype}")

    def _rows(self, tensor: torch.Tensor, sizes: Sequence[int]) -> list[int]:
        """Convert sizes in rows to counts of elements. Without sizes the blocks are equal."""
        if not sizes:
            if (tensor.shape[0] if tensor.dim() else tensor.numel()) % self._weft_size:
                raise refused("alltoall_base", "Tensor's dim 0 does not divide equally across group size", RuntimeError)
            return [tensor.numel() // self._weft_size] * self._weft_size
        if len(sizes) != self._weft_size:
            raise refused("alltoall_base", "Number of tensor splits not equal to group size", RuntimeError)
        for rank, rows in enumerate(sizes):
            if rows < 0:
                raise refused("alltoall_base", f"split sizes {list(sizes)} have {rows} for rank {rank}, expected 0 or more")
        if not tensor.dim():
            raise refused("alltoall_base", f"the tensor has no dimensions, but split sizes {list(sizes)} are rows of its "
                          "first one: pass a tensor with a dimension, or no split sizes")
        if sum(sizes) != tensor.shape[0]:
            raise refused("alltoall_base", "Split sizes doesn't match total dim 0 size", RuntimeError)
        row = tensor.numel() // max(tensor.shape[0], 1)
        return [size * row for size in sizes]


class _Defaults:
    """Options of a caller that gives none."""

    reduceOp = torch.distributed.ReduceOp.SUM
    rootRank = 0
    rootTensor = 0
    asyncOp = True

    def __init__(self, timeout: Optional[timedelta] = None, reduce_op: Any = None, root: int = 0) -> None:
        self.timeout, self.rootRank = timeout, root
        if reduce_op is not None:
            self.reduceOp = reduce_op


def _options(opts: Any, timeout: Optional[timedelta] = None) -> Any:
    """Return the caller's options. Some callers give a ReduceOp or a root rank in their place."""
    if opts is None:
        return _Defaults(timeout)
    if isinstance(opts, (torch.distributed.ReduceOp, torch.distributed.ReduceOp.RedOpType)):
        return _Defaults(timeout, opts)
    if isinstance(opts, timedelta):
        return _Defaults(opts)
    if isinstance(opts, int):
        return _Defaults(timeout, root=opts)
    return opts


def _only(lists: Any, name: str) -> Any:
    """Return the list of this process from lists that c10d passes for devices."""
    if len(lists) != 1:
        raise refused(name, f"requires a single-element output/input list, got {len(lists)} lists")
    return lists[0]


def _pairs(outputs: Tensors, inputs: Tensors, name: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return output and input of each of several operations."""
    if len(outputs) != len(inputs):
        raise refused(name, f"got {len(outputs)} outputs, {len(inputs)} inputs: expected an output for each input")
    return list(zip(outputs, inputs, strict=True))


def _destination(source: torch.Tensor, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor,
                                                                    Optional[Callable[[], None]]]:
    """Return a source that does not overlap output, a contiguous target, and its copy to output, if one is needed."""
    target = output.detach() if output.is_contiguous() else torch.empty_like(
        output, memory_format=torch.contiguous_format)
    if _overlap(source, target):
        source = source.clone()
    return source, target, None if target.data_ptr() == output.data_ptr() else lambda: spread(target.view(-1), [output])


def _written(output: torch.Tensor, name: str) -> None:
    """Check that a result can be copied into output, which torch refuses if its elements share memory."""
    if output.layout == torch.strided and not output.is_contiguous() and torch._debug_has_internal_overlap(output) == 1:
        raise refused(name, f"elements of the output share memory (shape {tuple(output.shape)}, strides "
                      f"{output.stride()}), as those of expand() do: pass a clone()")


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if the memory of two contiguous tensors overlaps."""
    begin, other_begin = int(one.data_ptr()), int(other.data_ptr())
    return begin < other_begin + int(other.nbytes) and other_begin < begin + int(one.nbytes)


def _message(tensors: Tensors, name: str, tag: int) -> torch.Tensor:
    """Return the only tensor of a message's list. Checks it and the tag."""
    tensor = single(tensors, name)
    if not tensor.is_contiguous():
        raise refused(name, "Tensors must be contiguous")
    if tag < 0:
        raise refused(name, "Tag must be nonnegative", RuntimeError)
    return tensor.detach()
