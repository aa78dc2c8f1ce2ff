"""What a value is with respect to a dimension: whole, split along an axis, or partial."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from ..signatures.signature import AxisLayout, Combine


class FlowKind(enum.StrEnum):
    """What of a value a loop over chunks has."""

    WHOLE = "whole"
    SPLIT = "split"
    PARTIAL = "partial"


@dataclass(frozen=True, slots=True)
class Flow:
    """What a value is, and in which phase it can be had.

    Attributes:
      kind: what of it a loop has.
      phase: of what is split or partial the first loop that can make it; of what is whole the
        number of loops that have to have ended, 0 for what does not depend on the dimension.
      layout: of what is split, where the dimension is in it.
      combine: of what is partial, how its terms are combined.
      zero: whether it is whole and zero everywhere, so that it is also a sum of nothing.
      given: whether it is there in full before any loop, although a loop has only chunks or terms
        of it: an argument, or what light work makes of such in no more memory than they take.
    """

    kind: FlowKind
    phase: int = 0
    layout: AxisLayout | None = None
    combine: Combine | None = None
    zero: bool = False
    given: bool = False

    @property
    def is_whole(self) -> bool:
        return self.kind is FlowKind.WHOLE

    @property
    def is_split(self) -> bool:
        return self.kind is FlowKind.SPLIT

    @property
    def is_partial(self) -> bool:
        return self.kind is FlowKind.PARTIAL

    @property
    def is_invariant(self) -> bool:
        """Whether it does not depend on the dimension."""
        return self.is_whole and not self.phase

    @property
    def least_loop(self) -> int:
        """The first loop that can read it."""
        return self.phase + 1 if self.is_whole else self.phase

    def in_phase(self, phase: int) -> Flow:
        return self if self.phase == phase else replace(self, phase=phase)

    @property
    def finished(self) -> Flow:
        """What it is to a reader that needs all of it."""
        return whole(0 if self.given else self.phase)

    def __str__(self) -> str:
        if self.is_invariant:
            return "invariant"
        if self.is_whole:
            return f"whole after phase {self.phase}"
        what = f"split along {self.layout}" if self.is_split else f"partial {self.combine}"
        return f"{what} in phase {self.phase}{', given' if self.given else ''}"


WHOLE = Flow(FlowKind.WHOLE)
"""What does not depend on the dimension."""

ZERO = Flow(FlowKind.WHOLE, zero=True)


def whole(phase: int) -> Flow:
    """What is known in full after this many loops."""
    return WHOLE if phase == 0 else Flow(FlowKind.WHOLE, phase)


def split(layout: AxisLayout, phase: int = 1, *, given: bool = False) -> Flow:
    return Flow(FlowKind.SPLIT, phase, layout, given=given)


def partial(combine: Combine, phase: int = 1) -> Flow:
    return Flow(FlowKind.PARTIAL, phase, combine=combine)
