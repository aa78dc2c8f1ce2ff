"""What a backward body computes that its forward body computed, and what is stored instead."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis.loops.counted import affine_in, defining_op
from hloom.passes.analysis.loops.pairs import LoopPair
from hloom.passes.analysis.purity import is_cheap
from hloom.passes.analysis.value_numbers import BARRIER, ValueNumbers, has_no_effect
from hloom.passes.ir import walk
from hloom.passes.ir.types import tensor_bytes


def paired(numbers: ValueNumbers, pair: LoopPair) -> ValueNumbers:
    """Numbers in which values of two bodies are equal that are so in iterations with one index.

    ``numbers`` are those of the values around the loops.
    """
    inside = numbers.copy()
    for loop in (pair.forward, pair.backward):
        for number in loop.invariant:
            inside.equate(loop.body.arguments[number], loop.op.operands[number])
    for residual in pair.residuals:
        for read in residual.reads:
            inside.equate(read, residual.stored)
    if not pair.forward.is_open:
        index = pair.residuals[0].stack.update.operands[2]
        for value in _indices(pair):
            inside.equate(value, index)
    return inside


def _indices(pair: LoopPair) -> Iterable[ir.Value]:
    """The values of the backward body that are its index of the stacks, however computed."""
    counter = pair.backward.body.arguments[pair.backward.counter]
    line = affine_in(pair.index, counter)
    yield pair.index
    for view in pair.backward.body.operations:
        op = view.operation
        if len(op.results) == 1 and op.results[0].type == pair.index.type:
            if line is not None and affine_in(op.results[0], counter) == line:
                yield op.results[0]


def may_compute_again(pair: LoopPair) -> bool:
    """Whether a backward body has work that looks like some of the forward body and is not cheap.

    Most have none, and numbering takes longer than to see that.
    """
    done = {_looks(op) for op in _expensive(pair.forward.body)}
    return any(_looks(op) in done for op in _expensive(pair.backward.body))


def _expensive(block: ir.Block) -> Iterable[ir.Operation]:
    for view in block.operations:
        op = view.operation
        if op.name != BARRIER and len(op.results) and not is_cheap(op) and has_no_effect(op):
            yield op


def _looks(op: ir.Operation) -> Hashable:
    if len(op.regions):
        return op.name  # what is in them may be found again in parts
    attributes = walk.readable_attributes(op)
    types = tuple(value.type for value in (*op.operands, *op.results))
    return op.name, types, tuple(attributes.items())


@dataclass(frozen=True)
class Brought:
    """What a backward body is to read instead of computing it.

    Attributes:
      values: by value of the backward body, the value of the forward body that it equals.
      again: the operations of the backward body that compute what the forward body computed.
    """

    values: dict[ir.Value, ir.Value]
    again: tuple[ir.Operation, ...]

    @property
    def is_worthwhile(self) -> bool:
        """Whether more than cheap work is spared."""
        return not all(is_cheap(op) for op in self.again)


class BackwardBody:
    """A backward body, and which of its values equal values of the forward body."""

    def __init__(self, pair: LoopPair, numbers: ValueNumbers) -> None:
        self.pair, self.numbers = pair, numbers
        self.ops = [view.operation for view in pair.backward.body.operations]
        self._reads = {read for residual in pair.residuals for read in residual.reads}

    @functools.cached_property
    def forward_values(self) -> dict[int, ir.Value]:
        """The first value of the forward body with each number."""
        found: dict[int, ir.Value] = {}
        body = self.pair.forward.body
        for value in (*body.arguments, *_results(body)):
            found.setdefault(self.numbers.of(value), value)
        return found

    @functools.cached_property
    def _varying(self) -> set[ir.Value]:
        """Values that depend on a residual or on what the backward loop carries.

        The others depend on constants, the counter and what the loop reads from outside alone.
        """
        body, loop = self.pair.backward.body, self.pair.backward
        found: set[ir.Value] = {
            argument
            for number, argument in enumerate(body.arguments)
            if number not in loop.invariant and number != loop.counter
        }
        found |= self._reads
        for op in self.ops:
            if op.name != BARRIER and not found.isdisjoint(map(_handed_on, walk.values_read(op))):
                found.update(op.results)
        return found

    def _is_again(self, op: ir.Operation) -> bool:
        """Whether the operation computes what the forward body computed."""
        return (
            len(op.results) > 0
            and has_no_effect(op)
            and self._reads.isdisjoint(op.results)
            and self.numbers.same(op.results[0]) is None
            and all(self.numbers.of(result) in self.forward_values for result in op.results)
        )

    def brought(self) -> Brought:
        """What can be stored so that nothing is computed again but what is cheap and larger than
        what it is made of."""
        again = {walk.key(op): op for op in self.ops if self._is_again(op)}
        needed: set[ir.Value] = set()
        values: dict[ir.Value, ir.Value] = {}
        spared = []
        for op in reversed(self.ops):
            wanted = [result for result in op.results if result in needed]
            if op.name == BARRIER:
                continue  # what is read of it is taken for read of what it hands on
            if len(op.results) and walk.key(op) in again:
                if not wanted:
                    spared.append(op)
                    continue
                if not self._stays(op) and self._is_behind_index(op):
                    values.update(
                        (result, self.forward_values[self.numbers.of(result)]) for result in wanted
                    )
                    spared.append(op)
                    continue
            needed.update(map(_handed_on, walk.values_read(op)))
        return Brought(values, tuple(reversed(spared)))

    def _stays(self, op: ir.Operation) -> bool:
        """Whether computing it again is better than storing it."""
        varying = {value for value in walk.values_read(op) if _handed_on(value) in self._varying}
        if not is_cheap(op):
            return False
        return not varying or _bytes(varying) < _bytes(op.results)

    def _is_behind_index(self, op: ir.Operation) -> bool:
        index = defining_op(self.pair.index)
        return index is None or index.is_before_in_block(op)


def _results(block: ir.Block) -> Iterable[ir.Value]:
    for view in block.operations:
        yield from view.operation.results


def _handed_on(value: ir.Value) -> ir.Value:
    """What a value equals in front of barriers."""
    while (op := defining_op(value)) is not None and op.name == BARRIER:
        value = op.operands[ir.OpResult(value).result_number]
    return value


def _bytes(values: Iterable[ir.Value]) -> int:
    return sum(tensor_bytes(value.type) or 0 for value in values)
