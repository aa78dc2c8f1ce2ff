"""Rounds float32 stochastically, with bits that depend on a step and a position alone.

A value between two neighbours is rounded up with the probability of its distance from the lower
one, so that its expectation is the value itself. Nearest rounding would leave an average as it is
wherever a step changes it by less than half of the distance between neighbours.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

_GOLDEN = 0x9E3779B9
_LOW_BITS = 16
"""The bits that float32 has beyond bfloat16."""


def random_bits(shape: tuple[int, ...], *, step: jax.Array, tensor: int) -> jax.Array:
    """Returns 32 random bits for each element, as uint32.

    They are a function of the step, of the tensor's number and of the element's position in the
    whole array: the same in each process and however the array is sharded over devices. Within
    `shard_map` positions are those in the shard. Elements that are a multiple of 2**32 apart have
    the same bits.

    The function is integer arithmetic alone, which XLA fuses into the kernel that updates the
    moment: JAX's own generators take some 60 operations an element, or a kernel of their own.
    """
    key = _mixed(jnp.asarray(step).astype("uint32") + np.uint32(tensor * _GOLDEN % 2**32))
    second_key = _mixed(key + np.uint32(_GOLDEN))
    position = jnp.zeros(shape, "uint32")
    stride = 1
    for axis in reversed(range(len(shape))):
        index = lax.broadcasted_iota(jnp.uint32, shape, axis)
        position += index * np.uint32(stride % 2**32)
        stride *= shape[axis]
    return _mixed(_mixed(position ^ key) + second_key)


def _mixed(word: jax.Array) -> jax.Array:
    """The finalizer of MurmurHash3 (A. Appleby), in which each bit depends on all."""
    word ^= word >> np.uint32(16)
    word *= np.uint32(0x85EBCA6B)
    word ^= word >> np.uint32(13)
    word *= np.uint32(0xC2B2AE35)
    return word ^ (word >> np.uint32(16))


def rounded(x: jax.Array, dtype: Any, bits: jax.Array) -> jax.Array:
    """Rounds a float32 array stochastically to bfloat16 or a type of 8 bits.

    Values that the type represents exactly do not change; NaN and infinities become the type's own.
    A finite value is never rounded to an infinity: beyond the largest finite value it becomes that
    value.
    """
    if jnp.dtype(dtype) == jnp.bfloat16:
        word = lax.bitcast_convert_type(x, jnp.uint32) + (bits >> np.uint32(_LOW_BITS))
        near = lax.bitcast_convert_type(word & np.uint32(0xFFFF0000), jnp.float32)
    else:
        near = _rounded_by_distance(x, dtype, bits)
    largest = np.float32(ml_dtypes.finfo(dtype).max)
    near = jnp.clip(near, -largest, largest)
    return jnp.where(jnp.isfinite(x), near, x).astype(dtype)


def _rounded_by_distance(x: jax.Array, dtype: Any, bits: jax.Array) -> jax.Array:
    """Rounds to a multiple of the distance between the neighbours in `dtype`, a power of two."""
    finfo = ml_dtypes.finfo(dtype)
    # The power of two at or under the value, by the bits of its exponent.
    power = lax.bitcast_convert_type(
        lax.bitcast_convert_type(x, jnp.uint32) & np.uint32(0x7F800000), jnp.float32
    )
    distance = jnp.maximum(
        power * np.float32(2.0**-finfo.nmant), np.float32(finfo.smallest_subnormal)
    )
    # 16 random bits fit beside those of the quotient, and exact values stay exact.
    share = (bits >> np.uint32(_LOW_BITS)).astype("float32") * np.float32(2.0**-16)
    return jnp.sign(x) * jnp.floor(jnp.abs(x) / distance + share) * distance
