"""What a report asks for, as a program with the ways around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from hloom.targets import deviceless

TARGET = "h100_sxm"

Step = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Grid:
    """A mesh: the names of its axes with their lengths, and their type."""

    axes: Mapping[str, int]
    type: AxisType = AxisType.Auto

    def mesh(self) -> Mesh:
        """The mesh over GPUs that are not here."""
        lengths = tuple(self.axes.values())
        devices = np.asarray(deviceless.mesh(TARGET, int(np.prod(lengths))).devices)
        types = (self.type,) * len(lengths)
        return Mesh(devices.reshape(lengths), tuple(self.axes), axis_types=types)


@dataclasses.dataclass(frozen=True)
class Array:
    """An argument: its shape, and over which axes of the mesh each dimension is split."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    axes: tuple[str | tuple[str, ...] | None, ...] = ()


def array(*shape: int, dtype: str = "float32", axes: tuple[Any, ...] = ()) -> Array:
    return Array(shape, dtype, axes)


@dataclasses.dataclass(frozen=True)
class Job:
    """A program after a report.

    Attributes:
      report: the issue.
      title: the program, and what is asked for.
      step: the function as the report has it.
      arguments: trees of `Array`.
      specs: what is tried with hloom.
      by_hand: by name, the same step as one would rewrite it without hloom.
      grid: the mesh; a single device by default.
      donate: the arguments that are donated.
    """

    report: str
    title: str
    step: Step
    arguments: tuple[Any, ...]
    specs: tuple[str, ...]
    by_hand: Mapping[str, Step] = dataclasses.field(default_factory=dict)
    grid: Grid = Grid({"x": 1})
    donate: tuple[int, ...] = ()

    def lower(self, mesh: Mesh, step: Step) -> Any:
        """The step, or one by hand, lowered for the devices of a mesh."""

        def placed(leaf: Array) -> jax.ShapeDtypeStruct:
            sharding = NamedSharding(mesh, PartitionSpec(*leaf.axes))
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

        arguments = jax.tree.map(
            placed, self.arguments, is_leaf=lambda leaf: isinstance(leaf, Array)
        )
        with jax.sharding.set_mesh(mesh):
            return jax.jit(step, donate_argnums=self.donate).lower(*arguments)
