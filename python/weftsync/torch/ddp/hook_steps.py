"""HookSteps: reduces the gradients of each step by a communication hook of the program, in the form of torch's."""
from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import torch

from .model import Model, Settings


class GradBucket:
    """A bucket of gradients as a hook sees it, with the methods of torch.distributed.GradBucket.

    index       of the bucket in the order of launch
    buffer      its gradients: a flat tensor, or a sparse gradient
    gradients   views of the buffer with the shapes of the parameters
    parameters  of the bucket
    is_last     True for the last bucket of the step
    """

    def __init__(self, index: int, buffer: torch.Tensor, gradients: Sequence[torch.Tensor],
                 parameters: Sequence[torch.Tensor], is_last: bool) -> None:
        self._index, self._buffer, self._gradients = index, buffer, list(gradients)
        self._parameters, self._is_last = list(parameters), is_last

    def index(self) -> int:
        """Return the bucket's place in the order of launch."""
        return self._index

    def buffer(self) -> torch.Tensor:
        """Return the gradients: one flat tensor, or a sparse one."""
        return self._buffer

    def gradients(self) -> list[torch.Tensor]:
        """Return views of the gradients, in the order of parameters()."""
        return self._gradients

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters of the bucket."""
        return self._parameters

    def is_last(self) -> bool:
        """Return True for the last bucket of a step."""
        return self._is_last

    def set_buffer(self, buffer: torch.Tensor) -> None:
        """Replace the buffer by a tensor of the same size."""
        self._buffer = buffer


class _Bucket:
    """The memory of one bucket, and how many of its gradients a step lacks."""

    def __init__(self, model: Model, members: Sequence[int]) -> None:
        self.members = list(members)
        self.sparse = model.sparse[members[0]]
        self.left = 0
        parameters = [model.parameters[index] for index in members]
        total = 0 if self.sparse else sum(parameter.numel() for parameter in parameters)
        self.buffer = torch.zeros(total, dtype=parameters[0].dtype, device=parameters[0].device)
        self.views: list[torch.Tensor] = []
        begin = 0
        for index, parameter in zip(members, parameters):
            if not self.sparse:
                self.views.append(self.buffer.as_strided(parameter.shape, model.strides[index], begin))
                begin += parameter.numel()


class HookSteps:
    """Steps whose buckets are reduced by a hook of the program.

    The hook runs on the thread of the backward pass, in the order of the buckets, so that its collectives have the same
    order on all ranks. It returns a future, which finish waits for. torch's futures have no deadline: that of the hook's
    own operations ends the wait.

    plan  the parameters of each bucket, in the order of launch
    used  function that adds up a tensor of int32 over all ranks, in place: how many ranks use each parameter

    Threads: one at a time: that of the forward pass, and autograd's.
    """

    def __init__(self, model: Model, settings: Settings, plan: Sequence[Sequence[int]], hook: Callable[[Any, Any], Any],
                 state: Any, used: Callable[[torch.Tensor], None]) -> None:
        self._model, self._settings, self._hook, self._state, self._add_up = model, settings, hook, state, used
        self._buckets = [_Bucket(model, members) for members in plan]
        self._places = {index: (bucket, place) for bucket in self._buckets for place, index in enumerate(bucket.members)}
        self._next = 0
        self._futures: list[Any] = []
        self._used = torch.zeros(len(model), dtype=torch.int32)

    def begin(self, has_data: bool = True) -> None:
        """Begin a step."""
        self._next, self._futures = 0, []
        for bucket in self._buckets:
            bucket.left = len(bucket.members)

    def add(self, index: int) -> None:
        """Take the gradient of a parameter, which is complete, and run the hooks of buckets that are complete."""
        gradient = self._model.parameters[index].grad
        if gradient is not None:
            self._used[index] = 1
        bucket, place = self._places[index]
        if bucket.sparse:
            if gradient is None or not gradient.is_sparse:
                raise RuntimeError(f"weft DistributedDataParallel: the gradient of {self._model.names[index]} is not sparse, "
                                   "as its module says")
            bucket.buffer = gradient
        else:
            view = bucket.views[place]
            if gradient is None:
                view.zero_()
            elif gradient.data_ptr() != view.data_ptr():
                view.copy_(gradient.detach())
            if gradient is not None and self._settings.view:
                self._model.parameters[index].grad = view
        bucket.left -= 1
        while self._next < len(self._buckets) and self._buckets[self._next].left <= 0:
            self._launch()

    def leave_out(self, indices: list[int]) -> None:
        """Declare that parameters have no gradient on this rank in this step: they are zero."""
        for index in indices:
            self.add(index)

    def finish(self) -> None:
        """Wait for the hooks' results, and write them into the gradients."""
        while self._next < len(self._buckets):  # of a static graph, whose first step shows which gradients there are
            self._launch()
        results = [_value(future) for future in self._futures]
        if self._settings.absent:
            self._add_up(self._used)
        for bucket, result in zip(self._buckets, results):
            if not bucket.sparse and result.data_ptr() != bucket.buffer.data_ptr():
                bucket.buffer.copy_(result.view_as(bucket.buffer))  # raises for another size
            for place, index in enumerate(bucket.members):
                if not (self._settings.absent and self._used[index] == 0):
                    self._give_back(bucket, place, index, result)
        self._used.zero_()
        self._futures = []

    def join(self) -> None:
        """Take part in a step of the other ranks with gradients of zero, which are not given back."""
        self.begin()
        for bucket in self._buckets:
            if bucket.sparse:
                parameter = self._model.parameters[bucket.members[0]]
                bucket.buffer = torch.sparse_coo_tensor(
                    torch.empty((1, 0), dtype=torch.int64), torch.empty((0, *parameter.shape[1:]), dtype=parameter.dtype),
                    parameter.shape, check_invariants=False)
            else:
                bucket.buffer.zero_()
            self._launch()
        for future in self._futures:
            _value(future)
        if self._settings.absent:
            self._add_up(self._used.zero_())
            self._used.zero_()

    def fail(self, text: str) -> None:
        """End the step that is open. Other ranks learn of it by the hooks' own collectives only."""
        self._futures = []

    def keep_gradients(self) -> None:
        """Give the parameters gradients of their own, before another object takes the place of this one."""

    def buckets(self) -> list[tuple[int, ...]]:
        """Return the parameters of each bucket in the order of launch."""
        return [tuple(bucket.members) for bucket in self._buckets]

    def _launch(self) -> None:
        bucket, index = self._buckets[self._next], self._next
        self._next += 1
        parameters = [self._model.parameters[member] for member in bucket.members]
        views = [bucket.buffer] if bucket.sparse else bucket.views
        future = self._hook(self._state, GradBucket(index, bucket.buffer, views, parameters, self._next == len(self._buckets)))
        if not isinstance(future, torch._C.Future):
            raise RuntimeError(f"weft DistributedDataParallel: the communication hook returned {type(future).__name__}, expected "
                               "torch.futures.Future")
        self._futures.append(future)

    def _give_back(self, bucket: _Bucket, place: int, index: int, result: torch.Tensor) -> None:
        parameter = self._model.parameters[index]
        if bucket.sparse:
            parameter.grad = result
        elif self._settings.view:
            parameter.grad = bucket.views[place]
        elif parameter.grad is None or not self._model.fits(index, parameter.grad):
            parameter.grad = self._model.empty_gradient(index).copy_(bucket.views[place])
        else:
            parameter.grad.detach().copy_(bucket.views[place])


def _value(future: Any) -> torch.Tensor:
    """Wait for the result of a hook: a tensor, or a list of one."""
    value = future.wait()
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    if not isinstance(value, torch.Tensor):
        raise RuntimeError(f"weft DistributedDataParallel: the future of the communication hook has {type(value).__name__}, "
                           "expected a tensor or a list of one")
    return value
