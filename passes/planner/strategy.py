"""A strategy of the planner; what was chosen, and what strategies found for that, in lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, ParamSpec, TypeVar

from ..framework.text import pluralize, size
from .aim import Aim
from .candidates import Candidate
from .record import Estimate
from .variants import moves_of

EARLIER = "earlier attempts"
"""The name of the strategy of a plan that was known before the search, or that it left out."""

_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Strategy(Generic[_Given, _Found]):
    """A row of a table of strategies, which are tried in its order.

    Attributes:
      name: its name in the log.
      constants: the numbers that bound it, by what they are.
      run: what it does.
    """

    name: str
    constants: Mapping[str, float]
    run: Callable[_Given, _Found]


@dataclass(frozen=True)
class Choice:
    """The candidate to compile.

    Attributes:
      estimate: its estimate; of None, the unmodified program.
      expected_bytes: its temporary memory by the model, corrected by the attempts so far.
      known: all estimates known by now.
      found_by: by their candidates, the names of the strategies that found them.
      aim: what the plans that were searched last have to hold.
      strategy: the name of the strategy that chose it.
    """

    estimate: Estimate
    expected_bytes: int
    known: tuple[Estimate, ...]
    found_by: Mapping[Candidate | None, str] = field(repr=False)
    aim: Aim
    strategy: str

    @property
    def lines(self) -> tuple[str, ...]:
        """Returns a line for each strategy and moves, with its best plan, and for the choice."""
        groups: dict[str, list[Estimate]] = {}
        for one in self.known:
            groups.setdefault(self._source(one), []).append(one)
        lines = (f"{source}: {self._best_of(found)}" for source, found in groups.items())
        chosen = f"{self._source(self.estimate)}, {self._figures(self.estimate)}"
        return (*lines, f"chosen {self.strategy}: {chosen}")

    def _source(self, one: Estimate) -> str:
        return " after ".join(
            filter(None, (self.found_by.get(one.candidate, EARLIER), moves_of(one)))
        )

    def _best_of(self, found: Sequence[Estimate]) -> str:
        best, count = self.aim.best(found), pluralize(len(found), "plan")
        if best is not None:
            return f"{count}, the best that holds is {self._figures(best)}"
        least = min(found, key=self.aim.expected_bytes)
        return f"{count}, none holds, the least is {self._figures(least)}"

    def _figures(self, one: Estimate) -> str:
        return f"{size(int(self.aim.expected_bytes(one)))}, {1e3 * one.seconds:+.3g} ms"
