"""Writes the loops of a group as loops over segments, whose readers compute a segment again.

Iteration i of a segment is iteration i + first of the loop: the body is the same, its counter is
the sum. Stacks of residuals have the length of a segment, and are written and read at i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..analysis.loops.pairs import loop_pairs
from ..analysis.purity import erase_dead
from ..ir import walk
from ..ir.build import counted_while, integer_like, reshaped, slice_of_stack, typed, zeros
from ..ir.clone import remap_operands
from ..ir.locations import scoped
from ..ir.values import is_read, shape_of
from ..split_loop.groups import LoopGroup, group_of, linked
from ..split_loop.rewrite import erase_with_readers
from .again import Again, computed_again, writers
from .schedule import SegmentSchedule

SCOPE = "hloom.recursive-checkpoint"
"""Name-stack component of the loops that the pass writes."""

Place = tuple[int, int]
"""A stack: the number of the loop that writes it, and of its carry."""

Values = Mapping[int, ir.Value]
"""Values of a loop by the number of the carry."""


def apply_schedule(group: LoopGroup, schedule: SegmentSchedule) -> None:
    """Replaces the loops of a group by loops over segments."""
    _GroupWriter(group, schedule).write()


class _GroupWriter:
    """Writes the loops of a group, each right before the old one.

    Attributes:
      again: what each loop that writes stacks of the group computes again, by its number.
      borders: the carries at the start of each segment, stacked, by loop and carry.
      rests: the stacks of the iterations after all segments.
    """

    def __init__(self, group: LoopGroup, schedule: SegmentSchedule) -> None:
        self.group, self.schedule = group, schedule
        self.level = schedule.levels[0]
        self.stacks = writers(group)
        self.again: dict[int, Again] = {}
        for number, stacks in self.stacks.items():
            found = computed_again(group.loops[number].loop, stacks)
            if isinstance(found, str):
                raise ValueError(f"a loop cannot be computed again: {found}")
            self.again[number] = found
        self.borders: dict[int, Values] = {}
        self.rests: dict[Place, ir.Value] = {}
        self._read: dict[int, dict[int, tuple[Place, bool]]] = {}
        for stack in group.stacks:
            place = stack.writer, stack.stack.number
            for reader in stack.readers:
                read = self._read.setdefault(reader.loop, {})
                read[reader.operand] = place, reader.ascending

    def write(self) -> None:
        for number in range(len(self.group.loops)):
            self._write_loop(number)
        for each in reversed(self.group.loops):
            erase_with_readers(each.loop.op)

    def _write_loop(self, number: int) -> None:
        each = self.group.loops[number]
        loop, op = each.loop, each.loop.op
        own = {stack.stack.number for stack in self.stacks.get(number, ())}
        gone = own | self._read.get(number, {}).keys() | loop.invariant | {loop.counter}
        carried = {n: value for n, value in enumerate(op.operands) if n not in gone}
        with ir.InsertionPoint(op), scoped(op.location, SCOPE):
            parts = [self._segments, self._rest]
            for part in parts[::-1] if each.reversed_ else parts:
                carried = part(number, carried)
            if is_read(op.results[loop.counter]):
                end = integer_like(op.operands[loop.counter], loop.trip_count)
                carried[loop.counter] = end
        for n, result in enumerate(op.results):
            if n in loop.invariant and n not in self._read.get(number, {}):
                result.replace_all_uses_with(op.operands[n])
            elif n in carried:
                result.replace_all_uses_with(carried[n])

    def _rest(self, number: int, carried: dict[int, ir.Value]) -> dict[int, ir.Value]:
        """Writes the iterations after all segments; returns the carries after them."""
        level = self.level
        if not level.rest:
            return carried
        first = 0 if self.group.loops[number].reversed_ else level.count * level.length
        counter = self._counter(number)
        found, stacks = self._iterations(
            number, level.rest, integer_like(counter, first), carried, self.rests, writes=True
        )
        self.rests |= stacks
        return found

    def _segments(self, number: int, carried: dict[int, ir.Value]) -> dict[int, ir.Value]:
        """Writes the loop over all segments; returns the carries after them."""
        level, counter = self.level, self._counter(number)
        again = self.again.get(number)
        kept = () if again is None else again.carries
        empty = [
            zeros(typed(value, [level.count, *shape_of(value)]))
            for value in map(carried.__getitem__, kept)
        ]
        sources = self._sources(number)

        def iteration(segment: ir.Value, values: Sequence[ir.Value]) -> list[ir.Value]:
            inside = dict(zip(carried, values[: len(carried)], strict=True))
            borders = [
                _stored(stack, inside[n], segment)
                for n, stack in zip(kept, values[len(carried) :], strict=True)
            ]
            local: dict[Place, ir.Value] = {}
            for source in sources:
                at = segment
                if self._is_reversed(source) != self._is_reversed(number):
                    last = integer_like(segment, level.count - 1)
                    at = stablehlo.subtract(last, segment)
                at = _converted(at, self._counter(source))
                start = {n: _taken(stack, at) for n, stack in self.borders[source].items()}
                _, stacks = self._iterations(
                    source,
                    level.length,
                    self._first(source, at),
                    start,
                    local,
                    writes=True,
                    again=self.again[source],
                )
                local |= stacks
            inside, _ = self._iterations(
                number, level.length, self._first(number, segment), inside, local, writes=False
            )
            return [*inside.values(), *borders]

        zero = integer_like(counter, 0)
        made = counted_while(level.count, [zero, *carried.values(), *empty], iteration)
        results = dict(zip(carried, made[: len(carried)], strict=True))
        self.borders[number] = dict(zip(kept, made[len(carried) :], strict=True))
        if len(self.schedule.levels) > 1 and sources and made:
            deeper = SegmentSchedule(self.schedule.levels[1:])
            loop = made[0].owner
            assert not isinstance(loop, ir.Block)
            for pairs in linked(loop_pairs(loop.operation.regions[1].blocks[0])):
                found = group_of(pairs)
                if isinstance(found, LoopGroup):
                    apply_schedule(found, deeper)
        return results

    def _iterations(
        self,
        number: int,
        trips: int,
        first: ir.Value,
        carried: Values,
        stacks: Mapping[Place, ir.Value],
        *,
        writes: bool,
        again: Again | None = None,
    ) -> tuple[dict[int, ir.Value], dict[Place, ir.Value]]:
        """Writes iterations of a loop; returns the carries after them, and the stacks it wrote.

        Args:
          number: the loop.
          trips: how many iterations.
          first: the loop's counter in the first of them.
          carried: the carries before them.
          stacks: the stacks that they read.
          writes: whether they write the stacks of the group.
          again: the part of the body that is written; None for all of it.
        """
        loop = self.group.loops[number].loop
        body, op = loop.body, loop.op
        own = self.stacks.get(number, []) if writes else []
        updates = {walk.key(each.stack.update) for each in self.stacks.get(number, ())}
        ops = [view.operation for view in body.operations][:-1] if again is None else again.ops
        ops = [each for each in ops if walk.key(each) not in updates]
        read = self._read.get(number, {})
        fixed = [n for n in sorted(loop.invariant) if n not in read and is_read(body.arguments[n])]
        local = {n: stacks[place] for n, (place, _) in read.items()}
        empty = []
        for each in own:
            type_ = each.stack.update.results[0].type
            empty.append(zeros(typed(type_, [trips, *shape_of(type_)[1:]])))
        starts = [
            *carried.values(),
            *(op.operands[n] for n in fixed),
            *local.values(),
            first,
            *empty,
        ]
        names = [*carried, *fixed, *local]

        def iteration(count: ir.Value, values: Sequence[ir.Value]) -> list[ir.Value]:
            inside = {body.arguments[n]: value for n, value in zip(names, values, strict=False)}
            start, *written = values[len(names) :]
            inside[body.arguments[loop.counter]] = stablehlo.add(count, start)
            back = stablehlo.subtract(integer_like(count, trips - 1), count)
            rows = {
                body.arguments[n]: (inside[body.arguments[n]], count if ascending else back)
                for n, (_, ascending) in read.items()
            }
            for each in ops:
                _clone(each, inside, rows)
            ends = [
                _updated(stack, inside[each.stack.update.operands[1]], index)
                for each, stack in zip(own, written, strict=True)
                for index in [count if each.stack.slope == 1 else back]
            ]
            outs = [
                inside.get(value, value) for value in (loop.returned.operands[n] for n in carried)
            ]
            return [*outs, *values[len(carried) : len(names) + 1], *ends]

        made = counted_while(trips, [integer_like(first, 0), *starts], iteration)
        if made:
            loop_op = made[0].owner
            assert not isinstance(loop_op, ir.Block)
            erase_dead(loop_op.operation.regions[1].blocks[0])
        results = dict(zip(carried, made[: len(carried)], strict=True))
        wrote = made[len(names) + 1 :]
        places = [(number, each.stack.number) for each in own]
        return results, dict(zip(places, wrote, strict=True))

    def _sources(self, number: int) -> list[int]:
        """Returns the loops whose stacks a loop reads, and those whose stacks these read."""
        found: set[int] = set()
        waiting = [number]
        while waiting:
            read = {place[0] for place, _ in self._read.get(waiting.pop(), {}).values()} - found
            found |= read
            waiting += read
        return sorted(found)

    def _is_reversed(self, number: int) -> bool:
        return self.group.loops[number].reversed_

    def _counter(self, number: int) -> ir.Value:
        loop = self.group.loops[number].loop
        return loop.op.operands[loop.counter]

    def _first(self, number: int, segment: ir.Value) -> ir.Value:
        """Returns a loop's counter in the first iteration of one of its segments."""
        length = integer_like(segment, self.level.length)
        first = stablehlo.multiply(segment, length)
        if self._is_reversed(number) and self.level.rest:
            first = stablehlo.add(first, integer_like(first, self.level.rest))
        return first


def _converted(index: ir.Value, like: ir.Value) -> ir.Value:
    """Returns an index in the type of another."""
    return index if index.type == like.type else stablehlo.convert(like.type, index)


def _clone(
    op: ir.Operation,
    inside: dict[ir.Value, ir.Value],
    rows: Mapping[ir.Value, tuple[ir.Value, ir.Value]],
) -> None:
    """Clones an operation of a body; slices of stacks in ``rows`` read a row of these instead."""
    made = op.clone(ir.InsertionPoint.current).operation
    remap_operands(made, inside)
    if op.name == "stablehlo.dynamic_slice" and op.operands[0] in rows:
        made.operands[0], made.operands[1] = rows[op.operands[0]]
    inside.update(zip(op.results, made.results, strict=True))


def _updated(stack: ir.Value, slice_: ir.Value, index: ir.Value) -> ir.Value:
    """Returns a stack with another slice of one row."""
    zero = integer_like(index, 0)
    starts = [index, *[zero] * (len(shape_of(stack)) - 1)]
    return stablehlo.dynamic_update_slice(stack, slice_, starts)


def _stored(stack: ir.Value, value: ir.Value, index: ir.Value) -> ir.Value:
    """Returns a stack with a value stored at an index."""
    return _updated(stack, reshaped(value, [1, *shape_of(value)]), index)


def _taken(stack: ir.Value, index: ir.Value) -> ir.Value:
    """Returns the value that a stack has at an index."""
    return reshaped(slice_of_stack(stack, index), shape_of(stack)[1:])
