"""Optimizers of optax whose moments are stored in fewer bits.

    optimizer = hloom.optax.with_moments(optax.adamw(1e-3), jnp.bfloat16)

The types of a state are those of the jit that takes and gives it, so that this is a wrapper of an
optimizer and not a pass over the program. It needs the extra `optax`.
"""

from hloom.optax.moments import MomentsState, from_float32, to_float32, with_moments

__all__ = ["MomentsState", "from_float32", "to_float32", "with_moments"]
