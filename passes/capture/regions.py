"""The capture regions of a module.

A region is a maximal run of work in one block: the operations of one phase of the block's schedule,
including loops and branches as a whole. It becomes a graph if it has at least ``min_ops``
operations, without constants and operations that return their operands. The blocks of a loop, a
branch or a manual computation that no graph can contain as a whole have regions of their own; but a
loop with copies between device and host stays as it is, because these run beside its work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..ir import walk
from ..ir.op_facts import Category
from ..ir.ops import facts_of
from .capturable import HOST_COPY, Rules
from .schedule import BlockSchedule, is_free, schedule_block


@dataclass(frozen=True)
class Region:
    """A run of work.

    Attributes:
      phase: its phase in the block's schedule.
      operations: the number of its operations that count, those inside loops once.
    """

    phase: int
    operations: int


@dataclass(frozen=True)
class BlockRegions:
    """A block's schedule, and its phases that are large enough for a graph."""

    schedule: BlockSchedule
    regions: tuple[Region, ...]


def regions_of(module: ir.Module, rules: Rules, min_ops: int) -> Iterator[BlockRegions]:
    """The blocks of the program that are not inside a larger region, with their regions."""
    for function in walk.functions(module).values():
        # Private ones are decompositions, and what could not be inlined.
        if walk.is_public(function):
            yield from _of_block(function.regions[0].blocks[0], rules, min_ops)


def _of_block(block: ir.Block, rules: Rules, min_ops: int) -> Iterator[BlockRegions]:
    sorted_ = schedule_block(block, rules)
    counts = (sum(map(_counted, ops)) for ops in sorted_.phases)
    found = (Region(phase, count) for phase, count in enumerate(counts) if count >= min_ops)
    yield BlockRegions(sorted_, tuple(found))
    for graph_break in sorted_.graph_breaks:
        if graph_break.obstacle.reason == HOST_COPY:
            continue
        for inner in _inner_blocks(graph_break.op):
            yield from _of_block(inner, rules, min_ops)


def _inner_blocks(op: ir.Operation) -> list[ir.Block]:
    """The blocks of an operation that may contain regions: not the condition of a loop."""
    facts = facts_of(op.name)
    if not facts.holds_code:
        return []
    first = 1 if facts.category is Category.LOOP else 0
    return [region.blocks[0] for region in list(op.regions)[first:]]


def _counted(op: ir.Operation) -> int:
    """The number of operations that count in an operation and its regions."""
    if not facts_of(op.name).holds_code:
        return 0 if is_free(op) else 1
    blocks = [block for region in op.regions for block in region.blocks]
    inner = [view.operation for block in blocks for view in block.operations]
    return sum(_counted(each) for each in inner if not facts_of(each.name).ends_block)
