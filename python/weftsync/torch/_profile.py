"""Profiler ranges of operations, as other backends have: "weft:all_reduce", with the shapes of the inputs."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, Optional

import torch
from torch.autograd import profiler


def begin(name: str, tensors: Sequence[torch.Tensor]) -> Optional[Callable[[], None]]:
    """Open a range if a profiler runs. Returns the function that closes it, on any thread."""
    if not profiler._is_profiler_enabled:
        return None
    handle = torch.autograd._record_function_with_args_enter(f"weft:{name}", *tensors)
    return lambda: torch.autograd._record_function_with_args_exit(handle)
