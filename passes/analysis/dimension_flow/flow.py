"""Flows: the state of a value with respect to a dimension: whole, split along an axis, or partial.

The module also has the state of the search: the flows of all values, and the needs of readers.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ..program import Node, Program
from ..signatures.signature import AxisLayout, Combine


class FlowKind(enum.StrEnum):
    """The part of a value that a loop over chunks has."""

    WHOLE = "whole"
    SPLIT = "split"
    PARTIAL = "partial"


@dataclass(frozen=True, slots=True)
class Flow:
    """The state of a value, and the phase that computes it.

    Attributes:
      kind: the part of it that a loop has.
      phase: for a split or partial value the first loop that can compute it; for a whole one the
        number of loops that have to have ended, 0 where it does not depend on the dimension.
      layout: for a split value, the position of the dimension in it.
      combine: for a partial value, how its terms are combined.
      zero: whether it is whole and zero everywhere, so that it is also an empty sum.
      given: whether it is in memory in full before any loop, although a loop has only chunks or
        terms of it: an argument, or the result of light work on arguments that takes no more memory
        than these.
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
        """Returns the first loop that can read it."""
        return self.phase + 1 if self.is_whole else self.phase

    def in_phase(self, phase: int) -> Flow:
        return self if self.phase == phase else replace(self, phase=phase)

    @property
    def finished(self) -> Flow:
        """Returns its flow for a reader that needs the whole value."""
        return whole(0 if self.given else self.phase)

    def __str__(self) -> str:
        if self.is_invariant:
            return "invariant"
        if self.is_whole:
            return f"whole after phase {self.phase}"
        what = f"split along {self.layout}" if self.is_split else f"partial {self.combine}"
        return f"{what} in phase {self.phase}{', given' if self.given else ''}"


WHOLE = Flow(FlowKind.WHOLE)
"""A value that does not depend on the dimension."""

ZERO = Flow(FlowKind.WHOLE, zero=True)


def whole(phase: int) -> Flow:
    """Returns the flow of a value that is known in full after this many loops."""
    return WHOLE if phase == 0 else Flow(FlowKind.WHOLE, phase)


def split(layout: AxisLayout, phase: int = 1, *, given: bool = False) -> Flow:
    return Flow(FlowKind.SPLIT, phase, layout, given=given)


def partial(combine: Combine, phase: int = 1) -> Flow:
    return Flow(FlowKind.PARTIAL, phase, combine=combine)


class StuckError(Exception):
    """Code that runs in a loop over chunks needs the whole of a value that has none there.

    Attributes:
      node: the operation that needs it.
      values: the values that it needs whole.
    """

    def __init__(self, node: Node, values: tuple[int, ...]) -> None:
        super().__init__(node.op.name)
        self.node = node
        self.values = values


@dataclass(frozen=True, slots=True)
class Finish:
    """A value that is read whole: its chunks are concatenated, or its terms combined, before.

    Attributes:
      value: its number.
      flow: its flow in the loop that computes it.
      reader: the operation that reads it whole.
      culprit: for a reader with code in it the operation inside that is the reason.
    """

    value: int
    flow: Flow
    reader: Node
    culprit: Node | None = None


@dataclass(slots=True)
class Needs:
    """The needs of readers beyond the flows of values.

    Attributes:
      cuts: whole values of which a loop reads a chunk, with the first reader.
      finishes: values that are read whole after their loop.
    """

    cuts: dict[tuple[int, AxisLayout], Node] = field(default_factory=dict)
    finishes: list[Finish] = field(default_factory=list)

    def cut(self, value: int, layout: AxisLayout, reader: Node) -> None:
        self.cuts.setdefault((value, layout), reader)

    def add(self, other: Needs) -> None:
        for (value, layout), reader in other.cuts.items():
            self.cut(value, layout, reader)
        self.finishes += other.finishes


class FlowState:
    """The flows of a program's values, as far as they are known.

    Only values that the dimension reaches are stored; all others are invariant.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._zeros = program.zeros
        self.flows: dict[int, Flow] = {}

    def of(self, value: int) -> Flow:
        found = self.flows.get(value)
        if found is not None:
            return found
        return ZERO if value in self._zeros else WHOLE

    def reached(self, values: Iterable[int]) -> bool:
        """Whether the dimension reaches any of the values."""
        flows = self.flows
        return any(value in flows for value in values)

    def put(self, value: int, flow: Flow) -> None:
        if flow == (ZERO if value in self._zeros else WHOLE):
            self.flows.pop(value, None)
        else:
            self.flows[value] = flow

    def forget(self, values: Iterable[int]) -> None:
        for value in values:
            self.flows.pop(value, None)
