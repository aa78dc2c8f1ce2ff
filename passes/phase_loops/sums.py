"""Where partial values are summed: for all that is needed of them outside of the loops together.

Behind a sum there is mostly linear work: a transpose, a conversion, `0.1 * g`. All that is made of
one value by such work alone can be made of its sum, once, after the loop. So each value that is
needed has a chain of values where its loop may be left instead, and chains meet: an optimizer reads
a gradient for its mean and for its square. Accumulators take the least memory together where they
are taken at the right ones of these.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from hloom.passes.analysis.dimension_flow.result import linear_chain
from hloom.passes.ir.op_facts import FlowRule
from hloom.passes.ir.types import element_bits
from hloom.passes.phase_loops.leaving import AccumulatorRule, leaving
from hloom.passes.phase_loops.program import LoopProgram


@dataclass(frozen=True, order=True, slots=True)
class _Cost:
    """What accumulators cost; the less the better, in this order.

    Attributes:
      bits: their size.
      rounded: how many values of the accumulator's type would be made of a sum that was rounded to
        a narrower one.
      narrow: how many of the accumulators have another type than their terms.
    """

    bits: int = 0
    rounded: int = 0
    narrow: int = 0

    def __add__(self, other: _Cost) -> _Cost:
        return _Cost(
            self.bits + other.bits, self.rounded + other.rounded, self.narrow + other.narrow
        )


@dataclass(frozen=True)
class SumPlaces:
    """Which values are made of the sums of others.

    Attributes:
      followers: partial values that are needed outside, or lead to such, and are made of sums.
      widened: by a value that is summed in a wider type the conversions of it to that type: they
        are its sum, which nothing rounds in between.
    """

    followers: frozenset[int]
    widened: dict[int, tuple[int, ...]]

    @classmethod
    def of(cls, program: LoopProgram, rule: AccumulatorRule) -> SumPlaces:
        """The places where accumulators take the least memory; of equals the earliest."""
        return _Finder(program, rule).found()


@dataclass
class _Finder:
    program: LoopProgram
    rule: AccumulatorRule
    needed: set[int] = field(default_factory=set)
    parents: dict[int, int] = field(default_factory=dict)
    children: dict[int, list[int]] = field(default_factory=dict)

    def found(self) -> SumPlaces:
        program = self.program
        for each in program.flow.exits:
            if each.flow.is_partial:
                number = program.behind(program.program.index[each.value])
                self.needed.add(number)
                self._add_chain(number)
        costs: dict[int, _Cost] = {}
        taken: set[int] = set()
        for number in sorted({*self.needed, *self.children}, reverse=True):
            here = self._cost(number)
            later = sum((costs[child] for child in self.children.get(number, ())), _Cost())
            if number in self.needed or here <= later:
                taken.add(number)
                later = here
            costs[number] = later
        followers: set[int] = set()
        for number in sorted(self.parents):
            if self.parents[number] in taken or self.parents[number] in followers:
                followers.add(number)
        widened = {number: self._widened(number) for number in taken - followers}
        return SumPlaces(frozenset(followers), {at: wide for at, wide in widened.items() if wide})

    def _add_chain(self, number: int) -> None:
        chain = linear_chain(number, self.program.of, self.program.maker)
        for child, parent in itertools.pairwise(chain):
            if child in self.parents:
                return
            self.parents[child] = parent
            self.children.setdefault(parent, []).append(child)

    def _cost(self, number: int) -> _Cost:
        element = leaving(self.program, number, self.rule).element
        bits = math.prod(self.program.program.shapes[number] or ()) * (element_bits(element) or 0)
        if element == self._element(number):
            return _Cost(bits)
        return _Cost(bits, self._rounded(number, element), 1)

    def _rounded(self, number: int, element: ir.Type) -> int:
        """The values of an element type that would be made of the rounded sum of another value."""
        widened = self._widened(number)
        waiting = [each for each in self.children.get(number, ()) if each not in widened]
        count = 0
        while waiting:
            value = waiting.pop()
            count += value in self.needed and self._element(value) == element
            waiting += self.children.get(value, ())
        return count

    def _widened(self, number: int) -> tuple[int, ...]:
        element = leaving(self.program, number, self.rule).element
        if element == self._element(number):
            return ()
        return tuple(
            child
            for child in sorted(self.children.get(number, ()))
            if self._element(child) == element and self._is_conversion(child)
        )

    def _is_conversion(self, number: int) -> bool:
        node = self.program.maker(number)
        return node is not None and node.rule is FlowRule.CONVERT

    def _element(self, number: int) -> ir.Type:
        return ir.ShapedType(self.program.program.values[number].type).element_type
