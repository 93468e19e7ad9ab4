"""Hook: how one bucket of gradients is communicated."""
from __future__ import annotations

import ctypes

from ._handle import Handle
from ._library import check, lib
from .context import Context


class Hook(Handle):
    """A built-in communication hook, by name ("allreduce"). Reducers keep what they use. Threads: one at a time."""

    _destructor = "hook_destroy"

    def __init__(self, context: Context, name: str) -> None:
        handle = ctypes.c_void_p()
        check(lib.hook_create(context._handle, name.encode(), None, handle))
        super().__init__(handle)
        self.name = name
