"""A stand-in for the planner's search, whose plans are written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from hloom.passes.planner.aim import Aim
from hloom.passes.planner.candidates import Candidate
from hloom.passes.planner.record import Estimate

LIMIT = 1000
SIZES = (400, 700, 800, 850, 900, 950, 980)
"""What the model has for a candidate at each price; added time falls from one to the next."""


class Search:
    """Candidates of these sizes, and the program as it is, which takes twice the limit."""

    step_seconds = 1000.0
    found_by: ClassVar[Mapping[Candidate | None, str]] = {}

    def __init__(self, sizes: Sequence[int] = SIZES) -> None:
        estimates = [Estimate(None, 2 * LIMIT, 0.0)]
        estimates += [
            Estimate(Candidate(0, price), size, float(len(sizes) - price))
            for price, size in enumerate(sizes)
        ]
        self.estimates: dict[Candidate | None, Estimate] = {
            each.candidate: each for each in estimates
        }

    @classmethod
    def of(
        cls, *estimates: Estimate, lowest: Sequence[Estimate] = (), step_seconds: float = 1000.0
    ) -> Search:
        """One that finds these alone; all of them are of little memory unless it is said which."""
        search = cls(())
        search.estimates = {each.candidate: each for each in estimates}
        search.step_seconds = step_seconds
        search.lowest = lambda: list(lowest or estimates)  # type: ignore[method-assign]
        return search

    def within(self, aim: Aim) -> None:
        pass

    def estimate(self, candidate: Candidate | None) -> Estimate:
        return self.estimates[candidate]

    def lowest(self) -> list[Estimate]:
        return list(self.estimates.values())[:3]

    def as_written(self, estimate: Estimate) -> Estimate:
        return estimate

    def try_lowest_behind(self, candidate: Candidate | None) -> None:
        """What has least memory is among the estimates then."""

    lines: Estimate | None = None

    def with_cheap_work(self, candidate: Candidate | None) -> Estimate | None:
        return self.lines
