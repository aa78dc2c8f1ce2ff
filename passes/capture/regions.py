"""Where the capture regions of a module are.

A region is a maximal run of work in one block: the operations of one phase of the block's schedule
(``schedule``), loops and branches with all that is inside them. It is worth a graph where it has at
least so many operations; constants, and operations that only relabel, do not count. Inside a loop,
a branch or a manual computation that no graph can hold whole, its blocks have regions of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.capture.capturable import Rules
from hloom.passes.capture.schedule import BlockSchedule, is_free, schedule_block
from hloom.passes.ir import walk
from hloom.passes.ir.op_facts import Category
from hloom.passes.ir.ops import facts_of


@dataclass(frozen=True)
class Region:
    """A run of work.

    Attributes:
      phase: of which phase of its block's schedule.
      operations: how many of its operations count, those inside loops once.
    """

    phase: int
    operations: int


@dataclass(frozen=True)
class BlockRegions:
    """A block's schedule, and those of its phases that are worth a graph."""

    schedule: BlockSchedule
    regions: tuple[Region, ...]


def regions_of(module: ir.Module, rules: Rules, min_ops: int) -> Iterator[BlockRegions]:
    """Every block of the program that no graph holds together with what is around it."""
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
        for inner in _inner_blocks(graph_break.op):
            yield from _of_block(inner, rules, min_ops)


def _inner_blocks(op: ir.Operation) -> list[ir.Block]:
    """The blocks of an operation in which there may be regions; a loop's condition is none."""
    facts = facts_of(op.name)
    if not facts.holds_code:
        return []
    first = 1 if facts.category is Category.LOOP else 0
    return [region.blocks[0] for region in list(op.regions)[first:]]


def _counted(op: ir.Operation) -> int:
    """How many operations count of an operation and what is inside it."""
    if not facts_of(op.name).holds_code:
        return 0 if is_free(op) else 1
    blocks = [block for region in op.regions for block in region.blocks]
    inner = [view.operation for block in blocks for view in block.operations]
    return sum(_counted(each) for each in inner if not facts_of(each.name).ends_block)
