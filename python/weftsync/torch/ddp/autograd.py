"""ModuleReducer: connects autograd, which completes gradients one by one, with the steps of a reducer."""
from __future__ import annotations

import functools
import math
import weakref
from typing import Any, Callable, Optional, Protocol

import torch
from torch.autograd import Variable

from .log import Log
from .model import Model, Settings

_UNFINISHED = ("Expected to have finished reduction in the prior iteration before starting a new one. Parameters that did not "
               "receive grad for rank {}: {}. {}")
_STATIC = "Your training graph has changed in this iteration: the first step of the static graph used these parameters"
_USED = "Outputs of the module that depend on them must take part in the loss"
_FIND = "Pass find_unused_parameters=True if they are unused, and let all outputs of the module take part in the loss"


class Steps(Protocol):
    """Reduces the gradients of a step: WeftSteps or HookSteps, which document the methods."""

    def begin(self, has_data: bool = True) -> None: ...
    def add(self, index: int) -> None: ...
    def leave_out(self, indices: list[int]) -> None: ...
    def finish(self) -> None: ...
    def join(self) -> None: ...
    def fail(self, text: str) -> None: ...
    def keep_gradients(self) -> None: ...
    def buckets(self) -> list[tuple[int, ...]]: ...


class ModuleReducer:
    """Takes the place of torch's Reducer in DistributedDataParallel, and has those of its methods that are called there.

    A step begins with the first gradient of a backward pass, after a forward pass has announced it. It ends when the
    last gradient is complete, at the end of the backward pass. That need not be the first backward pass: a loss may be
    a sum of several ones. A hook on the gradient accumulator of every parameter says when its gradient is complete.

    make_steps  creates the steps for some settings; collective
    rank        of this process, for errors

    Threads: one at a time: that of the forward pass, and autograd's.
    """

    def __init__(self, model: Model, settings: Settings, make_steps: Callable[[Settings], Any], rank: int) -> None:
        self.model, self.settings, self._make_steps, self._rank = model, settings, make_steps, rank
        self.steps: Steps = make_steps(settings)
        self.log: Optional[Log] = None  # for errors
        self.has_begun = False  # True once a forward pass was announced
        self._announced = False  # True from a forward pass until its gradients are reduced
        self._open = False  # True inside a step
        self._waiting: set[int] = set()  # parameters whose gradients the open step lacks
        self._unused: list[int] = []  # parameters that the outputs of the forward pass do not use
        self._last_unused: Optional[list[int]] = None  # of the forward pass before
        self._is_static = True  # all forward passes had the same unused parameters
        self._uses: Optional[list[int]] = None  # of a static graph: how often each gradient completes in a step
        self._counts = [0] * len(model)  # how often each gradient has completed in this step
        self._left: float = math.inf  # completions until the step is complete
        self._finished = 0  # steps
        self._in_pass = False  # True inside a backward pass from the module's outputs, whose end is announced
        self._works: list[Any] = []  # to wait for before the next step
        self._futures: list[Any] = []  # to wait for at the end of the next step
        # An accumulator exists as long as somebody refers to it, and its hooks as long as it exists.
        self._accumulators = [torch.autograd.graph.get_gradient_edge(parameter).node for parameter in model.parameters]
        self._indices = {accumulator: index for index, accumulator in enumerate(self._accumulators)}
        this = weakref.ref(self)
        self._handles = [accumulator.register_hook(functools.partial(_completed, this, index))
                         for index, accumulator in enumerate(self._accumulators)]
        weakref.finalize(self, _remove, self._handles)

    def __del__(self) -> None:
        if getattr(self, "_open", False):  # a reducer that is destroyed in a step would fail the communicator
            self._fail("the DistributedDataParallel of another rank was dropped in the middle of a step")

    # ---- what the forward pass calls

    def prepare_for_forward(self) -> None:
        """Do nothing; torch's Reducer counts iterations here."""

    def _set_static_graph(self) -> None:
        """Do nothing: torch's class calls this after unpickling, where the settings say it already."""

    def _rebuild_buckets(self) -> bool:
        """Check that the last step is complete. Weft's reducer re-plans by itself. Returns False."""
        self._check_reducer_finalized()
        return False

    def prepare_for_backward(self, outputs: list[torch.Tensor]) -> None:
        """Announce a backward pass whose gradients will be reduced.

        outputs  of the forward pass, if unused parameters are to be found; else none
        """
        self._check_reducer_finalized()
        self._announced = self.has_begun = True
        self._in_pass = False  # an exception may have ended the last pass
        if outputs:
            unused = self._find_unused(outputs)
            self._is_static &= self._last_unused in (None, unused)
            self._unused = self._last_unused = unused

    def _check_reducer_finalized(self) -> None:
        """Raise RuntimeError if a step is open; it has then failed on all ranks."""
        if not self._open:
            return
        missing = sorted(self._waiting) if self._uses is None else [
            index for index, (uses, count) in enumerate(zip(self._uses, self._counts)) if count < uses]
        hint = _STATIC if self.settings.static else _USED if self.settings.find_unused else _FIND
        text = _UNFINISHED.format(self._rank, self.model.described(missing), hint)
        self._fail(text)
        raise self.logged(RuntimeError(text))

    def logged(self, error: Exception) -> Exception:
        """Write an error to the log, and return it."""
        if self.log is not None:
            self.log.set_error_and_log(str(error))
        return error

    def _set_forward_pass_work_handle(self, work: Any, use_static_world_size: bool) -> None:
        """Wait for an operation of the forward pass before the next step. The divisor is a setting of the steps."""
        self._works.append(work)

    def _install_post_backward_futures(self, futures: list[Any]) -> None:
        """Wait for futures at the end of the next step."""
        self._futures += futures

    def watch(self, outputs: list[torch.Tensor]) -> None:
        """Let a backward pass from these outputs of the module end its step when it ends itself.

        Gradients may complete in backward passes inside that one (checkpoint with use_reentrant=True), and again in
        another one. The step of a pass that is not watched ends when its last gradient is complete.
        """
        if not self._announced:
            return
        this = weakref.ref(self)
        for node in {output.grad_fn for output in outputs if output.grad_fn is not None}:
            node.register_prehook(functools.partial(_passed, this))

    def _begin_pass(self) -> None:
        if not self._in_pass:
            self._in_pass = True
            Variable._execution_engine.queue_callback(self._end_pass)

    def _end_pass(self) -> None:
        self._in_pass = False
        if self._open and self._left == 0:
            self._finish()

    @property
    def is_learning(self) -> bool:
        """True until the first step of a static graph has shown how often each gradient completes."""
        return self.settings.static and self._uses is None

    # ---- what the backward pass calls

    def _autograd_hook(self, index: int) -> None:
        """Take note that the gradient of a parameter is complete."""
        if not self._announced:
            return  # inside no_sync, or a pass around the wrapped module alone
        try:
            if not self._open:
                self._begin()
            self._count(index)
        except BaseException as error:
            self._fail(f"{type(error).__name__}: {error}")
            if isinstance(error, Exception):
                self.logged(error)
            raise

    def _delay_all_reduce(self) -> None:
        """End the first step of a static graph: autograd calls this at the end of the backward pass."""
        if not self._announced:
            return
        if not self._open:
            self._begin()
        self._uses = list(self._counts)
        self._finish()

    def _begin(self) -> None:
        works, self._works = self._works, []
        for work in works:
            work.wait()
        self._open = True
        self._counts = [0] * len(self.model)
        self._waiting = set(range(len(self.model)))
        self._left = len(self.model) if not self.settings.static else sum(self._uses) if self._uses else math.inf
        self.steps.begin()
        unused, self._unused = self._unused, []
        # A gradient of earlier passes counts, although this one does not change it.
        absent = [index for index in unused if self.model.parameters[index].grad is None]
        for index in unused:
            self._take(index)
            if self.model.parameters[index].grad is not None:
                self.steps.add(index)
        if absent:
            self.steps.leave_out(absent)

    def _count(self, index: int) -> None:
        if index not in self._waiting and not self.settings.static:
            raise RuntimeError(
                f"Expected to mark a variable ready only once: the gradient of {self.model.described([index])} was complete before. "
                "It is used outside the forward pass of the module, or in several reentrant backward passes "
                "(checkpoint with use_reentrant=True); static_graph=True allows the latter")
        self._counts[index] += 1
        if self._uses is not None and self._counts[index] > self._uses[index]:
            raise RuntimeError("Your training graph has changed in this iteration: the gradient of "
                               f"{self.model.described([index])} was complete {self._uses[index]} times in the first step of the "
                               f"static graph, and {self._counts[index]} times now")
        self.steps.add(index)
        self._take(index)
        if self._left == 0 and not self._in_pass:
            Variable._execution_engine.queue_callback(self._finish)

    def _take(self, index: int) -> None:
        self._waiting.discard(index)
        self._left -= 1

    def _finish(self) -> None:
        self._announced = self._open = False
        self.steps.finish()
        self._finished += 1
        futures, self._futures = self._futures, []
        for future in futures:
            future.wait()

    def _fail(self, text: str) -> None:
        was_open, self._open, self._announced = self._open, False, False
        self._uses = None if self._finished == 0 else self._uses
        if was_open:
            self.steps.fail(text)

    def _find_unused(self, outputs: list[torch.Tensor]) -> list[int]:
        """Return the parameters that no output depends on."""
        used: set[int] = set()
        seen: set[Any] = set()
        rest = [node for node in (_node(output) for output in outputs) if node is not None]
        while rest:
            node = rest.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in self._indices:
                used.add(self._indices[node])
            else:
                rest += [following for following, _ in node.next_functions if following is not None]
        return [index for index in range(len(self.model)) if index not in used]

    # ---- uneven inputs, hooks, other groups

    def join(self) -> None:
        """Take part in a step of the other ranks, because this rank has no more data."""
        self.steps.join()

    def _push_all_rebuilt_params(self) -> None:
        """Do nothing: ranks that have joined take part in re-plans by themselves."""

    def change(self, settings: Settings, make_steps: Optional[Callable[[Settings], Any]] = None) -> None:
        """Reduce later steps with other settings. Collective, between steps."""
        self._check_reducer_finalized()
        self.steps.keep_gradients()
        self.settings, self._make_steps = settings, make_steps or self._make_steps
        self.steps = self._make_steps(settings)
        self._uses = None

    def _remove_autograd_hooks(self) -> None:
        """Stop to reduce gradients."""
        _remove(self._handles)

    def _set_ddp_runtime_logging_sample_rate(self, rate: int) -> None:
        """Do nothing: every step is measured."""

    def _ddp_graph_static(self) -> bool:
        """Return True if all forward passes so far had the same unused parameters."""
        return self._is_static

    def described(self) -> tuple[dict[str, str], dict[str, int]]:
        """Return texts and numbers for logs."""
        buckets = self.steps.buckets()
        sizes = [sum(self.model.parameters[index].nbytes for index in bucket) for bucket in buckets]
        return ({"bucket_sizes": ", ".join(map(str, sizes)),
                 "initial_bucket_size_limits": ", ".join(map(str, self.settings.limits))},
                {"iteration": self._finished, "num_parameter_tensors": len(self.model),
                 "total_parameter_size_bytes": sum(sizes), "rank": self._rank,
                 "find_unused_parameters": int(self.settings.find_unused),
                 "gradient_as_bucket_view": int(self.settings.view)})


def _completed(this: Any, index: int, *_: Any) -> None:
    reducer = this()
    if reducer is not None:
        reducer._autograd_hook(index)


def _passed(this: Any, gradients: Any) -> None:
    reducer = this()
    if reducer is not None:
        reducer._begin_pass()


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()


def _node(output: torch.Tensor) -> Any:
    """Return the node of the autograd graph that makes an output, or None."""
    if not output.requires_grad:
        return None
    return output.grad_fn if output.grad_fn is not None else torch.autograd.graph.get_gradient_edge(output).node
