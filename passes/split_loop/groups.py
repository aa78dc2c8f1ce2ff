"""Finds loops that can be split: groups that stack and read residuals; and why others are not."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.autodiff import has_remat_name
from ..analysis.loops.counted import CountedLoop, StackedOutput
from ..analysis.loops.pairs import LoopPair, loop_pairs
from ..framework.tables import Described, Left
from ..framework.text import pluralize
from ..ir import walk
from ..ir.locations import called, operation_name
from ..ir.types import tensor_bytes

SCOPE = "hloom.split-loop"
"""Name-stack component of a loop that is a part of a split one."""

LEAST_TRIPS = 2
"""The fewest iterations of a part. XLA unrolls a loop of one iteration. The recomputation of its
backward part then merges with the forward part, and the memory is not saved."""


@dataclass(frozen=True)
class GroupLoop:
    """A loop of a group.

    ``reversed_`` is whether its iterations go against those of the group's first loop: iteration i
    of that one belongs to iteration trip_count - 1 - i of this one.
    """

    loop: CountedLoop
    reversed_: bool

    def parts(self, at: Sequence[int]) -> list[tuple[int, int]]:
        """Returns the first and the last iteration, exclusive, of each part, in loop order.

        ``at`` are the iterations of the group's first loop at which a part begins.
        """
        trips = self.loop.trip_count
        bounds = [0, *at, trips]
        if self.reversed_:
            bounds = [trips - bound for bound in reversed(bounds)]
        return list(itertools.pairwise(bounds))


@dataclass(frozen=True)
class StackReader:
    """A loop's operand that is a stack, which the loop's body reads slice by slice.

    Attributes:
      loop: the loop's number in its group.
      operand: the number of the operand.
      ascending: whether the slice's index goes up from one iteration to the next.
    """

    loop: int
    operand: int
    ascending: bool


@dataclass(frozen=True)
class SplitStack:
    """A stack that only loops of the group read, so that each part can have a stack of its own.

    ``writer`` is the number of the loop in its group.
    """

    writer: int
    stack: StackedOutput
    readers: tuple[StackReader, ...]

    @property
    def size_bytes(self) -> int:
        return tensor_bytes(self.stack.update.results[0].type) or 0


@dataclass(frozen=True)
class LoopGroup:
    """Loops of one trip count that can be split together.

    Mostly these are a forward loop and its backward loop. They are in the order of their block.
    """

    loops: tuple[GroupLoop, ...]
    stacks: tuple[SplitStack, ...]

    @property
    def trip_count(self) -> int:
        return self.loops[0].loop.trip_count

    @property
    def stacked_bytes(self) -> int:
        """Returns bytes of all stacks that are split."""
        return sum(stack.size_bytes for stack in self.stacks)

    def __str__(self) -> str:
        return called(self.loops[0].loop.op.location, "a loop")


def splittable(module: ir.Operation) -> tuple[list[LoopGroup], list[Left]]:
    """Returns groups of loops of a module that can be split, and the loops of pairs that cannot.

    A pair inside the loops of another pair belongs to their bodies and is not split.
    """
    groups: list[LoopGroup] = []
    whole: list[Left] = []
    paired: set[Hashable] = set()
    for block in walk.code_blocks(module):
        pairs = loop_pairs(block)
        paired.update(walk.key(loop.op) for pair in pairs for loop in (pair.forward, pair.backward))
        if pairs and not any(walk.key(op) in paired for op in walk.ancestors(block)):
            for each in linked(pairs):
                found = group_of(each)
                if isinstance(found, LoopGroup):
                    groups.append(found)
                else:
                    whole.append(left_whole(each[0].forward.op, found))
    return groups, whole


def left_whole(op: ir.Operation, reason: str) -> Left:
    """Returns a forward loop of a pair that stays whole, and the reason."""
    return Left(Described.at(op.location, op.name), reason)


def linked(pairs: Iterable[LoopPair]) -> list[list[LoopPair]]:
    """Returns the pairs, grouped if they share a loop with one another, also through others."""
    together: list[list[LoopPair]] = []
    for pair in pairs:
        loops = _keys([pair])
        meeting = [group for group in together if loops & _keys(group)]
        together = [group for group in together if group not in meeting]
        together.append([*(each for group in meeting for each in group), pair])
    return together


def _keys(pairs: Iterable[LoopPair]) -> set[Hashable]:
    return {walk.key(loop.op) for pair in pairs for loop in (pair.forward, pair.backward)}


def group_of(pairs: list[LoopPair]) -> LoopGroup | str:
    """Returns the group of linked pairs, or why their loops stay whole."""
    loops = {walk.key(one.op): one for pair in pairs for one in (pair.forward, pair.backward)}
    counts = sorted({loop.trip_count for loop in loops.values()})
    if any(loop.is_open for loop in loops.values()):
        return "the trip count is known only at run time"
    if any(SCOPE in operation_name(loop.op.location) for loop in loops.values()):
        return "it is a part of a loop that was split"
    if any(has_remat_name(loop.op) for loop in loops.values()):
        return "remat has planned it"
    if len(counts) > 1:
        return f"linked loops have different trip counts: {', '.join(map(str, counts))}"
    if counts[0] < 2 * LEAST_TRIPS:
        return f"{pluralize(counts[0], 'iteration')} cannot be two parts of {LEAST_TRIPS} or more"
    if not any(pair.reversed_ for pair in pairs):
        return "no loop reads from the last iteration to the first, as a backward loop does"
    directions = _directions(pairs)
    if directions is None:
        return "linked loops read the same iterations in different orders"
    ordered = sorted(loops.values(), key=functools.cmp_to_key(_in_order))
    number = {walk.key(loop.op): position for position, loop in enumerate(ordered)}
    first = directions[walk.key(ordered[0].op)]
    stacks = tuple(_stacks(pairs, number))
    if not stacks:
        return "other operations read all that it stacks"
    return LoopGroup(
        tuple(GroupLoop(loop, directions[walk.key(loop.op)] != first) for loop in ordered), stacks
    )


def _in_order(one: CountedLoop, other: CountedLoop) -> int:
    return -1 if one.op.is_before_in_block(other.op) else 1


def _directions(pairs: list[LoopPair]) -> dict[Hashable, bool] | None:
    """Returns, by loop, whether it goes against the first pair's forward loop; None if pairs
    disagree."""
    found: dict[Hashable, bool] = {walk.key(pairs[0].forward.op): False}
    waiting = list(pairs)
    while waiting:
        pair = next(each for each in waiting if _keys([each]) & found.keys())
        waiting.remove(pair)
        forward, backward = walk.key(pair.forward.op), walk.key(pair.backward.op)
        if forward not in found:
            found[forward] = found[backward] != pair.reversed_
        expected = found[forward] != pair.reversed_
        if found.setdefault(backward, expected) != expected:
            return None
    return found


def _stacks(pairs: list[LoopPair], number: dict[Hashable, int]) -> Iterator[SplitStack]:
    """Yields the stacks of which the loops of the group are the only readers."""
    stacks: dict[tuple[int, int], StackedOutput] = {}
    readers: dict[tuple[int, int], list[StackReader]] = {}
    for pair in pairs:
        for residual in pair.residuals:
            stack = residual.stack
            key = number[walk.key(pair.forward.op)], stack.number
            stacks[key] = stack
            reader = number[walk.key(pair.backward.op)]
            ascending = (stack.slope == 1) != pair.reversed_
            readers.setdefault(key, []).extend(
                StackReader(reader, operand, ascending) for operand in residual.operands
            )
    loops = {position: key for key, position in number.items()}
    for (writer, place), stack in sorted(stacks.items(), key=lambda item: item[0]):
        found = readers[writer, place]
        known = {(loops[reader.loop], reader.operand) for reader in found}
        forward = next(p.forward for p in pairs if walk.key(p.forward.op) == loops[writer])
        if _uses(forward.op.results[place]) == known:
            yield SplitStack(writer, stack, tuple(found))


def _uses(value: ir.Value) -> set[tuple[Hashable, int]]:
    """Returns operations that read a value, with the number of the operand, reshapes followed."""
    found: set[tuple[Hashable, int]] = set()
    for use in value.uses:
        op = use.owner.operation
        if op.name == "stablehlo.reshape":
            found |= _uses(op.results[0])
        else:
            found.add((walk.key(op), use.operand_number))
    return found
