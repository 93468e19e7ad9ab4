"""The effect of a collective: JAX keeps a call whose results nobody uses, because other ranks wait for it.

JAX's public function for such calls, jax.ffi.ffi_call with has_side_effect, has an effect that JAX refuses inside
custom_vjp, which the gradients need. JAX has no public function that allows an effect there, so this file uses
jax._src.effects.
"""
from __future__ import annotations

import functools
from typing import Any

import jax

RUN_WITH = "0.10.2"  # the version of JAX that the tests have


@functools.cache
def effect() -> Any:
    """Return the effect. Raises ImportError if this version of JAX has no such part."""
    try:
        from jax._src import effects
        # Not inside jax.checkpoint: the calls that it repeats would have no order with those of the gradients.
        allowed = (effects.lowerable_effects, effects.control_flow_allowed_effects,
                   effects.custom_derivatives_allowed_effects)

        class CollectiveEffect(effects.Effect):  # type: ignore[misc]
            def __repr__(self) -> str:
                return "a collective of weftsync.jax"

            __str__ = __repr__

        for one in allowed:
            one.add_type(CollectiveEffect)
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"collectives inside jit use jax._src.effects, an internal part of JAX, which JAX {jax.__version__} does not "
            f"have in this form: {error}. They were run with JAX {RUN_WITH} (pip install jax=={RUN_WITH}). "
            "Outside jit the collectives and average_gradients work without it") from error
    return CollectiveEffect()
