"""Hook: how one bucket of gradients is communicated."""
from __future__ import annotations

import ctypes
from typing import Optional, Union

from . import _abi
from ._handle import Handle
from ._library import lib, raise_error
from .context import Context


class Hook(Handle):
    """A built-in communication hook: Hook(context, "fp16"). docs/hooks.md has the names and their options.

    inner is the hook that this one is around, for those that are; it and reducers keep what they use. Threads: one at
    a time.
    """

    _destructor = "hook_destroy"

    def __init__(self, context: Context, name: str, inner: Optional[Hook] = None,
                 **options: Union[str, int, float]) -> None:
        error = _abi.Error()
        params = _abi.HookParams(options=" ".join(f"{key}={value}" for key, value in options.items()).encode(),
                                 inner=None if inner is None else inner._handle, error=ctypes.pointer(error))
        handle = ctypes.c_void_p()
        code = lib.hook_create(context._handle, name.encode(), ctypes.byref(params), handle)
        if code:
            raise_error(code, error)
        super().__init__(handle)
        self.name = name
