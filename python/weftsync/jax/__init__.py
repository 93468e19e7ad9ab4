"""Weft for JAX: averages of gradients, and collectives inside and outside jit, on arrays of the platform cpu.

    import weftsync.jax as wj

    gradients = wj.average_gradients(jax.grad(loss)(params, batch))  # outside jit, over all ranks

    @jax.jit
    def step(params, batch, token):                                  # inside jit
        value, gradients = jax.value_and_grad(loss)(params, batch)
        flat, unravel = jax.flatten_util.ravel_pytree(gradients)
        flat, token = wj.all_reduce(flat, token, "mean")
        return update(params, unravel(flat)), token

    token = wj.create_token()
    params, token = step(params, batch, token)

Each rank is a process. docs/how-to/jax.md has the rules of tokens, the gradients of the collectives, and what is not
supported.

comm is a weftsync.Comm; None is `default_comm()`. Collectives inside jit need the module libweft-jax.so. The wheel
contains it, and a build of the sources with `-Djax=enabled` makes it. All else works without it.
"""
from __future__ import annotations

from ._calls import all_gather, all_reduce, all_to_all, barrier, broadcast, create_token, reduce_scatter, tie
from ._comms import default_comm
from ._tree import average_gradients

__all__ = ["all_gather", "all_reduce", "all_to_all", "average_gradients", "barrier", "broadcast",
           "create_token", "default_comm", "reduce_scatter", "tie"]
