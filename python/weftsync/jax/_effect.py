"""The effect of a collective: JAX keeps a call whose results nobody uses, because other ranks wait for it.

JAX has no public function that declares an effect, so this file uses jax._src.effects.
"""
from __future__ import annotations

from typing import Any

from jax._src import effects


class _CollectiveEffect(effects.Effect):  # type: ignore[misc]
    def __repr__(self) -> str:
        return "a collective of weftsync.jax"

    __str__ = __repr__


effect: Any = _CollectiveEffect()
# Not inside jax.checkpoint: the calls that it repeats would have no order with those of the gradients.
for allowed in (effects.lowerable_effects, effects.control_flow_allowed_effects,
                effects.custom_derivatives_allowed_effects):
    allowed.add_type(_CollectiveEffect)
