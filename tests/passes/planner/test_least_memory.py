"""What is compiled next where no plan is expected to hold a budget, or `min` is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.planned import LIMIT, Search

from hloom.passes.framework.feedback import Attempt, Prediction
from hloom.passes.framework.options import Budget
from hloom.passes.planner.candidates import Candidate, PlannerSettings
from hloom.passes.planner.comparison import least
from hloom.passes.planner.loop import AttemptState, decide
from hloom.passes.planner.record import Estimate, RematRecord

BOUND = Budget(size_bytes=LIMIT)


@pytest.mark.parametrize(("missed_bytes", "chosen"), [(50, 2.0), (150, 5.0)])
def test_a_miss_by_next_to_nothing_asks_for_a_faster_plan(missed_bytes: int, chosen: float) -> None:
    """Plans of the same memory take some bytes more or less: the faster one is tried, as by min."""
    limit = 1000 * LIMIT
    slow = [Estimate(Candidate(0, n, moves=f"chunk{{chunks={n}}}"), limit, 4.0 + n) for n in (1, 2)]
    faster = Estimate(Candidate(0, 3, moves="chunk"), limit, 2.0)
    search = Search([])
    search.estimates = {one.candidate: one for one in (Estimate(None, 2 * limit, 0.0), *slow)}
    search.lowest = lambda: slow
    search.within = lambda _: search.estimates.update({faster.candidate: faster})
    real_bytes = limit + missed_bytes
    tried = Estimate(Candidate(0, 4, moves="chunk{chunks=4}"), limit + 1, 3.0)
    made = [Attempt(RematRecord(estimate=tried), real_bytes, real_bytes)]
    for price in (5, 6):
        other = Estimate(Candidate(0, price, moves=f"chunk{{chunks={price}}}"), limit + 1, price)
        made.append(Attempt(RematRecord(estimate=other), real_bytes + 1, real_bytes + 1))
    now = AttemptState(search, limit, made, PlannerSettings(Budget(size_bytes=limit)))
    assert now.lowest[0].seconds == chosen


def test_min_compiles_a_plan_where_each_takes_more_as_it_writes_it() -> None:
    """Of eight plans each takes a tenth more by its text: none is confirmed."""
    search, modelled = Search(range(700, 708)), dict[Candidate | None, int]()

    def as_written(estimate: Estimate) -> Estimate:
        size = modelled.setdefault(estimate.candidate, estimate.temp_bytes)
        found = replace(estimate, temp_bytes=size * 11 // 10)
        search.estimates[estimate.candidate] = found
        return found

    search.lowest = lambda: list(search.estimates.values())
    search.as_written = as_written
    whole = Attempt(RematRecord(estimate=search.estimates[None]), 2 * LIMIT, 2 * LIMIT)
    settings = PlannerSettings(Budget(percent=0.0, least=True), 6)
    assert decide(search, 0, [whole], settings).estimate.temp_bytes == 770


@pytest.mark.parametrize(("lowest", "chosen"), [(300, 800), (620, 620)])
def test_the_floor_is_what_has_least_memory_not_what_was_tried(lowest: int, chosen: int) -> None:
    search, least = Search((640, 800, 980)), Estimate(Candidate(0, 9), lowest, 9.0)
    search.lowest = lambda: [least]
    search.try_lowest_behind = lambda _: search.estimates.update({least.candidate: least})
    record = RematRecord(Prediction(0, LIMIT, 0.0), estimate=search.estimates[Candidate(0, 2)])
    made = [Attempt(record, 1210, 1210)]
    assert decide(search, LIMIT, made, PlannerSettings(BOUND)).estimate.temp_bytes == chosen


def test_the_least_takes_no_time_that_spares_nothing() -> None:
    """At one price, windows of another length, or with cheap work alone, may come to the same."""
    short, long = Estimate(Candidate(8, 0), 700, 3.0), Estimate(Candidate(32, 0), 700, 1.0)
    lower, dear = Estimate(Candidate(16, 0), 699, 4.0), Estimate(Candidate(32, 64), 700, 0.5)
    assert least([short, long, dear]) == long
    assert least([lower, long, dear]) == lower
