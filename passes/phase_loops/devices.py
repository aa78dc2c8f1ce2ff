"""Makes loops that each device runs on its own part of a dimension.

Where the dimension is sharded over all devices, and every device has all other values that a loop
reads, the loop needs nothing from other devices until it ends. So it runs as a manual computation,
and its sums are reduced over the devices once, after it. XLA's partitioner would place the
reduction in each iteration, unless the loop's own accumulation is reduced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy, stablehlo

from ..analysis.program import Node
from ..analysis.signatures.signature import AxisLayout, Combine
from ..ir import mesh
from ..ir.build import Box, converted, integer_like, typed
from ..ir.build_collectives import ManualPart, across, manual_computation
from ..ir.custom_calls import CUSTOM_CALL
from ..ir.op_facts import Category
from ..ir.ops import facts_of
from ..ir.shardings import CONSTRAINT, argument_placement, constraint_placement, has_shardings
from ..ir.values import element_of, shape_of
from .contents import Form, LoopCopies, PartApart
from .exits import COMBINES, Leaves, LoopExit
from .program import LoopProgram


@dataclass(frozen=True)
class DeviceParts:
    """The devices that each have a part of the dimension.

    Attributes:
      mesh: the mesh, or the reference to it.
      axes: the axes of the mesh that the dimension is sharded along, the major one first.
      sizes: of all axes of the mesh, by name.
    """

    mesh: ir.Attribute
    axes: tuple[str, ...]
    sizes: Mapping[str, int]

    @property
    def count(self) -> int:
        """Returns the number of devices."""
        return math.prod(self.sizes[name] for name in self.axes)

    def sharding(self, type_: ir.Type, axis: int | None) -> sdy.TensorShardingAttr:
        """Returns a sharding of one axis over the devices, or of none."""
        references = [sdy.AxisRefAttr.get(name) for name in self.axes]
        return sdy.TensorShardingAttr.get(
            self.mesh,
            [
                sdy.DimensionShardingAttr.get(references if each == axis else [], is_closed=True)
                for each in range(ir.RankedTensorType(type_).rank)
            ],
        )

    def part(self, type_: ir.Type, axis: int | None) -> ir.Type:
        """Returns the type of a device's part."""
        if axis is None:
            return type_
        shape = shape_of(type_)
        shape[axis] //= self.count
        return typed(type_, shape)

    def part_of(self, type_: ir.Type, axis: int | None) -> ManualPart:
        """Returns the part of values of a type that each device has."""
        return ManualPart(type_, self.sharding(type_, axis), self.part(type_, axis))


@dataclass(frozen=True)
class DeviceShare:
    """One device's part of the values that a loop reads.

    Attributes:
      devices: how many have a part of the dimension each; 1 where one loop is for all.
      parts: values, by number and the axis that is divided, of which it has a part.
      number: the device's number, a scalar, where it is needed.
    """

    devices: int = 1
    parts: Mapping[tuple[int, int], ir.Value] = field(default_factory=dict)
    number: ir.Value | None = None

    def own(self, layout: AxisLayout) -> AxisLayout:
        """Returns the layout of the dimension in the part of a value that one device has."""
        return replace(layout, outer=layout.outer // self.devices)

    def cut(self, value: ir.Value, layout: AxisLayout, zero: ir.Value) -> ir.Value:
        """Returns the device's part of a value that all of them have, as if it were sharded."""
        if self.number is None:
            return value
        length = shape_of(value)[layout.axis] // self.devices
        start = stablehlo.multiply(self.number, integer_like(self.number, length))
        return Box({layout.axis: (start, length)}, zero).slice(value)


EVERYTHING = DeviceShare()
"""The share of a loop that is for all devices."""


def parts_of(
    program: LoopProgram,
    loops: Sequence[tuple[LoopCopies, Sequence[LoopExit]]],
    apart: Sequence[PartApart],
    gathered: Collection[int] = (),
) -> DeviceParts | None:
    """Returns the devices that can run the loops each by itself; None where they cannot.

    Values that are ``gathered`` before the loops are on every device.
    """
    found = _of_seeds(program)
    if found is None or not all(_is_local(program, found, *loop) for loop in loops):
        return None
    copies = [copies for copies, _ in loops]
    return found if _is_everywhere(program, copies, apart, gathered) else None


def _of_seeds(program: LoopProgram) -> DeviceParts | None:
    found: set[tuple[str, tuple[str, ...]]] = set()
    for seed in program.flow.seeds:
        placement = argument_placement(seed.value)
        if placement is None or placement.counts.keys() != {seed.layout.axis}:
            return None
        along = placement.axes[seed.layout.axis]
        if any(axis.part for axis in along):
            return None
        found.add((placement.mesh, tuple(axis.name for axis in along)))
    if len(found) != 1:
        return None
    [(name, names)] = found
    block = program.program.root.block
    reference = ir.Attribute.parse(name, block.owner.operation.context)
    described = mesh.resolved(reference, block.owner.operation)
    if described is None or mesh.is_in_manual_computation(block):
        return None
    sizes = mesh.axis_sizes(described)
    count = math.prod(sizes[name] for name in names)
    if count < 2 or count != math.prod(sizes.values()):
        return None
    return DeviceParts(reference, names, sizes)


def _is_local(
    program: LoopProgram, parts: DeviceParts, copies: LoopCopies, exits: Sequence[LoopExit]
) -> bool:
    """Whether a loop's operations need no values of other devices."""
    layouts: list[object] = [
        layout for (_, layout), (_, form) in copies.slices.items() if form is Form.OUTSIDE
    ]
    layouts += [found.flow.layout for found in exits if found.leaves is Leaves.STACKED]
    if any(isinstance(layout, AxisLayout) and layout.outer != parts.count for layout in layouts):
        return False
    return all(
        _stays_local(program, copy.node) for group in copies.by_node.values() for copy in group
    )


def _stays_local(program: LoopProgram, node: Node) -> bool:
    if node.op.name == CONSTRAINT:
        sharded = constraint_placement(node.op).counts.keys()
        layout = program.of(node.results[0]).layout
        return sharded <= (set() if layout is None else {layout.axis})
    if facts_of(node.op.name).category in (Category.COLLECTIVE, Category.MANUAL):
        return False
    if node.name == CUSTOM_CALL or node.op.name.startswith("sdy."):
        return False
    return not has_shardings(node.op)


def _is_everywhere(
    program: LoopProgram,
    loops: Sequence[LoopCopies],
    apart: Sequence[PartApart],
    gathered: Collection[int],
) -> bool:
    """Whether all whole values that loops read are computed from values that every device has."""
    parts = {value: part for part in apart for value in part.values}
    cut = {value for copies in loops for value, _ in copies.slices}
    waiting = [
        value
        for copies in loops
        for value in copies.outside
        if value not in cut and value not in gathered
    ]
    seen = set(waiting)
    while waiting:
        value = waiting.pop()
        node = program.maker(value)
        if node is None:
            placement = argument_placement(program.program.values[value])
            if placement is not None and placement.is_split:
                return False
            continue
        if program.phase_of(node) and not program.of(value).given and value not in parts:
            continue  # made by an earlier loop, and reduced there
        if node.op.name == CONSTRAINT or has_shardings(node.op):
            return False
        reads = parts[value].reads if value in parts else node.reads()
        new = [read for read in reads if read not in seen]
        seen.update(new)
        waiting += new
    return True


def compute_by_parts(
    parts: DeviceParts,
    operands: Sequence[tuple[ir.Value, int | None]],
    results: Sequence[tuple[ir.Type, int | None]],
    body: Callable[[Sequence[ir.Value]], Sequence[ir.Value]],
) -> Sequence[ir.Value]:
    """Writes a manual computation.

    Args:
      operands: the values that it reads, each with the axis that is divided over the devices, or
        None.
      results: the types of its results, with the same.
      body: writes a device's computation on its parts, and returns its parts of the results.
    """
    made = manual_computation(
        [(value, parts.part_of(value.type, axis)) for value, axis in operands],
        [parts.part_of(type_, axis) for type_, axis in results],
        mesh.manual_axes_attribute(parts.sizes, parts.axes),
        body,
    )
    return [*made.results]


def reduced(
    parts: DeviceParts,
    value: ir.Value,
    combine: Combine,
    element: ir.Type,
    scattered: int | None = None,
) -> ir.Value:
    """Combines a value over the devices, in some element type, inside of a manual computation.

    Each device gets all of it, or its part along the axis that it is ``scattered`` along.
    """
    own = element_of(value)
    groups = (tuple(range(parts.count)),)
    combined = COMBINES[combine]
    made = across(converted(value, element), groups, 1, combined, scattered=scattered)
    return converted(made, own)
