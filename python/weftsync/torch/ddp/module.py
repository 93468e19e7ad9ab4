"""DistributedDataParallel: torch's class, with a Weft reducer in the place of torch's own."""
from __future__ import annotations

import dataclasses
import inspect
import warnings
import weakref
from datetime import timedelta
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel as _Torch  # before a program puts this class in its place
from torch.nn.parallel.distributed import _find_tensors

from ...comm import Comm
from ...hook import Hook
from .. import _bootstrap, _version
from .autograd import ModuleReducer
from .hook_steps import HookSteps
from .log import Log
from .model import Model, Settings
from .torch_hooks import equal_hook
from .weft_steps import WeftSteps

_comms: weakref.WeakKeyDictionary[Any, Comm] = weakref.WeakKeyDictionary()  # of process groups of other backends
_REFUSED = ("delay_all_reduce_named_params", "param_to_hook_all_reduce")
_METHODS = ("_ddp_init_helper", "_build_params_for_reducer", "_build_debug_param_to_name_mapping",
            "_match_all_reduce_for_bwd_pass", "_match_unused_params_allreduce", "_pre_forward", "_post_forward",
            "_check_comm_hook")  # of torch's class, which this module relies on


class DistributedDataParallel(_Torch):
    """Averages the gradients of a module over ranks, in the place of torch's DistributedDataParallel.

    Arguments, methods, and the keys of state_dict are those of torch's class, from which this one is derived. These
    differ:

    gradient_as_bucket_view  True by default: gradients lie in the buckets. If an optimizer has set them to None, a
                             gradient is copied there when it is complete. A gradient that the program keeps is
                             overwritten by the next step, as torch says of this mode. The second step moves the
                             gradients to other buckets; one that the program kept before must not be used then
    mixed_precision          an object with reduce_dtype alone: the element type in which gradients are communicated.
                             Use torch.autocast to compute in another type
    register_comm_hook       also takes a name of docs/reference/hooks.md with a dictionary of options, or a weftsync.Hook
    batched_grad_copy, skip_all_reduce_unused_params  have no effect

    process_group may have any backend. Of a group that is not Weft's, the ranks connect through its store, once. All
    parameters are on the CPU.

    Creating the object is collective, and raises the errors of torch's class; RuntimeError also if ranks differ, if a
    rank does not come within the group's timeout, and for parameters on devices. Errors of a step are raised by
    backward, and by the next forward pass if gradients are missing.

    Threads: one at a time.
    """

    static_graph: bool

    def __init__(self, module: torch.nn.Module, *arguments: Any, **named: Any) -> None:
        signature = inspect.signature(_Torch)
        unknown = [name for name in named if name not in signature.parameters]
        if unknown:
            raise TypeError(f"weft DistributedDataParallel: unknown arguments {', '.join(unknown)}; there are "
                            f"{', '.join(signature.parameters)}")
        given = signature.bind(module, *arguments, **named).arguments
        given.setdefault("gradient_as_bucket_view", True)
        for name in _REFUSED:
            if given.get(name) is not None:
                raise ValueError(f"weft DistributedDataParallel: {name} is not supported: all gradients of a step are reduced "
                                 "together; use _set_params_and_buffers_to_ignore_for_model to leave parameters out")
        self._reduce_dtype = _reduce_dtype(given.pop("mixed_precision", None))
        self._static_at_creation = bool(given.get("static_graph", False))
        super().__init__(**given)

    # ---- around the forward pass of the module, which torch.compile sees alone

    @torch._dynamo.disable
    def _pre_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return super()._pre_forward(*inputs, **kwargs)

    @torch._dynamo.disable
    def _post_forward(self, output: Any) -> Any:
        if self.reducer.is_learning:  # a backward pass inside no_sync does not end the first step
            self._static_graph_delay_allreduce_enqueued = False
        output = super()._post_forward(output)
        self.reducer.watch(list(_find_tensors(output)))
        return output

    # ---- in the place of torch's Reducer

    def _build_params_for_reducer(self) -> tuple[list[torch.nn.Parameter], list[bool]]:
        """Create the reducer before torch compares the parameters, because its error names a difference on all ranks."""
        parameters, sparse = super()._build_params_for_reducer()
        devices = sorted({str(parameter.device) for parameter in parameters if parameter.device.type != "cpu"})
        if devices:
            raise RuntimeError(f"weft DistributedDataParallel: parameters are on {', '.join(devices)}, expected the CPU")
        names = self._build_debug_param_to_name_mapping(parameters)
        model = Model(parameters, [names[index].lstrip(".") for index in range(len(parameters))], sparse)
        settings = Settings(self._bucket_limits(), self.gradient_as_bucket_view, self.find_unused_parameters,
                            self.static_graph or self._static_at_creation, self._reduce_dtype)
        self.comm_hook: Optional[Hook] = None
        self.reducer = ModuleReducer(model, settings, self._weft_steps(model, None), dist.get_rank(self.process_group))
        return parameters, sparse

    def _ddp_init_helper(self, parameters: Any, expect_sparse_gradient: Any, param_to_name_mapping: dict[int, str],
                         static_graph: bool) -> None:
        self._passing_sync_batchnorm_handle(self.module)
        self.logger = self.reducer.log = Log(self.reducer)
        self.logger.set_construction_data_and_log(
            type(self.module).__name__, self.device_ids or [], -1, self.forward_sync_buffers,
            any(isinstance(layer, torch.nn.SyncBatchNorm) for layer in self.module.modules()), static_graph)

    def _bucket_limits(self) -> list[int]:
        _, limits = self._bucket_config.compute_bucket_size_limits(static_graph=False, find_unused_parameters=True)
        return list(limits)

    def _weft_steps(self, model: Model, hook: Optional[Hook]) -> Callable[[Settings], WeftSteps]:
        group = self.process_group
        return lambda settings: WeftSteps(_comm_of(group), model, settings, hook, _timeout(group).total_seconds())

    def _set_static_graph(self) -> None:
        """Declare that all steps use the same parameters. Before the first step."""
        if self.static_graph:
            super()._set_static_graph()
            return
        if self.reducer.has_begun:
            raise self.reducer.logged(RuntimeError(
                "set_static_graph() should be called before training loop starts and after DistributedDataParallel is "
                "constructed: the first step shows which parameters are used"))
        self.static_graph, self._static_graph_delay_allreduce_enqueued = True, False
        self.logger._set_static_graph()
        if not self.reducer.settings.static:
            self.reducer.change(dataclasses.replace(self.reducer.settings, static=True))

    def _update_process_group(self, new_process_group: Any) -> None:
        """Reduce gradients over another process group. Collective on its ranks, between steps."""
        if self._comm_hooks and self.comm_hook is None:
            raise RuntimeError("weft DistributedDataParallel: the process group of a communication hook of the program cannot be "
                               "changed: wrap the module again")
        if not c10d._rank_not_in_group(new_process_group):
            self.process_group = new_process_group
            self.reducer.change(self.reducer.settings, self._weft_steps(self.reducer.model, self.comm_hook))

    def _setup_in_backward_optimizers(self) -> None:
        if any(hasattr(parameter, "_in_backward_optimizers") for parameter in self._module_parameters):
            raise RuntimeError("weft DistributedDataParallel: optimizers that run in the backward pass "
                               "(_apply_optimizer_in_backward) are not supported, because torch runs them on devices only")

    # ---- communication hooks

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        """Choose how buckets are reduced. Collective; once, before the first step.

        hook  a name of docs/reference/hooks.md, whose options are the dictionary state ("powersgd", {"rank": 4}); a
              weftsync.Hook, for one step at a time; or a function of torch, or of the program, that takes state and a bucket and returns
              a future. Where a function of torch has an equal hook here, that one runs, and state is only read: attribute
              comm_hook saves and loads its state. Functions of the program run in Python as for torch's class
        """
        if self._comm_hooks:
            raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
        known = isinstance(hook, (str, Hook, dist.BuiltinCommHookType))
        if not known:
            self._check_comm_hook(hook)
        make, reducer = equal_hook(hook, state, self.process_group), self.reducer
        if make is not None:
            self.comm_hook = make(_comm_of(self.process_group).context)
            reducer.change(reducer.settings, self._weft_steps(reducer.model, self.comm_hook))
        else:
            if reducer.settings.reduce_dtype is not None:
                raise ValueError("weft DistributedDataParallel: mixed_precision's reduce_dtype has no effect on a hook of the "
                                 "program, which chooses what it sends; pass one of the two")
            model, plan, group = reducer.model, reducer.steps.buckets(), self.process_group
            reducer.change(reducer.settings, lambda settings: HookSteps(
                model, settings, plan, hook, state, lambda used: dist.all_reduce(used, group=group)))
        self.logger._set_comm_hook_name(hook if isinstance(hook, str) else getattr(hook, "__qualname__", str(hook)))
        self._comm_hooks.append((hook, state))

    def _register_builtin_comm_hook(self, comm_hook_type: Any) -> None:
        self.register_comm_hook(None, comm_hook_type)

    def _check_comm_hook(self, hook: Any) -> None:
        if getattr(hook, "__module__", "") != "torch.distributed.algorithms.ddp_comm_hooks.default_hooks":
            super()._check_comm_hook(hook)  # which refuses bf16 without CUDA

    # ---- copies: copy.deepcopy, pickle and torch.save

    def __getstate__(self) -> dict[str, Any]:
        if any(isinstance(hook, Hook) for hook, _ in self._comm_hooks):
            raise TypeError("weft DistributedDataParallel: an object with a weftsync.Hook cannot be copied or pickled: register "
                            "the hook by its name, or copy the attribute module and wrap the copy")
        return {name: value for name, value in super().__getstate__().items() if name != "comm_hook"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Join the default process group. Collective. The communication hook begins anew, without error feedback."""
        super().__setstate__({**state, "_comm_hooks": []})
        for hook, hook_state in state["_comm_hooks"]:
            self.register_comm_hook(hook_state, hook)

    # ---- uneven inputs

    def join_hook(self, **kwargs: Any) -> Any:
        """Return torch's hook for Join. Collective."""
        active = not kwargs.get("divide_by_initial_world_size", True)
        settings = dataclasses.replace(self.reducer.settings, uneven=True, divide_by="active" if active else "world")
        if settings != self.reducer.settings:
            self.reducer.change(settings)
        return super().join_hook(**kwargs)

    def _match_all_reduce_for_bwd_pass(self) -> None:
        self.reducer.join()

    def _match_unused_params_allreduce(self) -> None:
        """Do nothing: the step of `_match_all_reduce_for_bwd_pass` has done it."""


def _reduce_dtype(config: Any) -> Optional[str]:
    """Return the name of the element type of mixed_precision. Raises ValueError for what is not supported."""
    if config is None:
        return None
    names = {None: None, torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}
    for field in ("param_dtype", "buffer_dtype"):
        if getattr(config, field, None) is not None:
            raise ValueError(f"weft DistributedDataParallel: mixed_precision.{field} is not supported: use torch.autocast")
    if config.reduce_dtype not in names:
        raise ValueError(f"weft DistributedDataParallel: mixed_precision.reduce_dtype is {config.reduce_dtype}, expected one of "
                         "float16, bfloat16 and float32")
    return names[config.reduce_dtype]


def _timeout(group: Any) -> timedelta:
    """Return the timeout of a process group."""
    backend = group if hasattr(group, "_timeout") else group._get_backend(torch.device("cpu"))
    timeout: Optional[timedelta] = getattr(backend, "_timeout", None) or getattr(getattr(backend, "options", None), "_timeout", None)
    return timeout or timedelta(minutes=30)  # torch's default


def _comm_of(group: Any) -> Comm:
    """Return the communicator of a process group, which is created for groups of other backends. Collective."""
    comm = getattr(group, "comm", None)
    if isinstance(comm, Comm):
        return comm
    if group not in _comms or _comms[group].closed:
        rank, size, timeout = dist.get_rank(group), dist.get_world_size(group), _timeout(group)
        store = dist.PrefixStore("weft-ddp/", c10d._world.pg_map[group][1])
        _comms[group] = _bootstrap.create(_bootstrap.StoreExchange(store, rank, size, timeout), rank, size)
    return _comms[group]


def _check_torch() -> None:
    """Warn of a version of torch that was not tested. Raise ImportError if its class lacks a method that this module relies on."""
    text = f"weftsync.torch.DistributedDataParallel is written for {_version.NAME}, and "
    lacks = [name for name in _METHODS if not hasattr(_Torch, name)]
    if lacks:
        raise ImportError(f"{text}torch {torch.__version__} has no {', '.join(lacks)} in its own class: install {_version.NAME}")
    if not _version.is_tested():
        warnings.warn(f"{text}this is torch {torch.__version__}", RuntimeWarning, stacklevel=2)


_check_torch()
