"""WeftSteps: reduces the gradients of each step by a Weft reducer."""
from __future__ import annotations

import os
import weakref
from typing import Any, Callable, Optional

import torch

from ...comm import Comm
from ...constants import Status
from ...custom_hook import CustomHook
from ...errors import WeftError
from ...hook import Hook
from ...records import Param
from ...reducer import Reducer
from .._errors import converted
from .._tensors import element
from .model import Model, Settings

NAME = "DistributedDataParallel"  # in errors

_steps: weakref.WeakSet[WeftSteps] = weakref.WeakSet()  # whose gradients may lie in the buckets


class WeftSteps:
    """The steps of a Weft reducer over the gradients of a Model. Creating it is collective.

    Threads: one at a time: that of the forward pass, and autograd's.

    hook     communication hook, or None to average
    seconds  the communicator's timeout, for errors
    """

    def __init__(self, comm: Comm, model: Model, settings: Settings, hook: Optional[Hook], seconds: float) -> None:
        self._model, self._settings, self._seconds = model, settings, seconds
        params = [Param(name, parameter.shape, element(parameter.dtype), strides, sparse=int(sparse))
                  for name, parameter, strides, sparse in zip(model.names, model.parameters, model.strides, model.sparse)]
        self.reducer: Reducer = self._call(
            Reducer, comm, params, mode="view" if settings.view else "copy", copy_strays=settings.view,
            bucket_limits=settings.limits, absent=settings.absent, static=settings.static, uneven=settings.uneven,
            divide_by=settings.divide_by, reduce_dtype=settings.reduce_dtype, keep_values=True, accumulate="program",
            hook=hook, replan=_planner(settings, hook))
        self._first = True
        self._ready: set[int] = set()
        self._lent: list[Any] = []  # gradients that the reducer writes into, until finish
        self._views: list[Optional[torch.Tensor]] = [None] * len(model)
        self._places: list[Optional[int]] = [None] * len(model)  # addresses of the views
        self._generation = 0  # of the plan whose views these are
        self._may_move = settings.view  # until the begin after the first finished step, which may re-plan
        self._finished = False
        if settings.view:
            self._take_views()
        _steps.add(self)

    def begin(self, has_data: bool = True) -> None:
        """Begin a step. The second one may move the gradients that lie in the buckets."""
        self._ready = set()
        self._call(self.reducer.begin, no_data=not has_data)
        if self._may_move:
            self._may_move = not self._finished
            if self.reducer.stats().plan_generation != self._generation:
                self._follow_views()

    def add(self, index: int) -> None:
        """Hand over the gradient of a parameter, which is complete."""
        self._ready.add(index)
        parameter = self._model.parameters[index]
        gradient = parameter.grad
        if self._model.sparse[index]:
            self._add_sparse(index, gradient)
            return
        if gradient is None:  # a backward pass with an undefined gradient
            if self._settings.absent:
                self.leave_out([index])
                return
            gradient = self._model.zero_gradient(index)
        view = self._views[index]
        if view is not None and gradient.data_ptr() == self._places[index]:
            self._call(self.reducer.ready, index)
            return
        if gradient.is_sparse:
            raise RuntimeError(f"weft {NAME}: the gradient of {self._model.names[index]} is sparse, but that of its module was "
                               "expected to be dense: only Embedding and EmbeddingBag with sparse=True have sparse gradients")
        if gradient.requires_grad or not self._model.fits(index, gradient):
            gradient = self._model.empty_gradient(index).copy_(gradient.detach())
        if view is None:
            self._lent.append(gradient.detach())  # keeps the memory, also if the program gives gradient another one
            if gradient is not parameter.grad:
                parameter.grad = gradient
        if view is not None and self._settings.static:  # it may complete again in this step, and is then added to
            view.copy_(gradient)
            self._call(self.reducer.ready, index)
        else:
            self._call(self.reducer.ready, index, gradient.data_ptr() or None)
        if view is not None:
            parameter.grad = view

    def leave_out(self, indices: list[int]) -> None:
        """Declare that parameters have no gradient on this rank in this step."""
        self._ready.difference_update(indices)
        self._call(self.reducer.absent, *indices)

    def finish(self) -> None:
        """Wait until the results are in the gradients. Ends the step also if it raises."""
        # The first step of a static graph shows which parameters the others have.
        rest_absent = self._settings.find_unused or (self._settings.static and self._first)
        self._first = False
        try:
            self._call(self.reducer.finish, rest_absent=rest_absent)
            self._finished = True
        except RuntimeError as error:
            self._abandon(error)
            raise
        finally:
            self._lent.clear()
        for index in range(len(self._model)) if self._settings.absent or True in self._model.sparse else ():
            self._receive(index)

    def join(self) -> None:
        """Take part in a step of the other ranks without data."""
        self.begin(has_data=False)
        self._call(self.reducer.finish)
        self._finished = True

    def fail(self, text: str) -> None:
        """End the step that is open on all ranks with an error."""
        try:
            self.reducer.fail(text)
        except WeftError:
            pass  # the communicator has failed, which the next step reports
        self._lent.clear()

    def keep_gradients(self) -> None:
        """Give the parameters gradients of their own, before another object takes the place of this one."""
        for parameter in self._in_buckets():
            parameter.grad = parameter.grad.clone()

    def drop_gradients(self) -> None:
        """Set the gradients that lie in the buckets to None."""
        for parameter in self._in_buckets():
            parameter.grad = None

    def buckets(self) -> list[tuple[int, ...]]:
        """Return the parameters of each bucket in the order of launch. Between steps."""
        return [bucket.params for bucket in self.reducer.buckets()]

    def _take_views(self) -> None:
        self._generation = self.reducer.stats().plan_generation
        self._views = [None if sparse else _tensor(view, parameter.dtype)
                       for sparse, view, parameter in zip(self._model.sparse, self.reducer.views, self._model.parameters)]
        self._places = [None if view is None else view.data_ptr() for view in self._views]

    def _follow_views(self) -> None:
        """Let the gradients that lay in the buckets lie in the new ones, where the reducer has put their values."""
        moved = [parameter.grad is not None and parameter.grad.data_ptr() == place
                 for parameter, place in zip(self._model.parameters, self._places)]
        self._take_views()
        for parameter, view, has_moved in zip(self._model.parameters, self._views, moved):
            if has_moved and view is not None:
                parameter.grad = view

    def _in_buckets(self) -> list[torch.nn.Parameter]:
        """Return the parameters whose gradients lie in the buckets now."""
        return [parameter for parameter, place in zip(self._model.parameters, self._places)
                if place is not None and parameter.grad is not None and parameter.grad.data_ptr() == place]

    def _abandon(self, error: RuntimeError) -> None:
        """End the step after an error of finish, which leaves it open if a gradient is missing."""
        if isinstance(error.__cause__, WeftError) and error.__cause__.code == Status.ERR_STATE:
            self.fail(str(error.__cause__))

    def _add_sparse(self, index: int, gradient: Optional[torch.Tensor]) -> None:
        name = self._model.names[index]
        if gradient is None:
            raise RuntimeError(f"weft {NAME}: Expected sparse gradient of {name} to be defined.")
        if not gradient.is_sparse:
            raise RuntimeError(f"weft {NAME}: Expected variable {name} to have sparse gradient.")
        self._call(self.reducer.ready_sparse, index, gradient._indices().contiguous(), gradient._values().contiguous())

    def _receive(self, index: int) -> None:
        """Take a result that is not in the gradient: of a sparse gradient, or of a parameter that is unused here."""
        parameter = self._model.parameters[index]
        unused = index not in self._ready
        if unused and (not self._settings.absent or self.reducer.param(index).absent_everywhere):
            return
        if self._model.sparse[index]:
            where, values = self.reducer.sparse_result(index)
            parameter.grad = torch.sparse_coo_tensor(torch.from_numpy(where), _tensor(values, parameter.dtype),
                                                     parameter.shape, check_invariants=False, is_coalesced=True)
        elif unused and self._views[index] is not None:
            parameter.grad = self._views[index]
        elif unused:
            if parameter.grad is None or not self._model.fits(index, parameter.grad):
                parameter.grad = self._model.empty_gradient(index)
            self._call(self.reducer.result, index, parameter.grad)

    def _call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except WeftError as error:
            raise converted(error, NAME, self._seconds) from error


def _planner(settings: Settings, hook: Optional[Hook]) -> str:
    """Return the planner of the re-plan by the order in which gradients became ready in the first step."""
    if settings.absent:
        return "none"
    # A hook of the program's own may keep something by bucket; the default knows.
    return "limits" if settings.view and not isinstance(hook, CustomHook) else "default"


def _tensor(array: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor over the memory of an array. NumPy has no bf16, so an array has its bits."""
    tensor = torch.from_numpy(array)
    return tensor.view(dtype) if dtype == torch.bfloat16 else tensor


def _forget() -> None:
    """Drop the gradients of a forked child's models: the memory of the buckets is not mapped there."""
    for steps in list(_steps):
        steps.drop_gradients()


os.register_at_fork(after_in_child=_forget)
