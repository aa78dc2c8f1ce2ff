"""The plan of `capture` for a module: regions, control dependencies, and operations left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..framework.base import PlanBase
from ..framework.tables import Described, Fact, Left, Table, left_table
from ..framework.text import pluralize
from ..ir import mesh, walk
from ..ir.collectives import is_collective
from ..ir.custom_calls import CUSTOM_CALL
from ..ir.types import tensor_bytes
from .capturable import HOST_COPY, Rules
from .schedule import BlockRegions, BlockSchedule, GraphBreak, regions_of

_MOST_BYTES = 2**20
"""The largest total size of operands that get a dependency: they are copied, and stay live."""


@dataclass(frozen=True)
class ControlDependency:
    """Graph breaks that wait for values.

    Attributes:
      slot: their slot in the block's schedule.
      calls: the graph breaks, each with the numbers of the operands that carry the dependency.
      anchors: the values to wait for.
    """

    slot: int
    calls: tuple[tuple[ir.Operation, tuple[int, ...]], ...]
    anchors: tuple[ir.Value, ...]


def waiting_operands(op: ir.Operation, but: Set[ir.Value]) -> tuple[int, ...]:
    """Returns the numbers of the operands that can carry a dependency, without values in ``but``.

    Empty if there are none, or if they are too large.
    """
    numbers = tuple(
        number
        for number, operand in enumerate(op.operands)
        if operand not in but and can_be_selected(operand.type)
    )
    total_bytes = sum(tensor_bytes(op.operands[number].type) or 0 for number in numbers)
    return numbers if total_bytes <= _MOST_BYTES else ()


def can_be_selected(type_: ir.Type) -> bool:
    """Whether values of a type are tensors with at least one element of a known size."""
    size_bytes = tensor_bytes(type_)
    return bool(size_bytes) and isinstance(type_, ir.RankedTensorType)


_MOST_ANCHORS = 32
"""The most values that a graph break waits for: one kernel reads an element of each. The latest
results of a step depend on nearly all of its work. With 450 values (Adam, 150 tensors) XLA took
three times as long to compile, and made 5 more kernels."""

_MOST_LISTED = 100
"""The number of operations that are not captured that a plan lists."""


@dataclass(frozen=True)
class BlockCapture:
    """The order of a block, its regions to outline, and the control dependencies to add."""

    regions: BlockRegions
    control_dependencies: tuple[ControlDependency, ...]


@dataclass(frozen=True)
class CapturePlan(PlanBase):
    """The blocks with regions, in program order.

    Attributes:
      blocks: their plans.
      graph_breaks: the operations that are in no graph.
      rules, min_ops: the settings by which the regions were found.
    """

    blocks: tuple[BlockCapture, ...]
    graph_breaks: tuple[GraphBreak, ...]
    rules: Rules
    min_ops: int

    @property
    def empty(self) -> bool:
        return not self.blocks

    @property
    def regions(self) -> int:
        """Returns the number of regions: each will become a graph."""
        return sum(len(block.regions.regions) for block in self.blocks)

    @property
    def moved(self) -> int:
        """Returns the number of graph breaks with a control dependency."""
        return sum(
            len(dependency.calls)
            for block in self.blocks
            for dependency in block.control_dependencies
        )

    @property
    def operations(self) -> int:
        """Returns the number of operations in the regions, those of loops once."""
        found = [region for block in self.blocks for region in block.regions.regions]
        return sum(region.operations for region in found)

    def summary(self) -> str:
        if self.empty:
            return "nothing to capture"
        text = f"{pluralize(self.operations, 'operation')} in {pluralize(self.regions, 'region')}"
        if self.moved:
            text += f", {pluralize(self.moved, 'graph break')} moved"
        reasons = Counter(each.obstacle.reason for each in self.graph_breaks)
        counts = [f"{count} x {reason}" for reason, count in sorted(reasons.items())]
        return f"{text}; left out: {', '.join(counts)}" if counts else text

    def facts(self) -> tuple[Fact, ...]:
        return (
            Fact("graphs", self.regions),
            Fact("operations in them", self.operations),
            Fact("operations left out", len(self.graph_breaks)),
            Fact("of them moved", self.moved),
        )

    def tables(self) -> tuple[Table, ...]:
        found = [(each.obstacle.op, each.obstacle.reason) for each in self.graph_breaks]
        left = [Left(Described.at(op.location, op.name), reason) for op, reason in found]
        return (left_table(left, "What no graph holds", most=_MOST_LISTED),)


def plan_module(module: ir.Module, rules: Rules, min_ops: int) -> CapturePlan:
    """Finds the regions of a module and the control dependencies between them."""
    can_tie_at_top = mesh.partition_count(module) == 1
    blocks: list[BlockCapture] = []
    graph_breaks: list[GraphBreak] = []
    for found in regions_of(module, rules, min_ops):
        graph_breaks += [
            each
            for each in found.schedule.graph_breaks
            if each.obstacle.op == each.op or each.obstacle.reason == HOST_COPY
        ]
        if found.regions:
            can_tie = can_tie_at_top or mesh.is_in_manual_computation(found.schedule.block)
            blocks.append(BlockCapture(found, tuple(_ties(found.schedule)) if can_tie else ()))
    return CapturePlan(tuple(blocks), tuple(graph_breaks), rules, min_ops)


def _ties(sorted_: BlockSchedule) -> list[ControlDependency]:
    """Returns the control dependencies of a block.

    The last graph breaks wait for the end of the block, others for those in their slot.
    """
    control_dependencies: list[ControlDependency] = []
    work = {result for ops in sorted_.phases for op in ops for result in op.results}
    end = len(sorted_.phases) - 1
    for slot in range(end + 1):
        found = [each for each in sorted_.graph_breaks if each.slot == slot]
        made_here = {result for op in sorted_.gaps[slot + 1] for result in op.results}
        waiting = [(each.op, waiting_operands(each.op, made_here)) for each in found]
        calls = tuple((op, numbers) for op, numbers in waiting if numbers and _may_move(op))
        if slot == end:
            anchors = [value for value in walk.terminator(sorted_.block).operands if value in work]
        elif len(calls) > 1:
            anchors = [op.operands[number] for op, numbers in calls for number in numbers]
        else:
            continue
        usable = list(dict.fromkeys(each for each in anchors if can_be_selected(each.type)))
        if calls and usable:
            control_dependencies.append(
                ControlDependency(slot, calls, tuple(_latest(usable, sorted_)))
            )
    return control_dependencies


def _latest(values: list[ir.Value], sorted_: BlockSchedule) -> list[ir.Value]:
    """Returns the values at the end of the longest chains of operations, in order."""
    if len(values) <= _MOST_ANCHORS:
        return values
    depths: dict[ir.Value, int] = {}
    for op in sorted_.order():
        depth = 1 + max((depths.get(value, 0) for value in walk.values_read(op)), default=0)
        depths.update((result, depth) for result in op.results)
    latest = sorted(values, key=lambda value: -depths[value])[:_MOST_ANCHORS]
    return [value for value in values if value in set(latest)]


def _may_move(op: ir.Operation) -> bool:
    """Whether a graph break may be delayed on each device by itself."""
    return op.name == CUSTOM_CALL and not is_collective(op)
