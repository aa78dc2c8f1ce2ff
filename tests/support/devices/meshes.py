"""Meshes for programs that are the same over automatic axes and over explicit ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

each_kind_of_axes = pytest.mark.parametrize(
    "axes", [AxisType.Auto, AxisType.Explicit], ids=["automatic", "explicit"]
)
"""A test that runs with each kind of axes: of explicit ones JAX constrains every result."""


def mesh_of(axes: AxisType, **sizes: int) -> Mesh:
    """A mesh of the first devices, all its axes of one kind; the sizes of the axes by name."""
    devices = jax.devices()[: math.prod(sizes.values())]
    kinds = (axes,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds, devices=devices)


def shaped(mesh: Mesh, axes: Sequence[str | None], *shape: int) -> jax.ShapeDtypeStruct:
    """An array of float32 whose dimensions lie along these axes."""
    sharding = NamedSharding(mesh, PartitionSpec(*axes))
    return jax.ShapeDtypeStruct(shape, "float32", sharding=sharding)
