"""Reads a loop over layers as segments: the stacks that it reads and writes slice by slice.

Values that a loop indexes by its counter stay on the device whose segment the iteration is in:
weights, residuals, gradients of weights. Values that it carries from iteration to iteration travel.
A carry that is only added to, e.g. the gradient of a weight that all layers share, need not: each
device adds up the terms of its own layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.loops.counted import CountedLoop, StackRead
from ..analysis.program import Node, Program
from ..framework.errors import NotPossibleError


@dataclass(frozen=True)
class LayerLoop:
    """A loop over layers.

    Attributes:
      node: the loop in the program of its block.
      slope: 1 where iteration i runs layer i, -1 where it runs the i-th from the end.
      everywhere: carries that it never changes, of which it reads all in an iteration, by number.
      carried: those that it changes, stacks that it writes and its counter left out.
    """

    loop: CountedLoop
    node: Node
    read: tuple[StackRead, ...]
    slope: int
    everywhere: tuple[int, ...]
    carried: tuple[int, ...]

    @property
    def layers(self) -> int:
        return self.loop.trip_count

    @property
    def stacks(self) -> tuple[ir.Value, ...]:
        """Returns the stacks that it reads, outside of it, and those that it makes."""
        made = (self.loop.op.results[each.number] for each in self.loop.stacks)
        return (*(each.value for each in self.read), *made)


def stacks_read(loop: CountedLoop, node: Node, program: Program) -> Iterator[StackRead]:
    """Yields the stacks that a loop reads by its counter alone."""
    for each in loop.read(program.values[number] for number in node.captures):
        if all(map(loop.slope, each.slices)):
            yield each


def layer_loop(loop: CountedLoop, node: Node, read: tuple[StackRead, ...]) -> LayerLoop:
    """Reads the loop as one over layers. Raises NotPossibleError where stacks run both ways."""
    slopes = {loop.slope(op): op for stack in read for op in stack.slices}
    slopes |= {stack.slope: stack.update for stack in loop.stacks}
    if len(slopes) != 1:
        raise NotPossibleError(
            "some of the loop's stacks are indexed by its counter, and some from their end; one "
            "segment would need layers of two devices",
            list(slopes.values())[-1],
        )
    stacks = {each.number for each in read}
    written = {stack.number for stack in loop.stacks}
    others = [number for number in range(len(loop.op.operands)) if number != loop.counter]
    return LayerLoop(
        loop,
        node,
        read,
        next(iter(slopes)),
        tuple(each for each in others if each in loop.invariant and each not in stacks),
        tuple(each for each in others if each not in loop.invariant and each not in written),
    )


def odd_reader(loop: CountedLoop, inside: ir.Value) -> ir.Operation | None:
    """Returns an operation that reads another part of a value than the iteration's slice."""
    return next((op for op in loop.readers(inside) if not loop.slope(op)), None)
