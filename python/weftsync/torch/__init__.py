"""The backend "weft" of torch.distributed, and a DistributedDataParallel over Weft's reducer.

    import torch.distributed as dist
    import weftsync.torch                  # not needed if the package was installed with its entry points

    dist.init_process_group("weft")        # or "cpu:weft"
    dist.all_reduce(tensor)

Importing this package registers the backend. The ranks find each other over the process group's own store, so the
backend needs neither a port nor a secret. docs/how-to/pytorch.md lists what is supported and what differs from Gloo.

    from weftsync.torch import DistributedDataParallel

    model = DistributedDataParallel(model)  # as torch.nn.parallel.DistributedDataParallel
"""
from __future__ import annotations

from typing import Any

__all__ = ["DistributedDataParallel", "register"]


def register() -> None:
    """Register the backend; later calls do nothing."""
    import torch  # noqa: F401  # calls this function through the entry point, if torch was not imported before

    from . import _register
    _register.register()


def __getattr__(name: str) -> Any:
    """Import DistributedDataParallel when it is needed: this module is imported while torch itself is."""
    if name == "DistributedDataParallel":
        from .ddp import DistributedDataParallel
        return DistributedDataParallel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register()
