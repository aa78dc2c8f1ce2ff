"""What `capture` decides about a module, and how it says it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.capture.capturable import CaptureObstacle, Rules
from hloom.passes.capture.control_deps import ControlDependency, can_be_selected, waiting_operands
from hloom.passes.capture.regions import BlockRegions, regions_of
from hloom.passes.capture.schedule import BlockSchedule, GraphBreak
from hloom.passes.framework.text import pluralize
from hloom.passes.ir import mesh, walk
from hloom.passes.ir.collectives import is_collective
from hloom.passes.ir.custom_calls import CUSTOM_CALL
from hloom.passes.ir.locations import operation_name, source_line

_MOST_ANCHORS = 32
"""So many values a graph break waits for at most: one kernel reads an element of each. Of the
results of a step the latest have nearly all of its work before them. With 450 of them (Adam, 150
tensors) XLA took three times as long to compile, and made 5 kernels more."""

_MOST_TOLD = 100
"""How many operations that are not captured a plan spells out."""


@dataclass(frozen=True)
class BlockCapture:
    """What happens to a block: it is put in the order of its schedule, tied and outlined."""

    regions: BlockRegions
    control_dependencies: tuple[ControlDependency, ...]


@dataclass(frozen=True)
class CapturePlan:
    """The blocks in which there are regions, in the order of the text.

    Attributes:
      blocks: what happens to them.
      graph breaks: everything that no graph holds.
      rules, min_ops: by which the regions were found.
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
        """How many graphs there are to be."""
        return sum(len(block.regions.regions) for block in self.blocks)

    @property
    def moved(self) -> int:
        """How many graph breaks are made to wait."""
        return sum(
            len(dependency.calls)
            for block in self.blocks
            for dependency in block.control_dependencies
        )

    @property
    def operations(self) -> int:
        """How many operations the regions hold, those of loops once."""
        found = [region for block in self.blocks for region in block.regions.regions]
        return sum(region.operations for region in found)

    def summary(self) -> str:
        if self.empty:
            return "nothing to capture"
        text = f"{pluralize(self.operations, 'operation')} in {pluralize(self.regions, 'region')}"
        if self.moved:
            text += f", {pluralize(self.moved, 'graph break')} moved"
        reasons = Counter(each.obstacle.reason for each in self.graph_breaks)
        told = [f"{count} x {reason}" for reason, count in sorted(reasons.items())]
        return f"{text}; left out: {', '.join(told)}" if told else text

    def to_json(self) -> dict[str, object]:
        return {
            "regions": self.regions,
            "operations": self.operations,
            "moved": self.moved,
            "left_out": [_told(each.obstacle) for each in self.graph_breaks[:_MOST_TOLD]],
            "left_out_operations": len(self.graph_breaks),
        }


def plan_module(module: ir.Module, rules: Rules, min_ops: int) -> CapturePlan:
    """Finds the regions of a module and what is to wait at their edges."""
    can_tie_at_top = mesh.partition_count(module) == 1
    blocks: list[BlockCapture] = []
    graph_breaks: list[GraphBreak] = []
    for found in regions_of(module, rules, min_ops):
        graph_breaks += [
            each for each in found.schedule.graph_breaks if each.obstacle.op == each.op
        ]
        if found.regions:
            can_tie = can_tie_at_top or mesh.is_in_manual_computation(found.schedule.block)
            blocks.append(BlockCapture(found, tuple(_ties(found.schedule)) if can_tie else ()))
    return CapturePlan(tuple(blocks), tuple(graph_breaks), rules, min_ops)


def _ties(sorted_: BlockSchedule) -> list[ControlDependency]:
    """What is to wait: the last graph breaks for the block's end, others for their neighbours."""
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
    """Of many values those at the end of the longest chains of work, in their order."""
    if len(values) <= _MOST_ANCHORS:
        return values
    depths: dict[ir.Value, int] = {}
    for op in sorted_.order():
        depth = 1 + max((depths.get(value, 0) for value in walk.values_read(op)), default=0)
        depths.update((result, depth) for result in op.results)
    latest = sorted(values, key=lambda value: -depths[value])[:_MOST_ANCHORS]
    return [value for value in values if value in set(latest)]


def _may_move(op: ir.Operation) -> bool:
    """Whether a graph break may run later than it could: every device makes it wait alone."""
    return op.name == CUSTOM_CALL and not is_collective(op)


def _told(obstacle: CaptureObstacle) -> dict[str, object]:
    op = obstacle.op
    return {
        "operation": op.name,
        "name": operation_name(op.location),
        "line": source_line(op.location),
        "reason": obstacle.reason,
    }
