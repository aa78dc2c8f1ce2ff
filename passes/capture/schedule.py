"""In which order a block's operations run so that what can be captured stands together.

Work is what a CUDA graph can hold; a graph break is what it cannot. Work that needs no
graph break's result is of phase 0. a graph break stands in the gap after the phases of all the
work it needs, and work that needs it is of the next phase, at the earliest. So there are no more
phases than the longest chain of work, graph break, work, … makes necessary.

a graph break that no work needs stands in the last gap, at the end of the block; one that needs
no work stands in the gap before phase 0. Within a phase or a gap the order of the text stays.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jax.extend.mlir import ir

from hloom.passes.capture.capturable import CaptureObstacle, Rules, obstacle
from hloom.passes.ir import walk
from hloom.passes.ir.ops import facts_of

BEFORE_ALL = -1
"""The gap before phase 0."""


@dataclass(frozen=True)
class GraphBreak:
    """An operation that no graph can hold.

    Attributes:
      op: the operation.
      obstacle: why.
      gap: the phase after which it stands, or BEFORE_ALL.
      is_last: no work needs it.
    """

    op: ir.Operation
    obstacle: CaptureObstacle
    slot: int
    is_last: bool


@dataclass
class BlockSchedule:
    """A block, sorted.

    Attributes:
      block: the block.
      free: constants and the like: they cost nothing, and stand before everything.
      phases: the operations of work, by phase.
      gaps: what stands after each phase, tokens included; the first is the gap before phase 0.
      graph breaks: those of the gaps that are obstacles, in the order of the gaps.
    """

    block: ir.Block
    free: list[ir.Operation] = field(default_factory=list)
    phases: list[list[ir.Operation]] = field(default_factory=list)
    gaps: list[list[ir.Operation]] = field(default_factory=list)
    graph_breaks: list[GraphBreak] = field(default_factory=list)

    def order(self) -> list[ir.Operation]:
        """The block's operations without the terminator, in the order they are to stand in."""
        ordered = [*self.free, *self.gaps[0]]
        for phase, slot in zip(self.phases, self.gaps[1:], strict=True):
            ordered += [*phase, *slot]
        return ordered


def schedule_block(block: ir.Block, rules: Rules) -> BlockSchedule:
    """Sorts a block; edits nothing."""
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
    """An operation of a block on its way to a place.

    Attributes:
      op: the operation.
      obstacle: why it is no work; None for work and for operations on tokens.
      makers: the rows whose results it reads.
      is_free: it costs nothing and needs nothing.
      is_work: a graph can hold it.
      moment: of work the phase, of others the gap.
      needs_work: whether it needs any.
      is_last: whether no work needs it.
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
    """Whether all that an operation makes is tokens, which are nothing at run time."""
    types = [str(result.type) for result in op.results]
    return bool(types) and all(type_ == "!stablehlo.token" for type_ in types)


def is_free(op: ir.Operation) -> bool:
    """Whether an operation makes no kernel: a constant, or something that only passes values on."""
    facts = facts_of(op.name)
    return facts.is_constant or facts.relabels
