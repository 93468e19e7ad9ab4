"""Registers the backend "weft" with torch.distributed.

torch calls `register` through the entry points of the installed package: "torch.backends" while torch is imported
(torch 2.13), "torch.distributed.backends" when the backend is asked for (torch 2.14 and later).
"""
from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any, Optional

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from . import _version
from ._errors import refused

NAME = "weft"


def register() -> None:
    """Register the backend; later calls do nothing. Warns of a version of torch that is too old."""
    if NAME.upper() in dist.Backend._plugins:
        return
    if _version.is_older():
        warnings.warn(_too_old(), RuntimeWarning, stacklevel=2)
    dist.Backend.register_backend(NAME, _create, devices=["cpu"])
    if _version.is_tested():
        c10d.monitored_barrier = dist.monitored_barrier = _monitored_barrier(dist.monitored_barrier)
        c10d.BackendConfig.__init__ = _single(c10d.BackendConfig.__init__)


def _too_old() -> str:
    return f"weftsync.torch supports {_version.NAME}, and this is torch {torch.__version__}: install {_version.NAME}"


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    if _version.is_older():
        raise refused("group setup", _too_old(), RuntimeError)
    from . import _group
    if _version.has_python_backends():
        warnings.warn(f"weftsync.torch was tested with {_version.NAME} only, and this is torch {torch.__version__}", RuntimeWarning,
                      stacklevel=2)
        return _group.backend_class()(store, rank, size, timeout)
    return _group.ProcessGroupWeft(store, rank, size, timeout)


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
