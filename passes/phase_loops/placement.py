"""Places loops among the operations of their block that are in none of them.

A loop is placed right before the first operation that needs one of its results. Operations after
that place whose results the loop reads are moved before it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.program import Code, has_effects
from ..framework.errors import NotPossibleError
from ..ir import walk
from ..ir.ops import facts_of


@dataclass(frozen=True)
class LoopPlace:
    """The place of a loop.

    Attributes:
      before: the operation right after it.
      moved: operations after that one that are moved before the loop, in order.
    """

    before: ir.Operation
    moved: tuple[ir.Operation, ...]


@dataclass(frozen=True)
class LoopValues:
    """The values that a loop, or a computation before all loops, reads and makes.

    Attributes:
      read: values of its block, or from outside of that, that it reads.
      made: values that it makes instead of operations.
    """

    read: frozenset[ir.Value]
    made: frozenset[ir.Value]


@dataclass(frozen=True)
class LoopContents:
    """The loops of one plan as a whole, in values and operations by number.

    ``apart`` has the values that each part of an operation computed before the loops reads and
    makes.
    """

    read: tuple[int, ...]
    made: tuple[int, ...]
    apart: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    gone: tuple[int, ...]


def placed(
    block: ir.Block,
    loops: Sequence[LoopValues],
    apart: Mapping[Hashable, LoopValues],
    gone: frozenset[Hashable],
    renamed: Mapping[ir.Value, ir.Value],
) -> tuple[LoopPlace, ...]:
    """Returns the places of loops, which are in order.

    Args:
      block: their block.
      loops: the values that they read and make.
      apart: operations that are replaced by a part, by `walk.key`.
      gone: the operations that the loops replace, by the same key, except the parts.
      renamed: results of such operations that are other values under another name.

    Raises NotPossibleError where a loop needs a value computed from its own results.
    """
    later: set[ir.Value] = set()
    for loop in reversed(loops):
        later |= loop.made
        if not later.isdisjoint(loop.read):
            raise NotPossibleError("a loop would need what it makes, or a later one")
    ops = [view.operation for view in block.operations]
    gone -= apart.keys()
    values = [_values(op, apart) for op in ops]
    stages = _stages(ops, values, loops, gone, renamed)
    needs = _needs(ops, values, loops, gone, renamed)
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
            raise NotPossibleError("the loop would need what is made of its own results", op)
        if facts_of(op.name).ends_block or not _may_move(op):
            raise NotPossibleError("it has side effects, and would have to run earlier", op)
        moved[need - 1].append(op)
    return tuple(
        LoopPlace(anchor, tuple(group)) for anchor, group in zip(anchors, moved, strict=True)
    )


def _values(op: ir.Operation, apart: Mapping[Hashable, LoopValues]) -> LoopValues:
    """Returns the values that an operation, or the part that replaces it, reads and makes."""
    part = apart.get(walk.key(op)) if apart else None
    if part is not None:
        return part
    return LoopValues(frozenset(walk.values_read(op)), frozenset(op.results))


def _may_move(op: ir.Operation) -> bool:
    return not any(map(has_effects, (op, *walk.operations(op))))


def _stages(
    ops: Sequence[ir.Operation],
    values: Sequence[LoopValues],
    loops: Sequence[LoopValues],
    gone: frozenset[Hashable],
    renamed: Mapping[ir.Value, ir.Value],
) -> list[int]:
    """Returns how many of the loops have to have ended before each operation."""
    stage = {value: number for number, loop in enumerate(loops, 1) for value in loop.made}
    stages = []
    for op, own in zip(ops, values, strict=True):
        if walk.key(op) in gone:
            for result in op.results:
                if result in renamed and result not in stage:
                    stage[result] = stage.get(renamed[result], 0)
            stages.append(0)
            continue
        found = max((stage.get(value, 0) for value in own.read), default=0)
        stages.append(found)
        if found:
            stage.update(dict.fromkeys(own.made, found))
    return stages


def _needs(
    ops: Sequence[ir.Operation],
    values: Sequence[LoopValues],
    loops: Sequence[LoopValues],
    gone: frozenset[Hashable],
    renamed: Mapping[ir.Value, ir.Value],
) -> list[int | None]:
    """Returns the first loop that each operation has to come before."""
    first: dict[ir.Value, int] = {}
    for number, loop in reversed(list(enumerate(loops, 1))):
        first.update(dict.fromkeys(loop.read, number))
    needs: list[int | None] = []
    for op, own in zip(reversed(ops), reversed(values), strict=True):
        wanted = [first[result] for result in own.made if result in first]
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
            for value in own.read:
                first[value] = min(need, first.get(value, need))
    needs.reverse()
    return needs


def check_together(block: Code, plans: Sequence[LoopContents]) -> None:
    """Raises NotPossibleError where loops of one block wait for each other.

    Args:
      block: their block.
      plans: for each group of loops, the values that it reads and makes, and the operations that it
        replaces, all by number.
    """
    gone = {number for plan in plans for number in plan.gone}
    steps = [(node.reads(), node.results) for node in block.nodes if node.number not in gone]
    steps += [(iter(plan.read), plan.made) for plan in plans]
    steps += [(iter(read), made) for plan in plans for read, made in plan.apart]
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
        raise NotPossibleError("loops would wait for each other")
