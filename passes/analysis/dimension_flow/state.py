"""What is known while a flow is found: flows of values, and what their readers need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..program import Node, Program
from ..signatures.signature import AxisLayout
from .flow import WHOLE, ZERO, Flow


class StuckError(Exception):
    """Code that runs in a loop over chunks needs the whole of a value that has none there.

    Attributes:
      node: the operation that needs it.
      values: what it needs whole.
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
      flow: what it is in the loop that makes it.
      reader: the operation.
      culprit: of a reader with code in it the operation in there that is the reason.
    """

    value: int
    flow: Flow
    reader: Node
    culprit: Node | None = None


@dataclass(slots=True)
class Needs:
    """What readers need beyond the flows of values.

    Attributes:
      cuts: values that are whole, and of which a loop reads a chunk, with the first reader.
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

    Only what a dimension reaches is stored; all else is invariant.
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
        if flow == self._unreached(value):
            self.flows.pop(value, None)
        else:
            self.flows[value] = flow

    def _unreached(self, value: int) -> Flow:
        return ZERO if value in self._zeros else WHOLE

    def forget(self, values: Iterable[int]) -> None:
        for value in values:
            self.flows.pop(value, None)
