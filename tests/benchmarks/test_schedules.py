"""What docs/recursive-checkpoint.md says of schedules, by the committed table."""

from __future__ import annotations

import json
from functools import cache

import pytest

from benchmarks.common.tables import RESULTS
from benchmarks.schedules import binomial, optimum

pytestmark = pytest.mark.once


@cache
def _repeated(trips: int, states: int) -> int:
    if trips <= 1 or states == 1:
        return trips * (trips - 1) // 2
    return min(
        before + _repeated(trips - before, states - 1) + _repeated(before, states)
        for before in range(1, trips)
    )


def test_the_binomial_formula_is_the_least_of_its_recursion() -> None:
    for trips in range(1, 20):
        for states in range(1, 6):
            assert binomial(trips, states) == _repeated(trips, states)


def test_the_optimum_of_three_iterations() -> None:
    # The residuals of one stay, two are computed again; none where all fit.
    assert optimum(3, 3, 1)[2:].tolist() == [2, 0]


def test_one_level_is_as_good_as_any_schedule_and_a_fourth_only_takes_less_memory() -> None:
    [entry] = json.loads((RESULTS / "schedules.json").read_text("utf-8")).values()
    for row in entry["rows"]:
        one, *_, three, four = row["levels"]
        if one is not None and row["optimum"] is not None:
            assert one - row["optimum"] <= 0.05
        # At the least bytes of three levels a fourth may repeat some iterations less.
        assert three is None or four >= 0.99 * three
