"""Reduction: a reduction by a function of the program."""
from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np

from . import _abi, _interrupt
from ._memory import memory_array
from .constants import DType

Combine = Callable[["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"], Any]


class Reduction:
    """The op of all_reduce, reduce and reduce_scatter where the program itself combines the ranks' arrays.

        furthest = weftsync.Reduction(lambda into, other: np.copyto(into, other, where=abs(other) > abs(into)))
        comm.all_reduce(x, op=furthest)

    combine(into, other) changes `into` to the combination of into and other, in this order. Both are flat NumPy arrays
    of the collective's element type (BF16: uint16) with equally many elements, a part of the whole; other is read-only.
    They must not be used after combine has returned. The arrays of the ranks are combined in rank order, from the left,
    so combine must be associative up to rounding and need not be commutative. All ranks pass the same function and unit.
    An exception fails the communicator; it is the __cause__ of the WeftError on this rank.

    unit  elements that belong together: combine gets whole units; the arrays of the collective have whole units too

    Threads: combine runs on any thread, one call at a time per operation. It must not call Weft or wait.
    """

    def __init__(self, combine: Combine, unit: int = 1) -> None:
        if not callable(combine):
            raise TypeError(f"combine is a {type(combine).__name__}, expected a function of two arrays")
        if unit < 1:
            raise ValueError(f"unit is {unit}, expected at least 1 element")
        self.exception: Optional[BaseException] = None  # the last one that combine has raised

        def call(_: int, other: int, into: int, count: int, dtype: int) -> int:
            try:
                given = memory_array(other, DType(dtype), (count,), None, self)
                given.flags.writeable = False
                combine(memory_array(into, DType(dtype), (count,), None, self), given)
                return 0
            except BaseException as error:  # must not propagate into C code
                self.exception = error
                return 1

        self.struct = _abi.Reduction(combine=_interrupt.c_function(_abi.reduce_fn, call, 1), unit=unit)


def add_cause(error: BaseException, lent: Any) -> None:
    """Set the __cause__ of an operation's error to the exception of its Reduction, if `lent` has one that raised."""
    for one in lent if isinstance(lent, list) else ():
        if isinstance(one, Reduction) and one.exception is not None:
            error.__cause__ = one.exception
