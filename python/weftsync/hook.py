"""Hook: how one bucket of gradients is communicated."""
from __future__ import annotations

import ctypes
from typing import Optional, Union

from . import _abi
from ._handle import Handle
from ._library import lib, raise_error
from .comm import Comm
from .context import Context


class Hook(Handle):
    """A built-in communication hook: Hook(context, "fp16"). docs/hooks.md has the names and their options.

    inner is the hook that this one is around, for those that are; comm the communicator over which it works, by default
    the reducer's; saved what save() gave, with which it goes on: without a name it is the hook that was saved. It and
    reducers keep what they use. Threads: one at a time.
    """

    _destructor = "hook_destroy"

    def __init__(self, context: Context, name: Optional[str] = None, inner: Optional[Hook] = None,
                 comm: Optional[Comm] = None, saved: Optional[bytes] = None, **options: Union[str, int, float]) -> None:
        error = _abi.Error()
        params = _abi.HookParams(options=" ".join(f"{key}={value}" for key, value in options.items()).encode(),
                                 inner=None if inner is None else inner._handle, error=ctypes.pointer(error),
                                 comm=None if comm is None else comm._handle,
                                 saved=None if saved is None else ctypes.cast(ctypes.c_char_p(saved), ctypes.c_void_p),
                                 saved_size=0 if saved is None else len(saved))
        handle = ctypes.c_void_p()
        code = lib.hook_create(context._handle, None if name is None else name.encode(), ctypes.byref(params), handle)
        if code:
            raise_error(code, error)
        super().__init__(handle)
        self.name = name

    def save(self) -> bytes:
        """This rank's state (error feedback, factors, counters), for load in this or another process; between steps."""
        error = _abi.Error()
        size = ctypes.c_uint64()
        code = lib.hook_save(self._handle, None, size, error)
        blob = (ctypes.c_char * size.value)()
        if not code:
            code = lib.hook_save(self._handle, blob, size, error)
        if code:
            raise_error(code, error)
        return blob.raw[:size.value]

    def load(self, blob: bytes) -> None:
        """Go on with what a hook of the same name and options has saved; a damaged blob changes nothing."""
        error = _abi.Error()
        code = lib.hook_load(self._handle, blob, len(blob), error)
        if code:
            raise_error(code, error)
