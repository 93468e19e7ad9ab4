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
    c10d.monitored_barrier = dist.monitored_barrier = _monitored_barrier(dist.monitored_barrier)


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    from . import _group
    if _version() >= (2, 14):
        return _group.backend_class()(store, rank, size, timeout)
    return _group.ProcessGroupWeft(store, rank, size, timeout)


def _version() -> tuple[int, int]:
    import torch
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


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
