"""Shardings: which axes of a mesh split the dimensions of a value."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

from . import mesh, walk

CONSTRAINT = "sdy.sharding_constraint"
"""The name of the operation of a sharding constraint."""

_ARGUMENT = "sdy.sharding"
"""The sharding attribute of a function's argument or result."""

_OF_RESULTS = frozenset({_ARGUMENT, "mhlo.sharding"})
"""Attributes of an operation with a sharding for each of its results."""


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """An axis of a mesh, or a part of one, that splits a dimension over several devices.

    Attributes:
      name: the axis.
      part: the part of the axis, as Shardy writes it; empty for the whole axis.
      size: the number of devices that it splits over.
    """

    name: str
    part: str
    size: int


@dataclass(frozen=True, slots=True)
class ValueSharding:
    """The sharding of a value, apart from any module.

    Attributes:
      mesh: the mesh, or the reference to it, as text; empty where the value has no sharding.
      axes: by dimension the axes that split it, the major one first. Axes of one device are left
        out.
      closed: by dimension whether no other axis may split it.
      unreduced: whether each device has a term of the value, which is their sum.
    """

    mesh: str
    axes: tuple[tuple[MeshAxis, ...], ...]
    closed: tuple[bool, ...]
    unreduced: bool = False

    @classmethod
    def whole(cls, rank: int) -> ValueSharding:
        """Returns the sharding of a value that is whole on every device."""
        return cls("", ((),) * rank, (False,) * rank)

    @property
    def is_split(self) -> bool:
        return any(self.axes)

    @property
    def names(self) -> frozenset[str]:
        """Returns the axes of the mesh that split the value."""
        return frozenset(each.name for axes in self.axes for each in axes)

    @property
    def counts(self) -> dict[int, int]:
        """Returns the number of devices along each dimension that is split."""
        parts = (math.prod(each.size for each in axes) for axes in self.axes)
        return {number: count for number, count in enumerate(parts) if count > 1}

    def along(self, names: Collection[str]) -> ValueSharding:
        """Returns the sharding restricted to the named axes of the mesh."""
        axes = tuple(tuple(one for one in each if one.name in names) for each in self.axes)
        return replace(self, axes=axes)

    def is_at(self, wanted: ValueSharding) -> bool:
        """Whether the sharding satisfies ``wanted``; an open dimension may be split further."""
        for here, there, is_closed in zip(self.axes, wanted.axes, wanted.closed, strict=True):
            if (here if is_closed else here[: len(there)]) != there:
                return False
        return not self.is_split or (self.mesh == wanted.mesh and not self.unreduced)

    def local_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the sizes of the largest part of a value that a device has."""
        counts = self.counts
        return tuple(-(-size // counts.get(number, 1)) for number, size in enumerate(shape))


def placement_of(sharding: ir.Attribute, op: ir.Operation) -> ValueSharding:
    """Returns the placement that a sharding on an operation, or around it, gives.

    An axis that its mesh lacks counts as one device.
    """
    given = sdy.TensorShardingAttr(sharding)
    found = mesh.resolved(given.mesh_or_ref, op)
    [(context, known)] = _PLACEMENTS
    if context != sharding.context:
        known = {}
        # In one step, since threads compile side by side.
        _PLACEMENTS[0] = sharding.context, known
    key = sharding, found
    placement = known.get(key)
    if placement is None:
        placement = known[key] = _placement(given, found)
    return placement


_Placements = dict[tuple[ir.Attribute, ir.Attribute | None], ValueSharding]

_PLACEMENTS: list[tuple[ir.Context | None, _Placements]] = [(None, {})]
"""The last context, which this keeps alive, and the placements of its shardings by sharding and
mesh: a program has few of them, on many values."""


def _placement(given: sdy.TensorShardingAttr, found: sdy.MeshAttr | None) -> ValueSharding:
    sizes = {} if found is None else mesh.axis_sizes(found)

    def axis(reference: ir.Attribute) -> MeshAxis:
        named = sdy.AxisRefAttr(reference)
        part = "" if named.sub_axis_info is None else str(named)
        return MeshAxis(named.name, part, mesh.axis_parts(named, sizes))

    dimensions = [sdy.DimensionShardingAttr(each) for each in given.dimension_shardings]
    return ValueSharding(
        str(given.mesh_or_ref),
        tuple(
            tuple(found for found in map(axis, each.axes) if found.size > 1) for each in dimensions
        ),
        tuple(each.is_closed for each in dimensions),
        bool(len(given.unreduced_axes)),
    )


def has_shardings(op: ir.Operation) -> bool:
    """Whether an operation has an attribute with a sharding for each result, a loop's carries."""
    return not _OF_RESULTS.isdisjoint(walk.attribute_names(op))


def sharding_of(placement: ValueSharding, context: ir.Context) -> sdy.TensorShardingAttr:
    """Returns the sharding of a placement, closed to further axes."""

    def reference(axis: MeshAxis) -> ir.Attribute:
        if axis.part:
            return ir.Attribute.parse(axis.part, context)
        return sdy.AxisRefAttr.get(axis.name, context=context)

    return sdy.TensorShardingAttr.get(
        ir.Attribute.parse(placement.mesh, context),
        [
            sdy.DimensionShardingAttr.get(
                [reference(axis) for axis in axes], is_closed=True, context=context
            )
            for axes in placement.axes
        ],
        context=context,
    )


def constraint_placement(constraint: ir.Operation) -> ValueSharding:
    """Returns the placement that a sharding constraint asks for."""
    return placement_of(constraint.attributes["sharding"], constraint)


def without_axes(
    sharding: sdy.TensorShardingAttr, names: Sequence[str]
) -> sdy.TensorShardingAttr | None:
    """Returns a sharding without some axes of the mesh; None where it says nothing then."""
    dimensions = [sdy.DimensionShardingAttr(each) for each in sharding.dimension_shardings]
    kept = [
        [axis for axis in each.axes if sdy.AxisRefAttr(axis).name not in names]
        for each in dimensions
    ]
    if not any(kept):
        return None
    return sdy.TensorShardingAttr.get(
        sharding.mesh_or_ref,
        [
            sdy.DimensionShardingAttr.get(axes, is_closed=each.is_closed)
            for axes, each in zip(kept, dimensions, strict=True)
        ],
    )


def argument_placement(value: ir.Value) -> ValueSharding | None:
    """Returns the placement of a function's argument; None for other or unplaced values."""
    if not isinstance(value.owner, ir.Block):
        return None
    function = value.owner.owner.operation
    described = walk.readable_attributes(function).get("arg_attrs")
    if function.name != "func.func" or not isinstance(described, ir.ArrayAttr):
        return None
    found = _given(described[ir.BlockArgument(value).arg_number])
    return None if found is None else placement_of(found, function)


def argument_shardings(function: ir.Operation, of: str = "arg_attrs") -> list[ir.Attribute | None]:
    """Returns the sharding of each argument of a function, or, by ``res_attrs``, each result."""
    described = walk.readable_attributes(function).get(of)
    if not isinstance(described, ir.ArrayAttr):
        type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        return [None] * len(type_.inputs if of == "arg_attrs" else type_.results)
    return [*map(_given, described)]


def _given(attributes: ir.Attribute) -> ir.Attribute | None:
    found = ir.DictAttr(attributes)
    return found[_ARGUMENT] if _ARGUMENT in found else None  # noqa: SIM401 (it has no get)


def devices_of(sharding: ir.Attribute, op: ir.Operation) -> int:
    """Returns the number of devices of a sharding's mesh; 0 where the sharding is on one device of
    several, or the module lacks the mesh."""
    found = mesh.resolved(sdy.TensorShardingAttr(sharding).mesh_or_ref, op)
    if found is None or (len(found.device_ids) and not len(found.axes)):
        return 0
    return math.prod(mesh.axis_sizes(found).values())
