"""Decides which values leave a loop, in which type they are accumulated, and where sums are taken.

After a sum there is mostly linear work: a transpose, a conversion, `0.1 * g`. Values computed from
one value by such work alone can be computed from its sum, once, after the loop. So each value that
is needed outside has a chain of values where its loop may be left instead, and chains meet: an
optimizer reads a gradient for its mean and for its square. Sums are taken at those of these values
whose accumulators take the least memory together.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..analysis.dimension_flow.flow import Flow
from ..analysis.dimension_flow.result import linear_chain
from ..analysis.reach import reached
from ..analysis.signatures.signature import Combine
from ..framework.errors import NotPossibleError
from ..ir.build import zeros
from ..ir.types import element_bits, sum_element
from ..ir.values import element_of
from .device_terms import DeviceTerms
from .program import LoopProgram

AccumulatorRule = Callable[[ir.Value], ir.Type]
"""Returns the element type in which the terms of a partial value are added up."""


class Leaves(enum.StrEnum):
    """The way in which a value leaves a loop."""

    STACKED = "stacked"
    """Its chunks are written one after another."""
    ACCUMULATED = "accumulated"
    """Its terms are combined."""
    SAME = "same"
    """It is the same in all chunks: the last one's."""


@dataclass(frozen=True)
class LoopExit:
    """A value that leaves a loop.

    Attributes:
      number: the value's number.
      flow: its flow in the loop.
      leaves: the way in which it leaves the loop.
      element: the element type that it has in the loop's carry.
      sent: the element type in which devices that have a term each would combine them: the type of
        the value before it is converted to a wider one.
      rounds: a term that is a product is rounded to its own type before it is added, as devices
        send it. Otherwise it is computed in the accumulator's type.
      widened: values, by number, that are conversions to the accumulator's type: they equal the
        sum.
      scattered: for a sum over several devices, the axis along which each of them gets a part of
        the sum; None where it gets all of it.
      terms: the sharding in which each device adds up its own terms, where XLA divides the loop;
        None where they exchange them with each chunk, if at all.
    """

    number: int
    value: ir.Value
    type: ir.Type
    flow: Flow
    leaves: Leaves
    element: ir.Type
    sent: ir.Type
    rounds: bool = False
    widened: tuple[int, ...] = ()
    scattered: int | None = None
    terms: DeviceTerms | None = None

    def __str__(self) -> str:
        text = f"{self.type}, {self.leaves}"
        if self.element != ir.ShapedType(self.type).element_type:
            text = f"{text} in {self.element}"
        return text if self.terms is None else f"{text} on each of {self.terms.devices} devices"


def own_type(value: ir.Value) -> ir.Type:
    """Returns the terms' own type as the accumulator's."""
    return element_of(value)


def widened(value: ir.Value) -> ir.Type:
    """Returns float32 as the accumulator's type for narrower floating-point types."""
    return sum_element(element_of(value))


def leaving(program: LoopProgram, number: int, rule: AccumulatorRule) -> LoopExit:
    """Returns how a value leaves the loop that makes it."""
    flow, value = program.of(number), program.program.values[number]
    own = element_of(value)
    if flow.is_split:
        return LoopExit(number, value, value.type, flow, Leaves.STACKED, own, own)
    if flow.is_partial and flow.combine is not None:
        if not has_identity(own, flow.combine):
            node = program.maker(number)
            reason = f"a {flow.combine} of {own} has no value to start with"
            raise NotPossibleError(reason, None if node is None else node.op)
        element = rule(value) if flow.combine is Combine.SUM else own
        return LoopExit(
            number, value, value.type, flow, Leaves.ACCUMULATED, element, _sent(program, number)
        )
    return LoopExit(number, value, value.type, flow, Leaves.SAME, own, own)


def _sent(program: LoopProgram, number: int) -> ir.Type:
    own = element_of(program.program.values[number])
    node = program.maker(number)
    if node is None or node.name != "stablehlo.convert":
        return own
    before = element_of(program.program.values[node.operands[0]])
    return before if isinstance(before, ir.FloatType) else own


@dataclass(frozen=True, order=True, slots=True)
class _Cost:
    """The cost of accumulators; less is better, in this order.

    Attributes:
      bits: their size.
      rounded: how many values of the accumulator's type would be computed from a sum that was
        rounded to a narrower one.
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
    """The values that are computed from the sums of others.

    Attributes:
      followers: partial values that are needed outside, or lead to such, and are computed from
        sums.
      widened: by a value that is summed in a wider type, its conversions to that type: they equal
        its sum, without rounding in between.
    """

    followers: frozenset[int]
    widened: dict[int, tuple[int, ...]]

    @classmethod
    def of(cls, program: LoopProgram, rule: AccumulatorRule) -> SumPlaces:
        """Returns the places where accumulators take the least memory; of equals the earliest."""
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
        """Returns the number of values of an element type that would use another's rounded sum."""
        widened = self._widened(number)
        rounded = (each for each in self.children.get(number, ()) if each not in widened)
        below = reached(rounded, lambda value: self.children.get(value, ()))
        return sum(value in self.needed and self._element(value) == element for value in below)

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
        return node is not None and node.name == "stablehlo.convert"

    def _element(self, number: int) -> ir.Type:
        return element_of(self.program.program.values[number])


COMBINES: Mapping[Combine, Callable[..., ir.Value]] = {
    Combine.SUM: stablehlo.add,
    Combine.MAX: stablehlo.maximum,
    Combine.MIN: stablehlo.minimum,
}


def has_identity(element: ir.Type, combine: Combine) -> bool:
    """Whether an element changes nothing when it is combined with any other."""
    if combine is Combine.SUM:
        return True
    return isinstance(element, ir.IntegerType) or _infinity(element, combine) is not None


def identity(type_: ir.RankedTensorType, combine: Combine) -> ir.Value:
    """Returns a tensor of elements that change nothing when they are combined with others."""
    if combine is Combine.SUM:
        return zeros(type_)
    element = type_.element_type
    attribute = _infinity(element, combine)
    if attribute is None:
        attribute = _integer(ir.IntegerType(element), combine)
    return stablehlo.constant(ir.DenseElementsAttr.get_splat(type_, attribute))


def _infinity(element: ir.Type, combine: Combine) -> ir.Attribute | None:
    """Returns infinity; None for types without one."""
    if not isinstance(element, ir.FloatType):
        return None
    wanted = -math.inf if combine is Combine.MAX else math.inf
    attribute = ir.FloatAttr.get(element, wanted, ir.Location.unknown(element.context))
    return attribute if attribute.value == wanted else None


def _integer(element: ir.IntegerType, combine: Combine) -> ir.Attribute:
    """Returns the least or the greatest integer of a type; for booleans false or true."""
    width = int(element.width)
    if width == 1 or element.is_unsigned:
        number = 0 if combine is Combine.MAX else 2**width - 1
    else:
        number = -(2 ** (width - 1)) if combine is Combine.MAX else 2 ** (width - 1) - 1
    if width == 1:
        return ir.BoolAttr.get(bool(number))
    return ir.IntegerAttr.get(element, number)
