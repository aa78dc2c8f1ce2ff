"""Divides each loop of a backward pass in two: for gradients of inputs, and for those of weights.

The backward loop of a scan carries the gradient of the layer's input from one iteration to the
next, and stacks, or sums, the gradients of weights. The first loop computes the gradient of the
input, and stacks the operands of the weights' products that the second loop cannot compute from
residuals: mostly the cotangents of the layer's own products. The second loop reads a slice of each
stack in an iteration.

A loop stays whole, in the first program, where its trip count is known only at run time, where it
has sharding attributes for each carry, and where the gradients of weights take no expensive work
that those of inputs do not need. Loops inside of a divided one are divided, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis.device import DeviceView
from hloom.passes.analysis.loops.counted import CountedLoop
from hloom.passes.analysis.program import FROM_OUTSIDE, Program
from hloom.passes.ir.build import (
    Box,
    counted_while,
    integer_like,
    reshaped,
    slice_of_stack,
    typed,
    zeros,
)
from hloom.passes.ir.erase import erase
from hloom.passes.ir.values import is_read, shape_of
from hloom_steps.split.copies import copy_ops
from hloom_steps.split.divide import Division, Part, divided
from hloom_steps.split.flow import CarryFlow

Free = Callable[[ir.Value], bool]


def divide_loops(
    program: Program, positions: Iterable[int], of_inputs: Iterable[int], free: Free
) -> None:
    """Divides loops of a block, in place.

    Args:
      program: the block.
      positions: the positions of the operations that may be divided.
      of_inputs: the values that the program of the inputs' gradients returns.
      free: whether a value of the block is held anyway, e.g. an argument of the caller.
    """
    flow = CarryFlow(program)
    needed = flow.behind(of_inputs)
    for position in positions:
        results = program.results[position]
        wanted = [number for number, value in enumerate(results) if value in needed]
        loop = flow.loop(position) if wanted else None
        if loop is not None:
            read = [number for number in range(len(results)) if is_read(loop.op.results[number])]
            first, all_ = (flow.carries(position, each) for each in (wanted, read))
            _LoopDivision(loop, first, all_ - first, program.device, free).write()


@dataclass(frozen=True)
class _Carries:
    """The numbers of a loop's carries, without its counter and unchanged ones.

    Attributes:
      inputs: the carries that gradients of inputs need.
      weights: the other carries that are read.
    """

    inputs: tuple[int, ...]
    weights: tuple[int, ...]


class _LoopDivision:
    """One loop, to be divided."""

    def __init__(
        self,
        loop: CountedLoop,
        inputs: Collection[int],
        weights: Collection[int],
        device: DeviceView,
        free: Free,
    ) -> None:
        """Takes the carries that gradients of inputs need, and the others that are read."""
        self._loop, self._device, self._free = loop, device, free
        same = loop.invariant | {loop.counter}
        self._carries = _Carries(
            tuple(sorted(set(inputs) - same)), tuple(sorted(set(weights) - same))
        )

    def write(self) -> None:
        """Replaces the loop by two, where that moves work to the second."""
        if not self._carries.weights:
            return
        body = Program(self._loop.body, self._device)
        given = [body.index[self._loop.returned.operands[each]] for each in self._carries.inputs]
        divide_loops(body, range(len(body.ops)), given, self._is_free)
        division = self._division()
        if division.moves_work and division.can_hand_on:
            _TwoLoops(self._loop, self._carries, division).write()

    def _division(self) -> Division:
        loop, carries = self._loop, self._carries
        program = Program(loop.body, self._device)
        ops = range(len(program.ops) - 1)
        returned = [program.index[value] for value in loop.returned.operands]
        return divided(
            program,
            ops,
            [returned[number] for number in carries.inputs],
            [returned[number] for number in carries.weights],
            lambda value: self._held_bytes(program, value),
            (carries.inputs, carries.weights),
        )

    def _held_bytes(self, program: Program, value: int) -> int:
        """Returns the bytes that hold a value of the body for all iterations."""
        if self._is_free(program.values[value]):
            return 0
        made = program.producers[value] != FROM_OUTSIDE or value in self._carries.inputs
        return program.bytes_of(value) * (self._loop.trip_count if made else 1)

    def _is_free(self, value: ir.Value) -> bool:
        """Whether a value of the body is held anyway."""
        owner = value.owner
        if not isinstance(owner, ir.Block):
            return owner.operation.block != self._loop.body and self._free(value)
        if owner != self._loop.body:
            return self._free(value)
        number = ir.BlockArgument(value).arg_number
        if number == self._loop.counter:
            return True
        return number in self._loop.invariant and self._free(self._loop.op.operands[number])


class _TwoLoops:
    """Writes the two loops that replace one."""

    def __init__(self, loop: CountedLoop, carries: _Carries, division: Division) -> None:
        self._loop, self._carries, self._division = loop, carries, division
        self._program = division.program

    def write(self) -> None:
        op, loop = self._loop.op, self._loop
        values = self._program.values
        handed = [values[value] for value in self._division.handed]
        with ir.InsertionPoint(op), op.location:
            stacks = [zeros(typed(value, [loop.trip_count, *shape_of(value)])) for value in handed]
            first = self._loop_of(self._division.inputs, self._carries.inputs, stacks, ())
            count = len(self._carries.inputs)
            made = list(first[count : count + len(stacks)])
            second = self._loop_of(self._division.weights, self._carries.weights, (), made)
            results = dict(zip(self._carries.inputs, first, strict=False))
            results |= dict(zip(self._carries.weights, second, strict=False))
            if is_read(op.results[loop.counter]):
                results[loop.counter] = integer_like(op.operands[loop.counter], loop.trip_count)
        results |= {number: op.operands[number] for number in loop.invariant}
        for number, value in results.items():
            op.results[number].replace_all_uses_with(value)
        erase(op)

    def _loop_of(
        self,
        part: Part,
        carries: Sequence[int],
        written: Sequence[ir.Value],
        read: Sequence[ir.Value],
    ) -> Sequence[ir.Value]:
        """Writes the loop of a part; returns its carries after the last iteration, then its stacks.

        Args:
          part: the operations of an iteration.
          carries: the numbers of its carries.
          written: the stacks of zeros into which it writes the values for the second loop.
          read: the stacks from which it reads such values.
        """
        op, values = self._loop.op, self._program.values
        invariant = [value for value in part.read if value in self._loop.invariant]
        handed = [values[value] for value in self._division.handed]
        ops = [self._program.ops[position] for position in part.positions]
        starts = [op.operands[number] for number in carries]
        same = [*(op.operands[number] for number in invariant), *read]
        arguments = self._loop.body.arguments

        def iteration(count: ir.Value, carried: Sequence[ir.Value]) -> Sequence[ir.Value]:
            stacks = carried[len(starts) : len(starts) + len(written)]
            others = carried[len(starts) + len(written) :]
            known: dict[ir.Value, ir.Value] = {arguments[self._loop.counter]: count}
            numbers = [*carries, *invariant]
            given = [*carried[: len(starts)], *others]
            known.update((arguments[n], v) for n, v in zip(numbers, given, strict=False))
            for value, stack in zip(handed, others[len(invariant) :], strict=False):
                known[value] = reshaped(slice_of_stack(stack, count), shape_of(value))
            copy_ops(ops, known)
            values_returned = [self._loop.returned.operands[number] for number in carries]
            returned = [known.get(value, value) for value in values_returned]
            box = Box({0: (count, 1)}, integer_like(count, 0))
            updated = [
                box.update(stack, reshaped(known[value], [1, *shape_of(value)]))
                for value, stack in zip(handed, stacks, strict=False)
            ]
            return [*returned, *updated, *others]

        counter = op.operands[self._loop.counter]
        return counted_while(self._loop.trip_count, [counter, *starts, *written, *same], iteration)
