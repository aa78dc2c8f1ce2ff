"""What a backward body computes that its forward body computed, and what is stored instead."""

from __future__ import annotations

import functools
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.loops.counted import affine_in
from ..analysis.loops.pairs import LoopPair
from ..analysis.mincut import minimum_vertex_cut
from ..analysis.pricing import Pricing
from ..analysis.purity import is_cheap
from ..analysis.value_numbers import BARRIER, ValueNumbers, has_no_effect
from ..ir import walk
from ..ir.types import tensor_bytes
from ..ir.values import defining_op

_UNIT_S = 1e-12
"""What a unit of the cut's weights is."""


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
    for value in _results(pair.backward.body) if line is not None else ():
        if value.type == pair.index.type and affine_in(value, counter) == line:
            yield value


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

    def __init__(self, pair: LoopPair, numbers: ValueNumbers, pricing: Pricing) -> None:
        self.pair, self.numbers, self.pricing = pair, numbers, pricing
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

    def brought(self) -> Brought:
        """What to store so that a step takes the least time.

        A value costs the time to write and to read it, or that of its operation once more, whose
        operands have to be there then. The least sum is a minimum cut.
        """
        again = [op for op in self.ops if self._is_again(op)]
        computed = {result for op in again for result in op.results}
        wanted = {
            value
            for op in self.ops
            if op.name != BARRIER and not (len(op.results) and op.results[0] in computed)
            for value in map(_handed_on, walk.values_read(op))
            if value in computed
        }
        stored = self._stored(again, wanted)
        values: dict[ir.Value, ir.Value] = {}
        spared = []
        for op in reversed(again):
            here = [result for result in op.results if result in wanted]
            if not stored.issuperset(here):
                wanted.update(map(_handed_on, walk.values_read(op)))
                continue
            values |= {one: self.forward_values[self.numbers.of(one)] for one in here}
            spared.append(op)
        return Brought(values, tuple(reversed(spared)))

    def _is_again(self, op: ir.Operation) -> bool:
        """Whether the operation computes what the forward body computed."""
        return (
            len(op.results) > 0
            and op.name != BARRIER
            and has_no_effect(op)
            and self._reads.isdisjoint(op.results)
            and self.numbers.same(op.results[0]) is None
            and all(self.numbers.of(result) in self.forward_values for result in op.results)
        )

    def _stored(self, again: list[ir.Operation], wanted: Collection[ir.Value]) -> set[ir.Value]:
        """Of the values that some operations compute again, those that are to be stored."""
        index: dict[ir.Value, int] = {}
        weights: list[int] = []
        prices: dict[int, int] = {}
        edges: list[tuple[int, int]] = []
        sources: list[int] = []
        # As much as everything once more: what cannot be stored is computed again.
        most = sum(len(op.results) * int(self.pricing.seconds(op) / _UNIT_S + 1) for op in again)
        for op in again:
            read = list(dict.fromkeys(map(_handed_on, walk.values_read(op))))
            for value in read:
                if value not in index:
                    index[value] = len(weights)
                    sources.append(len(weights))
                    weights.append(0)
            for result in op.results:
                index[result] = len(weights)
                edges += [(index[value], index[result]) for value in read]
                prices[index[result]] = int(self.pricing.seconds(op) / _UNIT_S)
                weights.append(self._weight(op, result, most))
        cut = minimum_vertex_cut(weights, edges, sources, [index[one] for one in wanted], prices)
        return {value for value, number in index.items() if number in cut}

    def _weight(self, op: ir.Operation, value: ir.Value, most: int) -> int:
        """What it costs to store a value, ``most`` where it cannot be stored."""
        size_bytes = tensor_bytes(value.type)
        maker = defining_op(self.pair.index)
        if size_bytes is None or not (maker is None or maker.is_before_in_block(op)):
            return most
        speed = self.pricing.speed
        return int(max(2 * size_bytes / speed.bytes_per_s, speed.kernel_s) / _UNIT_S)


def _results(block: ir.Block) -> Iterable[ir.Value]:
    for view in block.operations:
        yield from view.operation.results


def _handed_on(value: ir.Value) -> ir.Value:
    """What a value equals in front of barriers."""
    while (op := defining_op(value)) is not None and op.name == BARRIER:
        value = op.operands[ir.OpResult(value).result_number]
    return value
