"""The mesh axis of a pipeline: its devices, shardings over it, and the pairs that send."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

from ..framework.errors import NotPossibleError, did_you_mean, echo
from ..ir import mesh
from ..ir.build import typed
from ..ir.build_collectives import Groups
from ..ir.values import shape_of

AxesByDimension = Mapping[int, Sequence[str]]
"""By dimension of a value, the axes of the mesh that it is split along, the major one first."""


@dataclass(frozen=True)
class StageAxis:
    """The mesh axis that a pipeline is along.

    Attributes:
      name: the axis.
      mesh: the reference to its mesh.
      sizes: the sizes of all axes of the mesh, by name.
    """

    name: str
    mesh: ir.Attribute
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, module: ir.Module, name: str) -> StageAxis | None:
        """Returns the axis of that name; None where the module runs on one device.

        Raises NotPossibleError where its meshes have no such axis.
        """
        known: dict[str, int] = {}
        taken: StageAxis | None = None
        for symbol, op in mesh.mesh_ops(module.operation).items():
            found = mesh.mesh_of(op)
            sizes = mesh.axis_sizes(found)
            known |= sizes
            if name not in sizes:
                continue
            if len(found.device_ids):
                raise NotPossibleError("the mesh has its devices in an order of its own")
            if taken is None:
                taken = cls(name, ir.FlatSymbolRefAttr.get(symbol, module.context), sizes)
            elif list(taken.sizes.items()) != list(sizes.items()):
                raise NotPossibleError(f"there are several meshes with an axis {echo(name)}")
        if taken is not None:
            return taken
        if math.prod(known.values()) < 2:
            return None
        listed = ", ".join(f"{axis} of {size}" for axis, size in known.items())
        raise NotPossibleError(
            f"{echo(name)} is no axis of the mesh.{did_you_mean(name, known)} There are {listed}"
        )

    @property
    def count(self) -> int:
        return self.sizes[self.name]

    @property
    def devices(self) -> int:
        """Returns the number of all devices of the mesh."""
        return math.prod(self.sizes.values())

    def groups(self, names: Sequence[str]) -> Groups:
        """Returns the groups of devices that differ along some axes only."""
        return mesh.groups_along(self.sizes, names)

    def hops(self, slope: int, *, as_ring: bool) -> list[tuple[int, int]]:
        """Returns the pairs that send: each device to its successor, in a ring also the last one to
        the first one. With a slope of -1 the other way."""
        pairs: list[tuple[int, int]] = []
        for group in self.groups([self.name]):
            order = group[::slope]
            pairs += itertools.pairwise(order)
            if as_ring:
                pairs.append((order[-1], order[0]))
        return pairs

    def sharding(
        self, type_: ir.Type, split: AxesByDimension, manual: Sequence[str]
    ) -> sdy.TensorShardingAttr:
        """Returns a sharding along manual axes; other axes of the mesh may split it further."""
        is_closed = math.prod(self.sizes[name] for name in manual) == self.devices
        return sdy.TensorShardingAttr.get(
            self.mesh,
            [
                sdy.DimensionShardingAttr.get(
                    [sdy.AxisRefAttr.get(name) for name in split.get(dimension, ())],
                    is_closed=is_closed,
                )
                for dimension in range(len(shape_of(type_)))
            ],
        )

    def part(self, type_: ir.Type, split: AxesByDimension) -> ir.Type:
        """Returns the type of a device's part."""
        shape = shape_of(type_)
        for dimension, names in split.items():
            shape[dimension] //= math.prod(self.sizes[name] for name in names)
        return typed(type_, shape)
