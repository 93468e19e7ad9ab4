"""Registers the backend "weft" with torch.distributed.

torch calls `register` through the entry points of the installed package: "torch.backends" while torch is imported
(torch 2.13), "torch.distributed.backends" when the backend is asked for (torch 2.14 and later).
"""
from __future__ import annotations

from datetime import timedelta
from typing import Any, Optional

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

NAME = "weft"


def register() -> None:
    """Register the backend; later calls do nothing."""
    if NAME.upper() in dist.Backend._plugins:
        return
    dist.Backend.register_backend(NAME, _create, devices=["cpu"])
    if not _has_python_backends():
        c10d.monitored_barrier = dist.monitored_barrier = _monitored_barrier(dist.monitored_barrier)
        c10d.BackendConfig.__init__ = _single(c10d.BackendConfig.__init__)


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    from . import _group
    if _has_python_backends():
        return _group.backend_class()(store, rank, size, timeout)
    return _group.ProcessGroupWeft(store, rank, size, timeout)


def _has_python_backends() -> bool:
    """True for torch 2.14 and later: a backend in Python may be a Backend, not only a whole process group."""
    import torch
    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (2, 14)


def _single(original: Any) -> Any:
    """Let a BackendConfig refuse this backend beside others, of which torch 2.13 would silently use only the first."""
    def init(config: Any, backend: Any) -> None:
        original(config, backend)
        backends = set(map(str, config.device_backend_map.values()))
        if NAME in backends and len(backends) > 1:
            raise ValueError(f"weft: the backend {backend} needs torch 2.14 or later, which can combine backends of "
                             'devices; with torch 2.13 use "weft" or "cpu:weft"')

    return init


def _monitored_barrier(original: Any) -> Any:
    """Let dist.monitored_barrier accept groups of this backend. torch's own function refuses all but Gloo's by name."""
    def monitored_barrier(group: Any = None, timeout: Optional[timedelta] = None, wait_all_ranks: bool = False) -> None:
        if group == dist.GroupMember.NON_GROUP_MEMBER or dist.get_backend(group) != NAME:
            original(group, timeout, wait_all_ranks)
            return
        if isinstance(timeout, (int, float)):
            timedelta_timeout: Optional[timedelta] = timedelta(seconds=timeout)
        else:
            timedelta_timeout = timeout
        (c10d._get_default_group() if group is None else group).monitored_barrier(timedelta_timeout, wait_all_ranks)

    monitored_barrier.__doc__ = original.__doc__
    return monitored_barrier
