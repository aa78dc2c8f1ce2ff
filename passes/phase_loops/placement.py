"""Where loops stand among the operations of their block that are in none of them.

A loop stands right before the first operation that needs something of it. What it reads itself and
is made behind that place goes before it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis.dimension_flow.program import FlowBlock, has_effects
from hloom.passes.ir import walk
from hloom.passes.ir.ops import facts_of
from hloom.passes.phase_loops.errors import NotLoopableError


@dataclass(frozen=True)
class LoopPlace:
    """Where a loop stands.

    Attributes:
      before: the operation right behind it.
      moved: operations that stand behind that one, and go before the loop, in order.
    """

    before: ir.Operation
    moved: tuple[ir.Operation, ...]


@dataclass(frozen=True)
class LoopValues:
    """What a loop reads and makes.

    Attributes:
      read: values of its block, or from outside of that, that it reads.
      made: values that it makes in the place of operations.
    """

    read: frozenset[ir.Value]
    made: frozenset[ir.Value]


@dataclass(frozen=True)
class LoopContents:
    """The loops of one plan as a whole, in values and operations by number."""

    read: tuple[int, ...]
    made: tuple[int, ...]
    gone: tuple[int, ...]


def placed(
    block: ir.Block,
    loops: Sequence[LoopValues],
    gone: frozenset[Hashable],
    renamed: Mapping[ir.Value, ir.Value],
) -> tuple[LoopPlace, ...]:
    """The places of loops, which are in order.

    Args:
      block: where they stand.
      loops: what they read and make.
      gone: the operations that they replace, by `walk.key`.
      renamed: results of such operations that are other values under another name.

    Raises NotLoopableError where a loop needs what is made of its own results.
    """
    ops = [view.operation for view in block.operations]
    stages = _stages(ops, loops, gone, renamed)
    needs = _needs(ops, loops, gone, renamed)
    anchors = [ops[-1]] * len(loops)
    segments = [0] * len(ops)
    passed = 0
    for at, op in enumerate(ops):
        key = walk.key(op)
        if key in gone:
            continue
        while passed < max(stages[at], len(loops) if at == len(ops) - 1 else 0):
            anchors[passed] = op
            passed += 1
        segments[at] = passed
    moved: list[list[ir.Operation]] = [[] for _ in loops]
    for at, op in enumerate(ops):
        if walk.key(op) in gone:
            continue
        need = needs[at]
        if need is None or need > segments[at]:
            continue
        if stages[at] >= need:
            raise NotLoopableError(op, "the loop would need what is made of its own results")
        if facts_of(op.name).ends_block or not _may_move(op):
            raise NotLoopableError(op, "it has side effects, and would have to run earlier")
        moved[need - 1].append(op)
    return tuple(
        LoopPlace(anchor, tuple(group)) for anchor, group in zip(anchors, moved, strict=True)
    )


def _may_move(op: ir.Operation) -> bool:
    return not any(map(has_effects, (op, *walk.operations(op))))


def _stages(
    ops: Sequence[ir.Operation],
    loops: Sequence[LoopValues],
    gone: frozenset[Hashable],
    renamed: Mapping[ir.Value, ir.Value],
) -> list[int]:
    """How many of the loops have to have ended before each operation."""
    stage = {value: number for number, loop in enumerate(loops, 1) for value in loop.made}
    stages = []
    for op in ops:
        if walk.key(op) in gone:
            for result in op.results:
                if result in renamed and result not in stage:
                    stage[result] = stage.get(renamed[result], 0)
            stages.append(0)
            continue
        found = max((stage.get(value, 0) for value in walk.values_read(op)), default=0)
        stages.append(found)
        if found:
            stage.update(dict.fromkeys(op.results, found))
    return stages


def _needs(
    ops: Sequence[ir.Operation],
    loops: Sequence[LoopValues],
    gone: frozenset[Hashable],
    renamed: Mapping[ir.Value, ir.Value],
) -> list[int | None]:
    """The first loop that each operation has to stand before."""
    first: dict[ir.Value, int] = {}
    for number, loop in reversed(list(enumerate(loops, 1))):
        first.update(dict.fromkeys(loop.read, number))
    needs: list[int | None] = []
    for op in reversed(ops):
        wanted = [first[result] for result in op.results if result in first]
        need = min(wanted, default=None)
        if walk.key(op) in gone:
            needs.append(None)
            for result in op.results:
                if result in first and result in renamed:
                    behind = renamed[result]
                    first[behind] = min(first[result], first.get(behind, first[result]))
            continue
        needs.append(need)
        if need is not None:
            for value in walk.values_read(op):
                first[value] = min(need, first.get(value, need))
    needs.reverse()
    return needs


def check_together(block: FlowBlock, plans: Sequence[LoopContents]) -> None:
    """Raises NotLoopableError where loops of one block wait for each other.

    Args:
      block: where they stand.
      plans: of each group of loops what it reads and makes, and the operations that it replaces,
        all by number.
    """
    gone = {number for plan in plans for number in plan.gone}
    steps = [(node.reads(), node.results) for node in block.nodes if node.number not in gone]
    steps += [(iter(plan.read), plan.made) for plan in plans]
    makers = {value: at for at, (_, made) in enumerate(steps) for value in made}
    behind = [{makers[value] for value in read if value in makers} for read, _ in steps]
    readers: list[list[int]] = [[] for _ in steps]
    for at, before in enumerate(behind):
        for each in before:
            readers[each].append(at)
    waits = [len(before) for before in behind]
    ready = [at for at, count in enumerate(waits) if not count]
    done = 0
    while ready:
        done += 1
        for reader in readers[ready.pop()]:
            waits[reader] -= 1
            if not waits[reader]:
                ready.append(reader)
    if done < len(steps):
        raise NotLoopableError(None, "loops would wait for each other")
