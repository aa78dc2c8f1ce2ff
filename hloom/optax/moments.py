"""`with_moments`: an optimizer of optax whose moments are stored in bfloat16 or in 8 bits."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax

from hloom.optax.rounding import random_bits, rounded
from hloom.passes.framework.errors import did_you_mean

Tree = Any
"""A tree of arrays."""

_TYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")

_NO_MOMENTS = frozenset({"acc_grads", "slow", "z"})
"""Fields of optax's states that have a value for each parameter and are no moments of it: sums of
gradients (MultiSteps), and other parameters (lookahead, schedule_free)."""


class MomentsState(NamedTuple):
    """The state of an optimizer with stored moments.

    Attributes:
      step: the number of updates so far, which determines the random bits of the rounding.
      inner: the wrapped optimizer's own state, its moments stored.
      scales: the factor of each tensor of 8 bits, a power of two, in the order of
        `jax.tree.leaves(inner)`; empty for bfloat16.
    """

    step: jax.Array
    inner: Tree
    scales: tuple[jax.Array, ...]


class _Moment(NamedTuple):
    """Marks a leaf of an optimizer's state as a moment."""

    values: jax.Array


def with_moments(
    optimizer: optax.GradientTransformation, dtype: Any
) -> optax.GradientTransformationExtraArgs:
    """Returns the optimizer with its moments stored in `dtype` and its arithmetic in float32.

    Moments are all leaves of its state that have a value for each parameter (Adam's `mu` and `nu`,
    the trace of momentum, Adafactor's `v_row`), except sums of gradients and copies of parameters.
    Each update converts them, gradients and parameters to float32, runs the optimizer, and rounds
    the new moments stochastically. The memory of a donated state is used for the next.

    Args:
      optimizer: any optimizer that sets no type of its own for moments, such as `mu_dtype`.
      dtype: bfloat16, float8_e4m3fn or float8_e5m2. Types of 8 bits have a scale for each tensor,
        and a tensor without negative values keeps what is not zero from becoming zero: a second
        moment of 0 under a first one would make an update of any size.

    Returns: updates are float32, which `optax.apply_updates` adds before it rounds to the
    parameter's type; the state is a `MomentsState`.

    Raises ValueError for another type, and at `init` for an optimizer that has moments of another
    type than float32 itself.
    """
    name = jnp.dtype(dtype).name
    if name not in _TYPES:
        raise ValueError(
            f"hloom.optax.with_moments: wants dtype as {', '.join(_TYPES)}, got {name}."
            f"{did_you_mean(name, _TYPES)}"
        )
    inner = optax.with_extra_args_support(optimizer)

    def init(params: Tree) -> MomentsState:
        state = inner.init(_in_float32(params))
        step = jnp.zeros((), "int32")
        marked = optax.tree_utils.tree_map_params(inner, _Moment, state)
        return _stored(_chosen(marked), jnp.dtype(dtype), step)

    def update(
        updates: Tree, state: MomentsState, params: Tree | None = None, **extra: Any
    ) -> tuple[Tree, MomentsState]:
        given = None if params is None else _in_float32(params)
        found, after = inner.update(_in_float32(updates), to_float32(state), given, **extra)
        step = optax.safe_increment(state.step)
        return found, from_float32(after, like=state, step=step)

    return optax.GradientTransformationExtraArgs(init, update)


def to_float32(state: MomentsState) -> Tree:
    """Returns the wrapped optimizer's own state, as it would be without hloom, in float32.

    A checkpoint of a training without `with_moments` has such a state.
    """
    scales = iter(state.scales)

    def expanded(leaf: Any) -> Any:
        if leaf.dtype.name not in _TYPES:
            return leaf
        wide = leaf.astype("float32")
        return wide if leaf.dtype == jnp.bfloat16 else wide * next(scales)

    return jax.tree.map(expanded, state.inner)


def from_float32(state: Tree, *, like: MomentsState, step: Any) -> MomentsState:
    """Returns the state that stores a wrapped optimizer's own state, e.g. from a checkpoint in
    float32.

    Args:
      state: the state of the optimizer without `with_moments`.
      like: a state of the same optimizer, or its shapes: `jax.eval_shape(optimizer.init, params)`.
      step: the number of updates so far.

    Raises ValueError where the two are of different optimizers or parameters.
    """
    step = jnp.asarray(step, "int32")
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(like.inner) if leaf.dtype.name in _TYPES}
    if not dtypes:
        return MomentsState(step, state, ())
    [dtype] = dtypes

    def marked(stored: Any, leaf: Any) -> Any:
        return _Moment(leaf) if stored.dtype == dtype else leaf

    return _stored(jax.tree.map(marked, like.inner, state), dtype, step)


def _chosen(marked: Tree) -> Tree:
    """Returns the state without marks on leaves that are no moments."""

    def choose(path: Any, leaf: Any) -> Any:
        if not isinstance(leaf, _Moment):
            return leaf
        values = leaf.values
        if any(getattr(key, "name", None) in _NO_MOMENTS for key in path):
            return values
        if not jnp.issubdtype(values.dtype, jnp.floating):
            return values
        if values.dtype != jnp.float32:
            where = jax.tree_util.keystr(path)
            raise ValueError(
                f"hloom.optax.with_moments: the optimizer has {where} in {values.dtype.name} "
                "itself, rounded to nearest. Leave out what asks for that, such as mu_dtype."
            )
        return leaf

    return jax.tree_util.tree_map_with_path(choose, marked, is_leaf=_is_marked)


def _stored(marked: Tree, dtype: Any, step: jax.Array) -> MomentsState:
    """Returns the state with marked leaves rounded; random bits depend on the moment's number."""
    leaves, structure = jax.tree.flatten(marked, is_leaf=_is_marked)
    scales: list[jax.Array] = []
    moments = [number for number, leaf in enumerate(leaves) if _is_marked(leaf)]
    for tensor, number in enumerate(moments):
        values = jnp.asarray(leaves[number].values)
        bits = random_bits(values.shape, step=step, tensor=tensor)
        if dtype == jnp.bfloat16:
            leaves[number] = rounded(values, dtype, bits)
        else:
            leaves[number], scale = _scaled(values, dtype, bits)
            scales.append(scale)
    return MomentsState(step, jax.tree.unflatten(structure, leaves), tuple(scales))


def _scaled(values: jax.Array, dtype: Any, bits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns a tensor in 8 bits, and its scale."""
    finfo = ml_dtypes.finfo(dtype)
    finite = jnp.where(jnp.isfinite(values), values, 0)
    largest = jnp.max(jnp.abs(finite), initial=0)
    # The scale is a power of two, so that scaling does not round.
    _, exponent = jnp.frexp(largest / np.float32(finfo.max))
    scale = jnp.ldexp(jnp.float32(1), jnp.clip(exponent, -126, 127))
    found = rounded(values / scale, dtype, bits)
    is_lost = (found == 0) & (values > 0) & (jnp.min(finite, initial=0) >= 0)
    least = jnp.asarray(finfo.smallest_subnormal, dtype)
    return jnp.where(is_lost, least, found), scale


def _is_marked(leaf: Any) -> bool:
    return isinstance(leaf, _Moment)


def _in_float32(tree: Tree) -> Tree:
    """Converts narrower floating-point leaves to float32."""

    def widened(leaf: Any) -> Any:
        narrow = (
            jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
            and jnp.result_type(leaf).itemsize < 4
        )
        return jnp.asarray(leaf, "float32") if narrow else leaf

    return jax.tree.map(widened, tree)
