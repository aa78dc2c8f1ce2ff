"""What a straight-line block keeps for its backward pass, and what it computes again, and where.

The block's values are the vertices of a flow network: every value that can only be kept (an
argument, the result of a matrix product) is a source, every value that the backward pass reads is
a sink, and a cheap operation joins what it reads to what it makes. The cheapest set of values to
keep is a minimum vertex cut, weighed in bytes.

What is not kept is computed again in groups of clones; ``schedule`` says where they stand.
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
"""Operations of a window, and windows of the backward pass, at level cheap: a recomputed value may
be alive for a sixteenth of the backward pass."""


@dataclass(frozen=True)
class CloneGroup:
    """Forward operations that are cloned together, right before the operation ``before``.

    ``leaves`` are the kept values the clones start from. They pass a barrier, together with
    ``gradient`` where there is one, whose ``gradient_readers`` take it from the barrier.
    """

    before: ir.Operation
    cloned: tuple[ir.Operation, ...]
    leaves: tuple[ir.Value, ...]
    gradient: ir.Value | None
    gradient_readers: tuple[ir.Operation, ...]


@dataclass(frozen=True)
class WindowPlan:
    """What is recomputed in one window of the backward pass.

    ``readers`` are the backward operations that take clones, each with the values it reads.
    """

    groups: tuple[CloneGroup, ...]
    readers: tuple[tuple[ir.Operation, tuple[ir.Value, ...]], ...]


@dataclass(frozen=True)
class BlockPlan:
    """What one block recomputes: bytes it need not keep any more, and bytes kept instead."""

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
    """Plans one block at level cheap; pure. The plan has no windows where nothing is gained.

    Values below ``min_bytes`` are kept as they are.
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
    """The schedule as operations and values of the block."""
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
