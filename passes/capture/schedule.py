"""Schedules a block so that its capturable work is contiguous, and finds its regions.

Work is what a CUDA graph can contain; other operations are graph breaks. Work that depends on no
graph break is in phase 0. A graph break is in the gap after the last phase that it depends on, and
work that depends on it is in a later phase. The number of phases is therefore the least: that of
the longest chain of work, graph break, work, …

A graph break on which no work depends is in the last gap, at the end of the block; one that depends
on no work is in the gap before phase 0. Within a phase or a gap the program order is kept.

A capture region is a maximal run of work in one block: the operations of one phase of the block's
schedule, including the loops and branches that a graph may contain as a whole. It becomes a graph
if it has at least ``min_ops`` operations, without constants and operations that return their
operands. The blocks of a loop, a branch or a manual computation that no graph can contain as a
whole have regions of their own; but a loop with copies between device and host stays as it is,
because these run beside its work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from ..ir import walk
from ..ir.op_facts import Category
from ..ir.ops import facts_of
from .capturable import HOST_COPY, CaptureObstacle, Rules, obstacle

BEFORE_ALL = -1
"""The gap before phase 0."""


@dataclass(frozen=True)
class GraphBreak:
    """An operation that no graph can contain.

    Attributes:
      obstacle: the reason.
      slot: the phase that its gap follows, or BEFORE_ALL.
      is_last: whether no work depends on it.
    """

    op: ir.Operation
    obstacle: CaptureObstacle
    slot: int
    is_last: bool


@dataclass
class BlockSchedule:
    """The order of a block's operations.

    Attributes:
      free: operations that make no kernel, e.g. constants, and come first.
      phases: by phase, its work.
      gaps: the other operations, among them those on tokens; `gaps[0]` comes before phase 0, and
        `gaps[n + 1]` after phase `n`.
      graph_breaks: the graph breaks in the gaps, in order.
    """

    block: ir.Block
    free: list[ir.Operation] = field(default_factory=list)
    phases: list[list[ir.Operation]] = field(default_factory=list)
    gaps: list[list[ir.Operation]] = field(default_factory=list)
    graph_breaks: list[GraphBreak] = field(default_factory=list)

    def order(self) -> list[ir.Operation]:
        """Returns the block's operations in the new order, without the terminator."""
        ordered = [*self.free, *self.gaps[0]]
        for phase, slot in zip(self.phases, self.gaps[1:], strict=True):
            ordered += [*phase, *slot]
        return ordered


def schedule_block(block: ir.Block, rules: Rules) -> BlockSchedule:
    """Computes the order of a block without editing it."""
    rows = _rows(block, rules)
    _find_moments(rows)
    _find_last(rows)
    count = 1 + max((row.moment for row in rows if row.is_work), default=-1)
    sorted_ = BlockSchedule(
        block, phases=[[] for _ in range(count)], gaps=[[] for _ in range(count + 1)]
    )
    for row in rows:
        if row.is_free:
            sorted_.free.append(row.op)
        elif row.is_work:
            sorted_.phases[row.moment].append(row.op)
        else:
            slot = count - 1 if row.is_last and row.needs_work else row.moment
            row.moment = slot
            sorted_.gaps[slot + 1].append(row.op)
    found = [row for row in rows if row.obstacle is not None]
    for row in sorted(found, key=lambda row: row.moment):
        if row.obstacle is not None:
            sorted_.graph_breaks.append(GraphBreak(row.op, row.obstacle, row.moment, row.is_last))
    return sorted_


@dataclass
class _Row:
    """An operation of a block while the order is computed.

    Attributes:
      obstacle: the reason why it is a graph break; None for work and for operations on tokens.
      makers: the rows of its operands' producers.
      is_free: whether it makes no kernel and has no operand.
      is_work: whether a graph can contain it.
      moment: the phase of work; for others the slot.
      needs_work: whether it depends on work.
      is_last: whether no work depends on it.
    """

    op: ir.Operation
    obstacle: CaptureObstacle | None
    makers: list[_Row]
    is_free: bool
    is_work: bool
    moment: int = BEFORE_ALL
    needs_work: bool = False
    is_last: bool = True


def _rows(block: ir.Block, rules: Rules) -> list[_Row]:
    rows: list[_Row] = []
    made_by: dict[ir.Value, _Row] = {}
    *body, _ = [view.operation for view in block.operations]
    for op in body:
        makers = {id(row): row for value in walk.values_read(op) if (row := made_by.get(value))}
        why = obstacle(op, rules)
        is_free = facts_of(op.name).is_constant
        row = _Row(
            op=op,
            obstacle=why,
            makers=list(makers.values()),
            is_free=is_free,
            is_work=why is None and not is_free and not _is_of_tokens(op),
        )
        rows.append(row)
        made_by.update((result, row) for result in op.results)
    return rows


def _find_moments(rows: list[_Row]) -> None:
    for row in rows:
        needs = [maker for maker in row.makers if not maker.is_free]
        row.needs_work = any(maker.is_work or maker.needs_work for maker in needs)
        if row.is_work:
            after = [maker.moment + (not maker.is_work) for maker in needs]
            row.moment = max(0, *after) if after else 0
        else:
            row.moment = max((maker.moment for maker in needs), default=BEFORE_ALL)


def _find_last(rows: list[_Row]) -> None:
    for row in reversed(rows):
        if row.is_work or not row.is_last:
            for maker in row.makers:
                maker.is_last = False


def _is_of_tokens(op: ir.Operation) -> bool:
    """Whether all results of an operation are tokens, which do not exist at run time."""
    types = [str(result.type) for result in op.results]
    return bool(types) and all(type_ == "!stablehlo.token" for type_ in types)


def is_free(op: ir.Operation) -> bool:
    """Whether an operation makes no kernel: a constant, or one that returns its operands."""
    facts = facts_of(op.name)
    return facts.is_constant or facts.relabels


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
    """Yields the blocks of the program that are not inside a larger region, with their regions."""
    for function in walk.functions(module).values():
        # Private functions are decompositions, and those that could not be inlined.
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
    """Returns the blocks of an operation that may contain regions: not the condition of a loop."""
    facts = facts_of(op.name)
    if not facts.holds_code:
        return []
    first = 1 if facts.category is Category.LOOP else 0
    return [region.blocks[0] for region in list(op.regions)[first:]]


def _counted(op: ir.Operation) -> int:
    """Returns the number of operations that count in an operation and its regions."""
    if not facts_of(op.name).holds_code:
        return 0 if is_free(op) else 1
    blocks = [block for region in op.regions for block in region.blocks]
    inner = [view.operation for block in blocks for view in block.operations]
    return sum(_counted(each) for each in inner if not facts_of(each.name).ends_block)
