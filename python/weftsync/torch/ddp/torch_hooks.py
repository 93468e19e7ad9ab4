"""Finds the hook of Weft that is equal to a communication hook of torch."""
from __future__ import annotations

import inspect
from typing import Any, Callable, Optional

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from ...context import Context
from ...hook import Hook

Make = Callable[[Context], Optional[Hook]]  # makes the hook; None stands for allreduce


def equal_hook(hook: Any, state: Any, group: Any) -> Optional[Make]:
    """Return a function that makes the equal of a hook with its state, or None if it has no equal here.

    hook   a function, a name of docs/reference/hooks.md, a weftsync.Hook or a torch.distributed.BuiltinCommHookType
    state  torch's state of a function; options of a name as a dictionary
    group  process group of DistributedDataParallel
    """
    if isinstance(hook, Hook):
        return lambda context: hook
    if isinstance(hook, str):
        if not (state is None or isinstance(state, dict)):
            raise TypeError(f"the state of the hook {hook!r} is {type(state).__name__}, expected a dictionary of its options "
                            "(docs/reference/hooks.md), or None")
        return lambda context: Hook(context, hook, **(state or {}))
    if isinstance(hook, dist.BuiltinCommHookType):
        name = {dist.BuiltinCommHookType.ALLREDUCE: None, dist.BuiltinCommHookType.FP16_COMPRESS: "fp16"}[hook]
        return lambda context: None if name is None else Hook(context, name, order="ddp")
    return _of_function(hook, state, group)


def _of_function(hook: Any, state: Any, group: Any) -> Optional[Make]:
    world = dist.GroupMember.WORLD if state is None else state
    if hook is default_hooks.allreduce_hook and world is group:
        return lambda context: None
    casts = {default_hooks.fp16_compress_hook: "fp16", default_hooks.bf16_compress_hook: "bf16"}
    if hook in casts and world is group:
        return lambda context: Hook(context, casts[hook], order="ddp")
    wrappers = {"fp16_compress_wrapper": "fp16", "bf16_compress_wrapper": "bf16"}
    wrapper = getattr(hook, "__qualname__", "").partition(".<locals>.")[0]
    if wrapper in wrappers and getattr(hook, "__module__", "") == default_hooks.__name__:
        return _wrapped(wrappers[wrapper], inspect.getclosurevars(hook).nonlocals["hook"], state, group)
    powersgd = {powerSGD_hook.powerSGD_hook: "powersgd", powerSGD_hook.batched_powerSGD_hook: "batched_powersgd"}
    if hook in powersgd and isinstance(state, powerSGD_hook.PowerSGDState) and state.process_group in (None, group):
        return _power_sgd(powersgd[hook], state)
    return None


def _wrapped(name: str, inner: Any, state: Any, group: Any) -> Optional[Make]:
    make = _of_function(inner, state, group)
    if make is None:
        return None

    def wrapped(context: Context) -> Hook:
        return Hook(context, name, inner=make(context), order="ddp")

    return wrapped


def _power_sgd(name: str, state: Any) -> Make:
    options = dict(rank=state.matrix_approximation_rank, start=state.start_powerSGD_iter,
                   feedback="ddp" if state.use_error_feedback else "off", warm_start=int(state.warm_start),
                   epsilon=state.orthogonalization_epsilon, seed=_seed(state),
                   statistics=state.compression_stats_logging_frequency)
    if name == "powersgd":
        options.update(min_rate=state.min_compression_rate, batch=int(state.batch_tensors_with_same_shape))
    return lambda context: Hook(context, name, **options)


def _seed(state: Any) -> int:
    """Return the seed of a PowerSGDState, which keeps it only in the state of its generator."""
    return int(state.rng.get_state()[1][0])
