"""Divides a batch into microbatches, and these over the devices of a stage."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hloom._jax.module_call import abstract
from hloom_steps.mpmd.places import StagePlace, put


def is_key(leaf: Any) -> bool:
    """Whether an array, or a shape, has random keys."""
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


@dataclass(frozen=True)
class Layout:
    """The division of a batch into parts.

    Attributes:
      shapes: the shapes of its leaves, by number.
      paths: the names of its leaves.
      rows: the length of the leading axis that they share; None where all are scalars.
      parts: the number of parts: microbatches times devices of a stage.
    """

    shapes: Mapping[int, jax.ShapeDtypeStruct]
    paths: Mapping[int, str]
    rows: int | None
    parts: int

    @classmethod
    def of(
        cls, leaves: Mapping[int, Any], paths: Mapping[int, str], microbatches: int, devices: int
    ) -> Layout:
        """Plans the division; raises ValueError where the leaves have no common leading axis that
        the number of parts divides."""
        shapes = {number: abstract(leaf) for number, leaf in leaves.items()}
        lengths = {paths[number]: shape.shape[0] for number, shape in shapes.items() if shape.shape}
        parts = microbatches * devices
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise ValueError(
                f"hloom.stages: the batch has arrays of several lengths: {shown}; wanted one "
                "leading axis of examples. A random key is one of jax.random.key; bind what else "
                "is no example by functools.partial."
            )
        rows = next(iter(lengths.values()), None)
        if rows is not None and (not rows or rows % parts):
            each = f" on {devices} devices each" if devices > 1 else ""
            raise ValueError(
                f"hloom.stages: microbatches={microbatches}{each}: the batch has {rows} examples; "
                f"wanted a multiple of {parts}, so that all parts are equal."
            )
        given = {
            number: jax.ShapeDtypeStruct(shape.shape, shape.dtype)
            for number, shape in shapes.items()
        }
        return cls(given, dict(paths), rows, parts)

    def in_rows(self, number: int) -> bool:
        """Whether a leaf has a row for each example, and is no array of random keys."""
        shape = self.shapes[number]
        return bool(shape.shape) and not is_key(shape)

    def part(self, number: int) -> jax.ShapeDtypeStruct:
        """Returns the shape of a leaf in one part."""
        shape = self.shapes[number]
        if not shape.shape:
            return shape
        assert self.rows is not None
        return jax.ShapeDtypeStruct((self.rows // self.parts, *shape.shape[1:]), shape.dtype)


class Microbatches:
    """The microbatches of one batch."""

    def __init__(self, layout: Layout, leaves: Mapping[int, Any], microbatches: int) -> None:
        self._parts: dict[int, Sequence[Any]] = {}
        devices = layout.parts // microbatches
        for number, leaf in leaves.items():
            shape = layout.shapes[number]
            if is_key(shape):
                self._parts[number] = _keys(leaf, microbatches, devices)
            elif not shape.shape:
                each = np.broadcast_to(np.asarray(leaf, shape.dtype), (devices,))
                self._parts[number] = [each] * microbatches
            elif isinstance(leaf, jax.Array):
                self._parts[number] = _cut(leaf, microbatches)
            else:
                self._parts[number] = np.split(np.asarray(leaf), microbatches)

    def on(self, place: StagePlace, microbatch: int, numbers: Sequence[int]) -> list[jax.Array]:
        """Returns leaves of a microbatch, divided over the devices of a stage."""
        given = [self._parts[number][microbatch] for number in numbers]
        return put(given, [place.divided] * len(given))


@functools.partial(jax.jit, static_argnums=1)
def _cut(leaf: jax.Array, count: int) -> list[jax.Array]:
    return jnp.split(leaf, count)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _keys(keys: jax.Array, microbatches: int, devices: int) -> list[jax.Array]:
    """Returns the data of keys; a key of the whole batch becomes a different key for each part."""
    if keys.ndim == 0 and microbatches * devices > 1:
        numbers = jnp.arange(microbatches * devices)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(keys, numbers)
        return jnp.split(jax.random.key_data(keys), microbatches)
    data = jax.random.key_data(keys)
    parts = data.reshape(microbatches, devices, -1, *data.shape[1:])
    return list(parts if keys.ndim else parts[..., 0, :])
