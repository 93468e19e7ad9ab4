"""Hook: a communication hook, which decides how a bucket of gradients is reduced. Base class of CustomHook."""
from __future__ import annotations

import ctypes
import weakref
from typing import Any, Optional, Union

from . import _abi
from ._handle import Handle
from ._library import lib, raise_error
from .comm import Comm
from .context import Context


class Hook(Handle):
    """A built-in communication hook, for example Hook(context, "powersgd", rank=4).

    name     name of the hook; docs/reference/hooks.md lists the names. None with saved: the hook that was saved
    inner    the hook that this one wraps, for hooks that wrap another
    comm     the communicator over which the hook communicates; None: the reducer's
    saved    the bytes of `save`: the new hook starts with that state
    options  the hook's options by name; docs/reference/hooks.md lists them

    CustomHook makes a hook of functions of the program. A reducer keeps its hook alive, and a hook keeps inner and comm
    alive. Raises WeftError ERR_ARG for an unknown name,
    option or value, and for damaged bytes. Threads: one at a time.
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
        self._init(handle, name, inner)

    def _init(self, handle: ctypes.c_void_p, name: Optional[str], inner: Optional[Hook]) -> None:
        super().__init__(handle)
        self.name = name
        self._inner = inner
        self._users: tuple[weakref.ref[Any], ...] = ()  # the reducers

    def _used_by(self, reducer: Any) -> None:
        """Remember a reducer that uses this hook."""
        self._users = (*(one for one in self._users if one() is not None), weakref.ref(reducer))
        if self._inner is not None:
            self._inner._used_by(reducer)

    def _take_exception(self) -> Optional[BaseException]:
        """Return the last exception of a custom hook's function on this rank, once."""
        return None if self._inner is None else self._inner._take_exception()

    def save(self) -> bytes:
        """Return this rank's state: error feedback, factors and counters. Call it between steps.

        `load` or saved takes the bytes, in this or another process.
        """
        error = _abi.Error()
        size = ctypes.c_uint64()
        code = lib.hook_save(self._handle, None, size, error)
        blob = (ctypes.c_char * size.value)()
        if not code:
            code = lib.hook_save(self._handle, blob, size, error)
        if code:
            raise_error(code, error, self._take_exception())
        return blob.raw[:size.value]

    def load(self, blob: bytes) -> None:
        """Replace the state by the bytes that a hook of the same name and options has saved.

        Raises WeftError ERR_ARG for bytes that are damaged or of another hook; the state stays as it is then.
        """
        error = _abi.Error()
        code = lib.hook_load(self._handle, blob, len(blob), error)
        if code:
            raise_error(code, error, self._take_exception())
