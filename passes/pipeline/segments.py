"""Reads a loop over layers as segments: the stacks that it reads and writes slice by slice.

Values that a loop indexes by its counter stay on the device whose segment the iteration is in:
weights, residuals, gradients of weights. Values that it carries from iteration to iteration travel.
A carry that is only added to, e.g. the gradient of a weight that all layers share, need not: each
device adds up the terms of its own layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.loops.counted import CountedLoop, affine_in
from ..analysis.program import Node, Program
from ..framework.errors import NotPossibleError
from ..ir import walk
from ..ir.values import constant_int, defining_op, shape_of

_SLICE = "stablehlo.dynamic_slice"


@dataclass(frozen=True)
class LayerStack:
    """A stack of which a loop reads the slice of its iteration alone.

    Attributes:
      value: the stack outside of the loop.
      inside: the stack in the body: an argument that is never changed, or the value itself.
      slices: the operations that read it.
    """

    value: ir.Value
    inside: ir.Value
    slices: tuple[ir.Operation, ...]


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
    read: tuple[LayerStack, ...]
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


def stacks_read(loop: CountedLoop, node: Node, program: Program) -> Iterator[LayerStack]:
    """Yields the stacks that a loop reads by its counter alone."""
    body = loop.body
    inside = {body.arguments[number]: loop.op.operands[number] for number in sorted(loop.invariant)}
    inside |= {program.values[number]: program.values[number] for number in node.captures}
    for value, outside in inside.items():
        readers = _readers(value, loop)
        if readers and all(_slope(each, value, loop) for each in readers):
            yield LayerStack(outside, value, tuple(readers))


def layer_loop(loop: CountedLoop, node: Node, read: tuple[LayerStack, ...]) -> LayerLoop:
    """Reads the loop as one over layers. Raises NotPossibleError where stacks run both ways."""
    slopes = {_slope(op, stack.inside, loop): op for stack in read for op in stack.slices}
    slopes |= {stack.slope: stack.update for stack in loop.stacks}
    if len(slopes) != 1:
        raise NotPossibleError(
            "some of the loop's stacks are indexed by its counter, and some from their end; one "
            "segment would need layers of two devices",
            list(slopes.values())[-1],
        )
    arguments: list[ir.Value] = list(loop.body.arguments)
    stacks = {arguments.index(each.inside) for each in read if each.inside in arguments}
    written = {stack.number for stack in loop.stacks}
    others = [number for number in range(len(arguments)) if number != loop.counter]
    return LayerLoop(
        loop,
        node,
        read,
        next(iter(slopes)),
        tuple(each for each in others if each in loop.invariant and each not in stacks),
        tuple(each for each in others if each not in loop.invariant and each not in written),
    )


def odd_reader(loop: CountedLoop, value: ir.Value) -> ir.Operation | None:
    """Returns an operation that reads another part of a value than the iteration's slice."""
    readers = _readers(value, loop)
    return next((each for each in readers if not _slope(each, value, loop)), None)


def additions(loop: CountedLoop, number: int) -> Mapping[ir.Value, int] | None:
    """Returns the additions of a carry that the body only adds to.

    They map the result of each to the operand that is the partial sum. None for another carry.
    """
    found: dict[ir.Value, int] = {}
    value: ir.Value = loop.body.arguments[number]
    while True:
        uses = list(value.uses)
        if len(uses) != 1:
            return None
        [use] = uses
        op = use.owner.operation
        if op == loop.returned:
            return found if use.operand_number == number and found else None
        if op.name != "stablehlo.add" or op.block != loop.body:
            return None
        value = op.results[0]
        found[value] = use.operand_number


def _readers(value: ir.Value, loop: CountedLoop) -> list[ir.Operation]:
    """Returns the operations in the body, at any nesting, that read a value, each once.

    Returning an argument unchanged does not count as reading.
    """
    found: dict[object, ir.Operation] = {}
    for use in value.uses:
        op = use.owner.operation
        if op == loop.returned or not _is_inside(op, loop.op):
            continue
        found[walk.key(op) if len(op.results) else len(found)] = op
    return list(reversed(found.values()))


def _is_inside(op: ir.Operation, loop: ir.Operation) -> bool:
    return any(each == loop for each in walk.ancestors(op.block))


def _slope(op: ir.Operation, value: ir.Value, loop: CountedLoop) -> int:
    """Returns 1 or -1 where an operation reads the slice of the iteration; 0 where it does not."""
    shape, trips = shape_of(value), loop.trip_count
    if op.name != _SLICE or op.operands[0] != value or not shape or shape[0] != trips:
        return 0
    if defining_op(value) is None and value in list(op.operands)[1:]:
        return 0
    if walk.integers(op, "slice_sizes") != [1, *shape[1:]]:
        return 0
    first, *others = list(op.operands)[1:]
    if any(constant_int(start) != 0 for start in others):
        return 0
    line = affine_in(first, loop.body.arguments[loop.counter])
    return {(1, 0): 1, (-1, trips - 1): -1}.get(line, 0) if line else 0
