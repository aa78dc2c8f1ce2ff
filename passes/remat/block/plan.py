"""The plan of a straight-line block: the groups of clones, and the readers that use them.

The values of the block are the vertices of a flow network. A value that can only be saved (an
argument, the result of a matrix product) is a source, a value that the backward pass reads is a
sink, and a recomputable operation connects its operands to its results. The values to save are a
minimum vertex cut, weighed in bytes (``windows``). The others are recomputed (``schedule``).
"""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis.autodiff import is_rematerialized
from hloom.passes.analysis.block_graph import BlockGraph
from hloom.passes.remat.block.schedule import BackwardWindow, CloneSchedule
from hloom.passes.remat.block.values import ForwardValues
from hloom.passes.remat.block.windows import PriceSchedule, keep, split
from hloom.passes.remat.budget.pricing import Rates
from hloom.passes.remat.explain import describe_operation, describe_value

_SHORTEST_WINDOW, _MOST_WINDOWS = 64, 16
"""Without a budget: the least length of a window in operations, and the most windows of a backward
pass. A recomputed value may then be alive for a sixteenth of the backward pass."""


@dataclass(frozen=True)
class CloneGroup:
    """Forward operations that are cloned together, right before the operation ``before``.

    ``leaves`` are the saved values that the clones start from. They pass a barrier, together with
    ``gradient`` if there is one; ``gradient_readers`` then use the barrier's result.
    """

    before: ir.Operation
    cloned: tuple[ir.Operation, ...]
    leaves: tuple[ir.Value, ...]
    gradient: ir.Value | None
    gradient_readers: tuple[ir.Operation, ...]


@dataclass(frozen=True)
class WindowPlan:
    """The clones of one window of the backward pass.

    ``readers`` are the backward operations that use clones, each with the values that it reads.
    """

    groups: tuple[CloneGroup, ...]
    readers: tuple[tuple[ir.Operation, tuple[ir.Value, ...]], ...]


@dataclass(frozen=True)
class BlockPlan:
    """The clones of one block, the bytes that it no longer saves, and those saved instead."""

    windows: tuple[WindowPlan, ...]
    freed_bytes: int
    added_bytes: int

    @property
    def groups(self) -> tuple[CloneGroup, ...]:
        return tuple(group for window in self.windows for group in window.groups)

    def to_json(self) -> dict[str, object]:
        return {
            "freed_bytes": self.freed_bytes,
            "added_bytes": self.added_bytes,
            "groups": [
                {
                    "before": describe_operation(group.before),
                    "recomputed_operations": len(group.cloned),
                    "starts_from": [describe_value(leaf) for leaf in group.leaves],
                    "held_by_gradient": group.gradient is not None,
                }
                for group in self.groups
            ],
            "readers": [
                describe_operation(op) | {"reads": [describe_value(value) for value in values]}
                for window in self.windows
                for op, values in window.readers
            ],
        }


_NOTHING = BlockPlan((), 0, 0)


def plan_block(block: ir.Block, min_bytes: int) -> BlockPlan:
    """Plans one block without a budget. The plan is empty if no memory is saved.

    Values below ``min_bytes`` are not recomputed.
    """
    if is_rematerialized(block):
        return _NOTHING
    forward = ForwardValues(BlockGraph.of(block), min_bytes)
    if not forward.weigh(frozenset(forward.sinks)):
        return _NOTHING
    length = max(_SHORTEST_WINDOW, sum(forward.backward) // _MOST_WINDOWS)
    windows = split(forward, length)
    kept = keep(forward, windows, [PriceSchedule.flat(Rates(0.0, 0.0))] * len(windows))
    plan = block_plan(CloneSchedule(forward, windows, kept))
    return plan if plan.freed_bytes > plan.added_bytes else _NOTHING


def block_plan(schedule: CloneSchedule) -> BlockPlan:
    """The schedule, its indices replaced by operations and values of the block."""
    forward = schedule.forward
    sinks = frozenset(forward.sinks)
    return BlockPlan(
        windows=tuple(_window_plan(window, schedule.graph) for window in schedule.windows),
        freed_bytes=forward.weigh(sinks - schedule.kept),
        added_bytes=forward.weigh(schedule.kept - sinks),
    )


def _window_plan(window: BackwardWindow, graph: BlockGraph) -> WindowPlan:
    return WindowPlan(
        groups=tuple(
            CloneGroup(
                before=graph.ops[placement.before],
                cloned=tuple(graph.ops[producer] for producer in placement.cloned),
                leaves=tuple(graph.values[leaf] for leaf in placement.leaves),
                gradient=graph.values[placement.gate.gradient] if placement.gate else None,
                gradient_readers=tuple(graph.ops[reader] for reader in placement.gate.readers)
                if placement.gate
                else (),
            )
            for placement in window.placements
        ),
        readers=tuple(
            (graph.ops[position], tuple(graph.values[value] for value in values))
            for position, values in window.reads.items()
        ),
    )
