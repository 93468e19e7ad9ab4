"""Collectives on JAX arrays, inside and outside jit. Each takes a token and returns a new one, which orders the calls.

Common to all collectives:

token    `create_token()`, or the token that an earlier call has returned: a float32 scalar with the value 0. XLA may
         run calls that do not depend on each other in any order, and in other orders on other ranks. A call runs
         after the call whose token it takes.
comm     weftsync.Comm; None: `default_comm()`
op       "sum", "mean" ("avg"), "prod", "min", "max", "band", "bor" or "bxor", or an Op. Sums and means have gradients.
timeout  deadline in seconds; None: the communicator's
Errors   Outside jit WeftError. Inside jit XLA reports the failure: jax.errors.JaxRuntimeError has the text of the
         WeftError, which names the ranks at fault, and `comm.error()` returns it. TypeError, ValueError: an argument
         does not fit; nothing was sent.
"""
from __future__ import annotations

import dataclasses
import functools
from typing import Any, Optional, Union

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from .._handle import milliseconds
from .._memory import dtype_of
from ..comm import Comm
from ..constants import Op, choice
from . import _comms, _module
from ._effect import effect

_COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "barrier")
_LINEAR = (Op.SUM, Op.AVG)


@dataclasses.dataclass(frozen=True)
class _Call:
    """Describes a call without its arrays. It is a part of the compiled program."""

    collective: str  # one of _COLLECTIVES
    comm: int        # number of the communicator
    size: int        # and how many ranks it has
    op: Op = Op.SUM
    root: int = 0
    timeout: Optional[float] = None

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the result for a shape of the argument."""
        if self.collective == "all_gather":
            return (self.size, *shape)
        return shape[1:] if self.collective == "reduce_scatter" else shape


def create_token() -> jax.Array:
    """Return a token that orders nothing: the first call takes it."""
    token: jax.Array = jnp.zeros((), jnp.float32)
    return token


def all_reduce(x: Any, token: jax.Array, op: Union[Op, str] = Op.SUM, *, comm: Optional[Comm] = None,
               timeout: Optional[float] = None) -> tuple[jax.Array, jax.Array]:
    """Return the reduction of x over all ranks, with the same bits on all, and a token."""
    return _start("all_reduce", x, token, comm, op=op, timeout=timeout)


def all_gather(x: Any, token: jax.Array, *, comm: Optional[Comm] = None,
               timeout: Optional[float] = None) -> tuple[jax.Array, jax.Array]:
    """Return x of every rank in rank order, with shape (size, *x.shape), and a token."""
    return _start("all_gather", x, token, comm, timeout=timeout)


def reduce_scatter(x: Any, token: jax.Array, op: Union[Op, str] = Op.SUM, *, comm: Optional[Comm] = None,
                   timeout: Optional[float] = None) -> tuple[jax.Array, jax.Array]:
    """Return the reduction of x[rank] over all ranks, and a token. x has shape (size, ...)."""
    return _start("reduce_scatter", x, token, comm, op=op, timeout=timeout)


def broadcast(x: Any, token: jax.Array, root: int = 0, *, comm: Optional[Comm] = None,
              timeout: Optional[float] = None) -> tuple[jax.Array, jax.Array]:
    """Return x of the rank root, and a token. x of other ranks only gives the shape and the type."""
    return _start("broadcast", x, token, comm, root=root, timeout=timeout)


def all_to_all(x: Any, token: jax.Array, *, comm: Optional[Comm] = None,
               timeout: Optional[float] = None) -> tuple[jax.Array, jax.Array]:
    """Return an array of x's shape (size, ...) whose entry r is x[rank] of rank r, and a token."""
    return _start("all_to_all", x, token, comm, timeout=timeout)


def barrier(token: jax.Array, *, comm: Optional[Comm] = None, timeout: Optional[float] = None) -> jax.Array:
    """Wait until all ranks have called it. Returns a token."""
    return _start("barrier", jnp.zeros((), jnp.float32), token, comm, timeout=timeout)[1]


@jax.custom_vjp
def tie(value: jax.Array, token: jax.Array) -> jax.Array:
    """Return value. Its gradient's collectives run after the call whose token is given.

    A differentiated function passes its result and its last token through `tie`, if a collective in it does not
    contribute to the result.
    """
    return value


tie.defvjp(lambda value, token: (value, token), lambda token, change: (change, token))


def _start(collective: str, x: Any, token: jax.Array, comm: Optional[Comm], *, op: Union[Op, str] = Op.SUM,
           root: int = 0, timeout: Optional[float] = None) -> tuple[jax.Array, jax.Array]:
    """Check the arguments, and call the collective."""
    comm = _comms.default_comm() if comm is None else comm
    kind = choice(Op, op, "op")
    if kind in (Op.PREMUL_SUM, Op.USER):
        raise ValueError(f"op is {kind.name.lower()}, which weftsync.jax does not have")
    if not 0 <= root < comm.size:
        raise ValueError(f"root is {root}, expected 0 to {comm.size - 1}")
    milliseconds(timeout)
    x, token = jnp.asarray(x), jnp.asarray(token)
    dtype_of(x.dtype)
    if token.shape != () or token.dtype != jnp.float32:
        raise TypeError(f"token is an array {token.dtype}{list(token.shape)}, expected create_token() or the token of "
                        "an earlier call")
    if collective in ("reduce_scatter", "all_to_all") and (x.ndim == 0 or x.shape[0] != comm.size):
        raise ValueError(f"x has the shape {x.shape}, expected a first dimension of {comm.size}: one block per rank")
    call = _Call(collective, _comms.number_of(comm), comm.size, kind, root, timeout)
    made: tuple[jax.Array, jax.Array] = _call(x, token, call)
    return made


# ---- Gradients -------------------------------------------------------------------------------------------------------
# The gradient is that of the sum of all ranks' losses, as for jax.lax.psum in pmap. The token's gradient is a token:
# it goes through the calls in the reverse order, and so orders the collectives of the gradients.

@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _call(x: jax.Array, token: jax.Array, call: _Call) -> Any:
    return tuple(_primitive.bind(x, token, call=call))


def _forward(x: Any, token: Any, call: _Call) -> Any:
    if x.perturbed and call.op not in _LINEAR:
        raise NotImplementedError(f"weftsync.jax.{call.collective} has no gradient for op={call.op.name.lower()!r}, "
                                  "only for sum and mean; use jax.lax.stop_gradient on its argument")
    result, after = _call(x.value, token.value, call)
    # The structure says whether the argument has a gradient: None has no leaves.
    return (result, after), (after, () if x.perturbed else None)


def _backward(call: _Call, kept: Any, changes: Any) -> Any:
    after, differentiated = kept
    change, token = changes
    # The gradients' collectives run after all those of the function, and after those of later calls.
    token = after if _is_zero(token) else after + token
    if differentiated is None:
        return None, token
    if _is_zero(change):  # other ranks may use the result
        change = jnp.zeros(change.aval.shape, change.aval.dtype)
    return _call(*_scaled(change, token, call), _transposed(call))


def _is_zero(change: Any) -> bool:
    return isinstance(change, jax.custom_derivatives.SymbolicZero)


def _transposed(call: _Call) -> _Call:
    other = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather", "broadcast": "reduce",
             "reduce": "broadcast"}.get(call.collective, call.collective)
    return dataclasses.replace(call, collective=other, op=call.op if other == "all_reduce" else Op.SUM)


def _scaled(change: jax.Array, token: jax.Array, call: _Call) -> tuple[jax.Array, jax.Array]:
    scattered = call.collective == "reduce_scatter" and call.op == Op.AVG
    return (change / call.size).astype(change.dtype) if scattered else change, token


_call.defvjp(_forward, _backward, symbolic_zeros=True)


# ---- The primitive ---------------------------------------------------------------------------------------------------

_primitive = Primitive("weft_collective")
_primitive.multiple_results = True


def _shapes(x: Any, token: Any, *, call: _Call) -> Any:
    result = jax.core.ShapedArray(call.shape(x.shape), x.dtype)
    return (result, jax.core.ShapedArray((), jnp.float32)), {effect()}


def _outside_jit(x: jax.Array, token: jax.Array, *, call: _Call) -> Any:
    jax.block_until_ready((x, token))
    with _comms.exclusive(call.comm) as comm:
        if call.collective == "barrier":
            comm.barrier(timeout=call.timeout)
            return [x, token]
        more: dict[str, Any] = {"op": call.op} if call.collective in ("all_reduce", "reduce", "reduce_scatter") else {}
        if call.collective in ("reduce", "broadcast"):
            more["root"] = call.root
        made = getattr(comm.new, call.collective)(x, timeout=call.timeout, **more)
    return [jnp.zeros_like(x) if made is None else made, token]  # reduce returns None on other ranks than root


def _inside_jit(context: Any, x: Any, token: Any, *, call: _Call) -> Any:
    _comms.compile_for(call.comm)
    lower = jax.ffi.ffi_lowering(_module.TARGET, has_side_effect=True)
    numbers = {"comm": call.comm, "collective": _COLLECTIVES.index(call.collective), "op": int(call.op),
               "root": call.root, "timeout_ms": milliseconds(call.timeout)}
    return lower(context, x, token, **{name: np.int64(value) for name, value in numbers.items()})


def _batched(arguments: Any, dimensions: Any, *, call: _Call) -> Any:
    raise NotImplementedError(f"weftsync.jax.{call.collective} cannot be used inside jax.vmap: the number of calls "
                              "would depend on the batch. Call it on the whole array, outside vmap")


_primitive.def_effectful_abstract_eval(_shapes)
_primitive.def_impl(_outside_jit)
mlir.register_lowering(_primitive, _inside_jit, platform="cpu")
batching.primitive_batchers[_primitive] = _batched
