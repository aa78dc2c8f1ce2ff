"""The carries that loops save for a backward pass: the states of a simulation, the inputs of
checkpointed layers.

Recomputation computes a residual from others of the same iteration. For a residual that is the
carry, or follows from it and is no larger, that saves nothing: its operand would be saved instead.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from jax.extend.mlir import ir

from ...ir import walk
from ...ir.locations import source_of
from ...ir.values import defining_op
from .counted import CountedLoop, StackedOutput
from .pairs import loop_pairs

_MOST = 0.5
"""The share of the peak from which the values that loops save are most of it."""

_AS_MUCH = 1.1
"""The residuals of a loop that follow from its carry take at most this many times the carry: with
more, the carry could be saved, and the residuals recomputed from it."""


_FEWEST = 16
"""Iterations from which segments keep half of the carries, or less."""


@dataclass(frozen=True)
class KeptCarry:
    """The values of its carry that one loop saves, on each device; ``where`` is its "file:line".

    The loop is the largest of ``loops`` such loops.
    """

    bytes: int
    trips: int
    where: str
    loops: int = 1

    @property
    def reason(self) -> str:
        """Returns a description of the carry, and how often it is saved."""
        scans = "the scan" if self.loops == 1 else f"{self.loops} scans, the largest"
        at = f" at {self.where}" if self.where else ""
        return f"most of the peak is the carry of {scans}{at}, {self.trips} times"

    @property
    def remedy(self) -> str:
        """Returns the remedy: no recomputation inside of the loop's body saves a carry."""
        inner = math.isqrt(self.trips - 1) + 1
        outer = -(-self.trips // inner)
        return (
            f"two nested scans, {outer} x {inner}, the outer body under jax.checkpoint, keep it "
            f"{outer + inner} times; recursive-checkpoint writes such loops, or says why it does "
            "not"
        )


@dataclass(frozen=True)
class Kept:
    """The values that the loops of a program save at its peak.

    Attributes:
      in_loops: most of the peak is in stacks that a backward pass reads.
      carry: the loop with the most saved carries, where most of the peak is carries.
    """

    in_loops: bool = False
    carry: KeptCarry | None = None


@dataclass(frozen=True)
class LoopStacks:
    """The stacks of a program's loops for a backward pass: all bytes, and those of carries."""

    bytes: int
    carries: tuple[KeptCarry, ...]

    def at_peak(self, peak_bytes: int) -> Kept:
        """Returns the part of the stacks in a peak of so many bytes of temporary memory."""
        least, carry = _MOST * peak_bytes, None
        if self.carries and sum(one.bytes for one in self.carries) >= least:
            largest = max(self.carries, key=lambda one: one.bytes)
            carry = dataclasses.replace(largest, loops=len(self.carries))
        return Kept(in_loops=self.bytes > 0 and self.bytes >= least, carry=carry)


def loop_stacks(module: ir.Module, bytes_of: Callable[[ir.Value], int | None]) -> LoopStacks:
    """Returns the stacks of a module's loops."""
    forwards: dict[Hashable, tuple[CountedLoop, dict[int, StackedOutput]]] = {}
    pairs = (pair for block in walk.code_blocks(module.operation) for pair in loop_pairs(block))
    for pair in pairs:
        _, stacks = forwards.setdefault(walk.key(pair.forward.op), (pair.forward, {}))
        stacks.update((one.stack.number, one.stack) for one in pair.residuals)
    all_bytes, carries = 0, []
    for loop, stacks in forwards.values():
        sizes = {number: bytes_of(loop.op.results[number]) or 0 for number in stacks}
        all_bytes += sum(sizes.values())
        numbers = _of_carry(loop, stacks, sum(sizes.values()), bytes_of)
        if numbers:
            where = source_of(loop.op.location).short
            size = sum(sizes[number] for number in numbers)
            carries.append(KeptCarry(size, loop.trip_count, where))
    return LoopStacks(all_bytes, tuple(carries))


def _of_carry(
    loop: CountedLoop,
    stacks: dict[int, StackedOutput],
    stack_bytes: int,
    bytes_of: Callable[[ir.Value], int | None],
) -> list[int]:
    """Returns the stacks that follow from the loop's carries; none where they take much more."""
    own = {loop.counter, *loop.invariant, *(stack.number for stack in loop.stacks)}
    carried = [number for number in range(len(loop.op.results)) if number not in own]
    carry_bytes = sum(bytes_of(loop.op.results[number]) or 0 for number in carried)
    if loop.is_open or loop.trip_count < _FEWEST:
        return []
    if stack_bytes > _AS_MUCH * carry_bytes * loop.trip_count:
        return []
    arguments = {loop.body.arguments[number] for number in carried}
    return [number for number, stack in stacks.items() if _reads(stack.value, arguments)]


def _reads(value: ir.Value, arguments: set[ir.BlockArgument]) -> bool:
    """Whether a value of a loop's body is computed from one of the body's arguments."""
    open_, seen = [value], {value}
    while open_:
        one = open_.pop()
        if isinstance(one.owner, ir.Block):
            if ir.BlockArgument(one) in arguments:
                return True
            continue
        maker = defining_op(one)
        new = [] if maker is None else [each for each in maker.operands if each not in seen]
        seen.update(new)
        open_ += new
    return False
