"""Signatures: which axes of an operation's operands and results are the same dimension.

An axis is a sequence of *factors*, the major one first, mostly of one. A factor that is in operands
and in all results is passed through: the operation on chunks gives chunks. One that is in operands
alone is *reduced*, where the operation says how, or else *blocked*: the operation needs all of it.

    dot_general [b, m, k] x [b, k, n] -> [b, m, n]   reduces k: sum
    reshape     [b, s, v]             -> [b·s, v]
    sort        [b, s]                -> [b, t]      s is blocked
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class Combine(enum.StrEnum):
    """The operation that combines the terms of a partial value."""

    SUM = "sum"
    MAX = "maximum"
    MIN = "minimum"


Axis = tuple[int, ...]
"""The factors of an axis by number, the major one first; none where the axis has one element."""

ANY = frozenset(Combine)
SUMS = frozenset({Combine.SUM})
EXTREMES = ANY - SUMS


@dataclass(frozen=True, slots=True)
class AxisLayout:
    """The place of a dimension in an axis: the axis is [outer, size, inner], and size is cut.

    All of a dimension's layouts have its size. In a reshape of [B, S] to [B·S], the dimension B is
    (1, B, S) in the result, and S is (B, S, 1). A batch that is sharded over D devices is cut as
    (D, B/D, 1), so that each chunk has a part on each of them.
    """

    axis: int
    outer: int
    size: int
    inner: int

    @property
    def length(self) -> int:
        """Returns the length of the axis."""
        return self.outer * self.size * self.inner

    def __str__(self) -> str:
        if self.outer == self.inner == 1:
            return f"axis {self.axis}"
        return f"axis {self.axis} as [{self.outer}, {self.size}, {self.inner}]"


@dataclass(frozen=True, slots=True)
class FactorReduction:
    """The reduction of a factor.

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
      kinds: the kinds of partial values for which this holds. A movement of elements commutes with
        a maximum as with a sum.
      rounded: the other kinds for which it holds up to the rounding of each term.
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
    """The factors of an operation's operands and results, as the module's docstring defines them.

    Attributes:
      operands: the factors of each operand's axes.
      results: the factors of each result's axes.
      sizes: the size of each factor, by number.
      reductions: how factors are reduced.
      linear: the groups of operands in which the operation is linear.
    """

    operands: tuple[tuple[Axis, ...], ...]
    results: tuple[tuple[Axis, ...], ...]
    sizes: tuple[int, ...]
    reductions: Mapping[int, FactorReduction] = field(default_factory=dict)
    linear: tuple[LinearGroup, ...] = ()

    @property
    def read(self) -> frozenset[int]:
        """Returns the factors that are in operands."""
        return frozenset(factor for axes in self.operands for axis in axes for factor in axis)

    @property
    def made(self) -> frozenset[int]:
        """Returns the factors that are in results."""
        return frozenset(factor for axes in self.results for axis in axes for factor in axis)

    def kept_axes(self) -> dict[int, int]:
        """Returns, by number, the axes of the first operand that are axes of the first result."""
        made = {axis: number for number, axis in enumerate(self.results[0])}
        axes = enumerate(self.operands[0])
        return {number: made[axis] for number, axis in axes if axis and axis in made}

    def place_in(self, axes: Sequence[Axis], layout: AxisLayout) -> FactorPlace | None:
        """Returns a layout's place in an operand or a result; None where no factor holds it."""
        below = 1
        for factor in reversed(axes[layout.axis]):
            inner, rest = divmod(layout.inner, below)
            size = self.sizes[factor]
            if not rest and inner and size % (layout.size * inner) == 0:
                return FactorPlace(factor, size // (layout.size * inner), layout.size, inner)
            below *= size
        return None

    def layout_of(self, axes: Sequence[Axis], place: FactorPlace) -> AxisLayout | None:
        """Returns a dimension's layout in an operand or a result; None where it is not in there."""
        for number, axis in enumerate(axes):
            if place.factor in axis:
                if len(axis) == 1:
                    return AxisLayout(number, place.outer, place.size, place.inner)
                at = axis.index(place.factor)
                major = math.prod(self.sizes[factor] for factor in axis[:at])
                minor = math.prod(self.sizes[factor] for factor in axis[at + 1 :])
                return AxisLayout(number, major * place.outer, place.size, place.inner * minor)
        return None
