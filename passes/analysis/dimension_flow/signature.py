"""Signatures: which axes of an operation's operands and results are the same dimension.

An axis is a sequence of *factors*, the major one first, mostly of one. A factor that is in operands
and in all results is passed through: the operation on chunks gives chunks. One that is in operands
alone is *reduced*, where the operation says how, or else *blocked*: the operation needs all of it.

    dot_general [b, m, k] x [b, k, n] -> [b, m, n]   reduces k: sum
    reshape     [b, s, v]             -> [b·s, v]
    sort        [b, s]                -> [b, t]      s is blocked
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .flow import AxisLayout, Combine

Axis = tuple[int, ...]
"""The factors of an axis by number, the major one first; none where the axis has one element."""

ANY = frozenset(Combine)
SUMS = frozenset({Combine.SUM})
EXTREMES = ANY - SUMS


@dataclass(frozen=True, slots=True)
class FactorReduction:
    """How a factor is reduced.

    Attributes:
      combine: how the terms are combined.
      beside: operands that every chunk would combine with the terms: a reduction's initial value, a
        scatter's operand. They have to be partial themselves, or to change nothing when repeated.
    """

    combine: Combine
    beside: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class LinearGroup:
    """Operands in which, taken together, an operation is linear, while the others are whole.

    Attributes:
      operands: their numbers.
      kinds: of which partial values this holds. A movement of elements commutes with a maximum as
        with a sum.
      rounded: of which others it holds but for the rounding of each term.
    """

    operands: frozenset[int]
    kinds: frozenset[Combine] = SUMS
    rounded: frozenset[Combine] = frozenset()


@dataclass(frozen=True, slots=True)
class FactorPlace:
    """A dimension inside a factor: the factor is [outer, size, inner]."""

    factor: int
    outer: int
    size: int
    inner: int


@dataclass(frozen=True, slots=True)
class Signature:
    """See the module.

    Attributes:
      operands: the factors of each operand's axes.
      results: the factors of each result's axes.
      sizes: the size of each factor, by number.
      reductions: how factors are reduced.
      linear: in which operands the operation is linear.
    """

    operands: tuple[tuple[Axis, ...], ...]
    results: tuple[tuple[Axis, ...], ...]
    sizes: tuple[int, ...]
    reductions: Mapping[int, FactorReduction] = field(default_factory=dict)
    linear: tuple[LinearGroup, ...] = ()

    def place_in(self, axes: Sequence[Axis], layout: AxisLayout) -> FactorPlace | None:
        """Where a layout of an operand or a result is; None where no single factor holds it."""
        below = 1
        for factor in reversed(axes[layout.axis]):
            inner, rest = divmod(layout.inner, below)
            size = self.sizes[factor]
            if not rest and inner and size % (layout.size * inner) == 0:
                return FactorPlace(factor, size // (layout.size * inner), layout.size, inner)
            below *= size
        return None

    def layout_of(self, axes: Sequence[Axis], place: FactorPlace) -> AxisLayout | None:
        """The layout of a dimension in an operand or a result; None where it is not in there."""
        for number, axis in enumerate(axes):
            if place.factor in axis:
                if len(axis) == 1:
                    return AxisLayout(number, place.outer, place.size, place.inner)
                at = axis.index(place.factor)
                major = math.prod(self.sizes[factor] for factor in axis[:at])
                minor = math.prod(self.sizes[factor] for factor in axis[at + 1 :])
                return AxisLayout(number, major * place.outer, place.size, place.inner * minor)
        return None


class SignatureBuilder:
    """Numbers factors while a rule writes a signature."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def factor(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def axis(self, size: int) -> Axis:
        """An axis that is one new factor."""
        return () if size == 1 else (self.factor(size),)

    def axes(self, shape: Sequence[int]) -> list[Axis]:
        """An axis for each size of a shape."""
        return [self.axis(size) for size in shape]

    def signature(
        self,
        operands: Sequence[Sequence[Axis]],
        results: Sequence[Sequence[Axis]],
        reductions: Mapping[int, FactorReduction] | None = None,
        linear: Sequence[LinearGroup] = (),
    ) -> Signature:
        return Signature(
            tuple(map(tuple, operands)),
            tuple(map(tuple, results)),
            tuple(self.sizes),
            reductions or {},
            tuple(linear),
        )


def linear_in(*operands: int, kinds: frozenset[Combine] = SUMS) -> LinearGroup:
    return LinearGroup(frozenset(operands), kinds)
