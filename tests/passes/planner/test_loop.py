"""The closed loop of `remat` and `fit`: what is compiled next, after a model that was wrong.

And where no plan is expected to hold a budget, or `min` is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.planned import LIMIT, SIZES, Search

from hloom.passes.framework.feedback import Attempt, Prediction
from hloom.passes.framework.options import Budget
from hloom.passes.planner.candidates import Candidate, PlannerSettings
from hloom.passes.planner.comparison import affordable, least, uncompiled
from hloom.passes.planner.least_memory import LITTLE
from hloom.passes.planner.loop import AttemptState, aimed, best_of, decide, is_worthwhile
from hloom.passes.planner.record import Estimate, Measurement, RematRecord

BOUND, LEAST = Budget(size_bytes=LIMIT), Budget(percent=0.0, least=True)


def made_of(
    estimate: Estimate, size: int, considered: Sequence[Estimate] = (), **more: Any
) -> Attempt[RematRecord]:
    """An attempt with this plan, for which XLA gives so many bytes."""
    record = RematRecord(estimate=estimate, considered=tuple(considered))
    return Attempt(record, size, size, **more)


def attempts(
    real_bytes: Callable[[int], int], compiles: int, sizes: Sequence[int] = SIZES
) -> list[Attempt[RematRecord]]:
    """What is compiled for the limit where XLA gives this for what the model takes to be so."""
    made: list[Attempt[RematRecord]] = []
    while len(made) < compiles and (not made or is_worthwhile(made, LIMIT, compiles)):
        choice = decide(Search(sizes), LIMIT, made, PlannerSettings(BOUND, compiles))
        if made and made[-1].temp_bytes <= LIMIT and choice.estimate == made[-1].record.estimate:
            break  # what holds, once more: it is not compiled
        real = real_bytes(choice.estimate.temp_bytes)
        made.append(made_of(choice.estimate, real, choice.known))
    return made


def until_again(
    search: Search,
    limit_bytes: int,
    budget: Budget,
    attempt: Callable[[int, Estimate], Attempt[RematRecord]],
    first: Sequence[Attempt[RematRecord]] = (),
) -> list[Attempt[RematRecord]]:
    """At most six attempts, until a plan is chosen once more; ``attempt`` is given its number."""
    made = list(first)
    while len(made) < 6:
        estimate = decide(search, limit_bytes, made, PlannerSettings(budget, 6)).estimate
        if any(estimate == each.record.estimate for each in made):
            break
        made.append(attempt(len(made), estimate))
    return made


def sizes(made: Sequence[Attempt[RematRecord]]) -> list[int]:
    return [each.record.estimate.temp_bytes for each in made if each.record.estimate is not None]


@pytest.mark.parametrize(
    ("compiles", "for_the_budget"), [(1, 1), (2, 2), (3, 2), (4, 2), (5, 3), (6, 4)]
)
def test_the_last_attempts_are_for_the_least_memory(compiles: int, for_the_budget: int) -> None:
    assert aimed(compiles) == for_the_budget

    def some_more(model_bytes: int) -> int:
        """A little over the limit whatever is recomputed, but for the least memory."""
        return LIMIT + 1 if model_bytes > SIZES[0] else LIMIT // 2

    made = attempts(some_more, compiles)
    assert all(size > SIZES[0] for size in sizes(made)[:for_the_budget])
    if compiles > for_the_budget:
        assert made[-1].temp_bytes <= LIMIT
        assert sizes(made)[for_the_budget:] == [SIZES[0]]


def test_what_holds_needs_no_attempt_for_the_least_memory() -> None:
    made = attempts(lambda model_bytes: model_bytes, 6)
    assert sizes(made) == [SIZES[-1]]


@pytest.mark.parametrize(
    ("sizes_", "error", "expected"),
    [
        ((400, 700, 980, 1000), 0.0, [980, 1000]),  # the second takes the budget to the byte
        ((400, 700, 980, 1001), 0.0, [980]),
        ((400, 700, 980, 998), 0.0005, [980, 998]),
        ((400, 700, 980, 998), 0.002, [980]),  # with the usual caution nothing else is expected
    ],
)
def test_a_budget_is_filled_where_the_model_was_exact(
    sizes_: tuple[int, ...], error: float, expected: list[int]
) -> None:
    made = attempts(lambda model_bytes: round(model_bytes / (1 - error)), 6, sizes_)
    assert sizes(made) == expected


@pytest.mark.parametrize(
    ("sizes_", "real_bytes", "ends"),
    [
        ((2 * LIMIT, 2 * LIMIT - 15), 2 * LIMIT, True),
        ((2 * LIMIT, 2 * LIMIT - 50), 2 * LIMIT, False),  # to the model a plan takes less
        ((2 * LIMIT, 2 * LIMIT), 2 * LIMIT + 200, False),  # the model is wrong about the program
    ],
)
def test_where_nothing_lowers_the_peak_the_program_is_compiled_once(
    sizes_: tuple[int, ...], real_bytes: int, ends: bool
) -> None:
    search = Search(sizes_)
    whole = search.estimate(None)
    made = [made_of(whole, real_bytes, [*search.estimates.values()])]
    assert (decide(search, LIMIT, made, PlannerSettings(BOUND)).estimate == whole) == ends


def test_where_nothing_holds_all_attempts_are_made() -> None:
    made = attempts(lambda model_bytes: LIMIT + model_bytes, 6)
    assert len(made) == 6
    assert min(made, key=lambda each: each.temp_bytes).temp_bytes == LIMIT + SIZES[0]


def test_what_misses_and_saves_next_to_nothing_is_not_used() -> None:
    """Whatever is recomputed XLA takes 1.2 % less at most."""
    made = attempts(lambda model_bytes: 1970 + 30 * model_bytes // (2 * LIMIT), 6)
    assert made[best_of(made, LIMIT, BOUND)].record.candidate is None
    recomputed = [each for each in made if each.record.candidate is not None]
    best = recomputed[best_of(recomputed, LIMIT, BOUND)]
    assert best.temp_bytes == min(each.temp_bytes for each in made), "nothing else was compiled"
    least = made[best_of(made, LIMIT, LEAST)]
    assert least.temp_bytes == best.temp_bytes


@pytest.mark.parametrize(
    ("sizes", "seconds", "used"),
    [
        ((2000, 620, 610), (4.0, 18.0, 22.5), 1),
        ((2000, 620, 610), (4.0, 18.0, 21.5), 2),
        ((2000, 700, 610), (4.0, 18.0, 22.5), 2),
        ((2000, 620, 610), (4.0, 18.0, None), 2),
    ],
)
def test_the_last_bytes_of_min_do_not_cost_the_time_of_a_step(
    sizes: Sequence[int], seconds: Sequence[float | None], used: int
) -> None:
    """A tenth more memory is worth a whole step less, by the seconds of what was compiled."""
    candidates = (None, Candidate(0, 0), Candidate(0, 1))
    made = [
        made_of(Estimate(one, size, 0.0), size, step_s=step_s)
        for one, size, step_s in zip(candidates, sizes, seconds, strict=True)
    ]
    assert best_of(made, 0, LEAST) == used


@pytest.mark.parametrize(("real_bytes", "is_used"), [(1990, False), (1950, True)])
def test_half_a_percent_of_the_program_is_next_to_nothing(real_bytes: int, is_used: bool) -> None:
    """Although it is most of what the budget asks for: the program takes 0.6 or 3 % more."""
    limit = real_bytes - 2
    whole, plan = Search().estimate(None), Search().estimate(Candidate(0, 0))
    made = [made_of(one, size, (whole, plan)) for one, size in ((whole, 2000), (plan, real_bytes))]
    assert best_of(made, limit, BOUND) == int(is_used)


@pytest.mark.parametrize(("sizes", "recomputes"), [((1990, 1995), False), ((1500, 1600), True)])
def test_the_only_attempt_is_of_use(sizes: Sequence[int], recomputes: bool) -> None:
    choice = decide(Search(sizes), LIMIT, (), PlannerSettings(BOUND, compiles=1))
    assert (choice.estimate.candidate is not None) is recomputes


def test_what_misses_and_saves_much_is_used() -> None:
    made = attempts(lambda model_bytes: LIMIT + model_bytes // 2, 6)
    assert all(each.record.candidate is not None for each in made)
    assert made[best_of(made, LIMIT, BOUND)].temp_bytes == LIMIT + SIZES[0] // 2


@pytest.mark.parametrize(("first", "least", "is_tried"), [(1650, 1150, True), (1900, 1300, False)])
def test_near_what_was_reached_the_other_low_plans_are_worth_a_compile(
    first: int, least: int, is_tried: bool
) -> None:
    """By the first compile the plan of 700 takes 1179 or 1357; it takes 980, so that `min` does."""
    real_bytes = {SIZES[-1]: first, SIZES[0]: least, SIZES[1]: 980}
    made = attempts(lambda model_bytes: real_bytes[model_bytes], 6)
    assert sizes(made)[:2] == [SIZES[-1], SIZES[0]]
    assert (SIZES[1] in sizes(made)) is is_tried
    assert any(each.temp_bytes <= LIMIT for each in made) is is_tried


STEP = 10.0
DEAR = [Estimate(None, 6000, 0.0)] + [
    Estimate(Candidate(0, price), size, seconds)
    for price, (size, seconds) in enumerate([(678, 50.0), (691, 2.0), (739, 1.9), (2000, 1.0)])
]
"""The last bytes cost five steps."""


@pytest.mark.parametrize(("least_bytes", "floor"), [(678, 691), (629, 691), (628, 628), (700, 691)])
def test_the_floor_pays_no_step_for_little_memory(least_bytes: int, floor: int) -> None:
    """At most a tenth more, that is: 629 times 1.1 is more than 691, and 628 times it less."""
    estimates = [
        replace(each, temp_bytes=least_bytes) if each.seconds > STEP else each for each in DEAR
    ]
    assert min(one.temp_bytes for one in affordable(estimates, STEP, LITTLE)) == floor
    assert affordable(estimates, 50.0, LITTLE) == estimates  # no other is faster by so much
    assert affordable([], STEP, LITTLE) == []
    assert affordable(estimates, 0.0, LITTLE) == estimates  # a program in which nothing has a price


def test_what_xla_made_of_one_kind_leaves_no_other_kind_out() -> None:
    """Plans by evictions are held to what they take by the model, until one was compiled."""
    windows = Estimate(Candidate(9, 384), 272, 0.6 * STEP)
    evicted = Estimate(Candidate(9, 1056, evicted_to=450), 256, 1.7 * STEP)
    tried = [Measurement(windows, 384)]
    assert affordable([windows, evicted], STEP, LITTLE, tried) == [windows, evicted]
    assert affordable([windows, evicted], STEP, LITTLE) == [windows]
    tried.append(Measurement(evicted, 400))
    assert affordable([windows, evicted], STEP, LITTLE, tried) == [windows]


def test_where_a_budget_is_missed_no_step_is_paid_for_no_memory() -> None:
    dear, cheap = (Estimate(Candidate(0, price), 700, 9.0 * STEP - price) for price in (0, 20))
    search = Search.of(Search().estimate(None), dear, cheap, step_seconds=STEP)
    settings = PlannerSettings(Budget(size_bytes=500))
    assert decide(search, 500, (), settings).estimate == cheap


@pytest.mark.parametrize(("budget", "chosen"), [(LEAST, 691), (Budget(size_bytes=680), 678)])
def test_a_budget_that_asks_for_it_has_the_least_memory(budget: Budget, chosen: int) -> None:
    search = Search.of(*DEAR, step_seconds=STEP)
    choice = decide(search, 0 if budget.least else 680, (), PlannerSettings(budget))
    assert choice.estimate.temp_bytes == chosen


@pytest.mark.parametrize(
    ("real_bytes", "chosen"), [(660, 691), (661, 727), (730, 727), (820, 727), (9000, 727)]
)
def test_for_the_least_memory_another_kind_is_compiled(real_bytes: int, chosen: int) -> None:
    """Where XLA takes more for plans by evictions than the model, those by windows are tried."""
    evicted = Estimate(Candidate(9, 1056, evicted_to=450), 691, 2.0)
    windows = Estimate(Candidate(9, 384), 727, 1.9)
    known = DEAR[0], evicted, windows
    search = Search.of(*known, step_seconds=STEP)
    made = [made_of(evicted, real_bytes, known)]
    assert decide(search, 0, made, PlannerSettings(LEAST)).estimate.temp_bytes == chosen
    again = made_of(windows, 725, known)
    if chosen == 727:
        best = decide(search, 0, [*made, again], PlannerSettings(LEAST)).estimate
        # What took least once more: the attempts end.
        assert best == (windows if real_bytes > again.temp_bytes else evicted)


@pytest.mark.parametrize(
    ("real_bytes", "chosen"),
    [
        (340, "chunk{chunks=16}"),  # less than twice what was expected
        (400, "one-hot"),
        (380, "chunk{chunks=16}"),  # others promise no less than was reached
    ],
)
def test_for_the_least_memory_other_moves_are_compiled(real_bytes: int, chosen: str) -> None:
    """Where XLA takes far more for a plan than the model, as where what moves leave is split
    otherwise over the devices, plans with other moves go before more with these."""
    moves = "", "chunk{chunks=8}", "chunk{chunks=16}", "one-hot"
    known = [
        Estimate(Candidate.of_moves(each) if each else None, size_bytes, seconds)
        for each, size_bytes, seconds in zip(
            moves, (1000, 185, 186, 385), (0, 2, 3, 1), strict=True
        )
    ]
    search = Search.of(*known, step_seconds=STEP)
    made = [made_of(known[0], 1000, known), made_of(known[1], real_bytes, known)]
    candidate = decide(search, 0, made, PlannerSettings(LEAST)).estimate.candidate
    assert candidate.moves == chosen


@pytest.mark.parametrize(
    ("size_bytes", "seconds", "is_compiled"),
    [(930, 400.0, True), (948, 400.0, True), (949, 400.0, False), (930, 480.0, False)],
)
def test_min_takes_no_longer_than_a_budget_of_what_it_reached(
    size_bytes: int, seconds: float, is_compiled: bool
) -> None:
    """XLA takes more for the plan of least memory than the model, and a faster one fits in that,
    or takes indistinctly more by the model."""
    whole, lowest, faster = (
        Estimate(Candidate.of_moves(moves) if moves else None, bytes_, time_s)
        for moves, bytes_, time_s in (
            ("", 9300, 0.0),
            ("recursive-checkpoint", 849, 500.0),
            ("recursive-checkpoint{kept=0.125}", size_bytes, seconds),
        )
    )
    search = Search.of(whole, lowest, faster, lowest=(whole, lowest))
    made = [made_of(whole, 9300), made_of(lowest, 930)]
    chosen = decide(search, 0, made, PlannerSettings(LEAST)).estimate
    assert chosen == (faster if is_compiled else lowest)


MANY = Search.of(*Search(tuple(range(700, 710))).estimates.values())


@pytest.mark.parametrize(
    ("sizes", "compiles"),
    [
        ((500, 500, 500), 4),
        ((500, 500, 499), 4),  # no less to the model
        ((500, 500, 480), 6),
        ((500, 480, 480), 5),
    ],
)
def test_two_attempts_that_reach_no_less_end_the_search_for_the_least(
    sizes: Sequence[int], compiles: int
) -> None:
    """All that is left is expected to take what was reached, as at a floor that XLA sets: of these
    the fastest is compiled, too."""
    made = until_again(
        MANY, 0, LEAST, lambda number, each: made_of(each, sizes[min(number, len(sizes) - 1)])
    )
    assert len(made) == compiles


@pytest.mark.parametrize(("real_bytes", "compiles"), [(2000, 2), (1500, 6)])
def test_an_attempt_that_reaches_no_less_than_the_program_ends_the_search_for_a_budget(
    real_bytes: int, compiles: int
) -> None:
    """To XLA all plans take as much as the program, or less than it, and none holds the budget."""
    first = [made_of(MANY.estimate(None), 2000)]
    share = Budget(percent=5.0)
    made = until_again(MANY, 100, share, lambda _, each: made_of(each, real_bytes), first)
    assert len(made) == compiles


def test_a_plan_with_other_moves_is_compiled_where_one_saved_nothing() -> None:
    whole = Estimate(None, 1000, 0.0)
    chunked = Estimate(Candidate(0, 1, moves="chunk"), 100, 0.5)
    without = Estimate(Candidate(0, 3), 320, 2.0)
    search = Search.of(whole, chunked, without, step_seconds=50.0)
    made = [Attempt(RematRecord(estimate=one), 1000, 1000) for one in (whole, chunked)]
    settings = PlannerSettings(Budget(size_bytes=330), 6)
    assert decide(search, 330, made, settings).estimate == without


@pytest.mark.parametrize(("expected_bytes", "compiles"), [(1500, 4), (90, 6)])
def test_two_attempts_that_were_to_miss_and_reach_no_less_end_the_search_for_a_budget(
    expected_bytes: int, compiles: int
) -> None:
    """Three plans of the least memory take as much: none holds a budget far below, and of all
    others the fastest is compiled alone."""
    record = RematRecord(Prediction(0, expected_bytes, 0.0))

    def attempt(_: int, each: Estimate) -> Attempt[RematRecord]:
        return Attempt(replace(record, estimate=each), 1500, 1500)

    assert len(until_again(MANY, 100, Budget(percent=5.0), attempt)) == compiles


KINDS = [Estimate(None, 2 * LIMIT, 0.0)] + [
    Estimate(Candidate(9, price, segmented=segmented, nested=nested), size, seconds)
    for price, size, seconds, segmented, nested in (
        (700, 990, 1.0, False, False),
        (650, 700, 1.5, False, False),
        (100, 705, 2.0, True, False),
        (200, 704, 1.9, True, False),
        (300, 696, 2.5, True, True),
        (310, 695, 2.4, True, True),
    )
]
REAL_BYTES = {990: 1300, 700: 1150, 705: 1040, 704: 1050, 696: 1010, 695: 1000}
"""To XLA the last one alone holds the limit; that it does the others do not tell."""


def compiled(
    budget: Budget, limit_bytes: int, real_bytes: Mapping[int, int], known: Sequence[Estimate] = ()
) -> list[Attempt[RematRecord]]:
    search = Search.of(*(known or KINDS), lowest=known or [KINDS[0], *KINDS[3:]])
    made: list[Attempt[RematRecord]] = []
    if budget.least:
        made = [made_of(KINDS[0], real_bytes.get(2 * LIMIT, 2 * LIMIT), known or KINDS)]
    while len(made) < 6 and all(each.temp_bytes > limit_bytes for each in made):
        choice = decide(search, limit_bytes, made, PlannerSettings(budget, 6))
        if any(each.record.estimate == choice.estimate for each in made):
            break  # once more: the attempts end
        expected = Prediction(0, choice.expected_bytes, 0.0)
        record = RematRecord(expected, estimate=choice.estimate, considered=tuple(known or KINDS))
        real = real_bytes[choice.estimate.temp_bytes]
        made.append(Attempt(record, real, real))
    return made


@pytest.mark.parametrize("far_off", [1050, 1200, 1300])
@pytest.mark.parametrize(("first", "aims"), [(1300, 1), (1050, 2)])
def test_a_budget_that_min_holds_is_held(first: int, aims: int, far_off: int) -> None:
    """After two attempts that miss, or one by far, it compiles what `min` does, in that order."""
    real_bytes = REAL_BYTES | {990: first, 704: far_off, 705: far_off}
    road = compiled(LEAST, 0, real_bytes)[1:]
    assert min(each.temp_bytes for each in road) == LIMIT
    made = compiled(BOUND, LIMIT, real_bytes)
    assert sizes(made)[:aims] == [990, 700][:aims]
    assert sizes(made)[aims:] == sizes(road)[: len(made) - aims]
    assert made[-1].temp_bytes == LIMIT


def test_a_plan_that_was_compiled_is_no_other_one_with_other_figures() -> None:
    assert not uncompiled([replace(KINDS[0], temp_bytes=1)], [Measurement(KINDS[0], 700)])


@pytest.mark.parametrize("whole_bytes", [1400, 1620, 2 * LIMIT, 3 * LIMIT])
def test_what_min_reaches_is_held_whatever_the_program_takes_as_it_is(whole_bytes: int) -> None:
    """For a budget of bytes that is not compiled."""
    real_bytes = {2 * LIMIT: whole_bytes, 695: 690, 700: 710, 705: 712, 720: 600}
    known = [KINDS[0], Estimate(Candidate(9, 9), 720, 1.0)]
    known += [Estimate(Candidate(9, n, moves="chunk"), 695 + 5 * n, 5.0 - n) for n in range(3)]
    least = min(each.temp_bytes for each in compiled(LEAST, 0, real_bytes, known))
    assert compiled(Budget(size_bytes=least), least, real_bytes, known)[-1].temp_bytes == least


@pytest.mark.parametrize(
    ("least", "more", "reals", "chosen"),
    [
        (750, 780, [1050], 800),
        (590, 650, [1050, 1150], 650),
        (600, 650, [1050, 1150], 600),
        (600, 650, [1050, 1060], 650),
        (610, 650, [1210], 800),
        (620, 650, [1210], 620),
        (490, 650, [1210, 1050], 650),
        (510, 650, [1210, 1050], 510),
    ],
)
def test_a_budget_far_above_the_floor_is_aimed_at(
    least: int, more: int, reals: list[int], chosen: int
) -> None:
    """Two attempts that miss say nothing of the least memory where much more is asked for, and
    the first one that misses by far says something of more."""
    search = Search((least, more, 800, 980))
    made = [
        Attempt(
            RematRecord(Prediction(0, LIMIT, 0.0), estimate=search.estimates[Candidate(0, price)]),
            real,
            real,
        )
        for price, real in zip((3, 2), reals, strict=False)
    ]
    assert decide(search, LIMIT, made, PlannerSettings(BOUND)).estimate.temp_bytes == chosen


def test_what_holds_is_not_compiled_again_for_next_to_no_time() -> None:
    """Another plan that fills the budget, and takes a ten-thousandth of a step less."""
    held, fuller = Estimate(Candidate(0, 8), 700, 2.05), Estimate(Candidate(0, 9), 800, 2.0)
    search = Search.of(Estimate(None, 2000, 0.0), held, fuller)
    made = [made_of(held, 700)]
    settings = PlannerSettings(BOUND, 6)
    assert decide(search, LIMIT, made, settings).estimate == held
    search.step_seconds = 100.0
    assert decide(search, LIMIT, made, settings).estimate == fuller


@pytest.mark.parametrize(
    ("lines_bytes", "whole_s", "lines_s", "compiled", "used"),
    [
        (LIMIT // 2, 0.020, 0.019, 2, 1),
        (LIMIT // 2, 0.020, 0.0199, 2, 0),  # as fast, and the program as it is adds nothing
        (LIMIT // 2, 0.020, 0.021, 2, 0),
        (2 * LIMIT, 0.020, 0.019, 1, 0),  # it would not hold
        (None, 0.020, 0.019, 1, 0),  # there is no such plan
        (LIMIT // 2, None, None, 1, 0),  # XLA's text is not known
    ],
)
def test_where_memory_asks_for_nothing_straight_lines_are_timed(
    lines_bytes: int | None, whole_s: float | None, lines_s: float | None, compiled: int, used: int
) -> None:
    search = Search()
    whole = search.estimates[None] = Estimate(None, LIMIT // 2, 0.0)
    if lines_bytes is not None:
        search.lines = Estimate(Candidate(9, 25), lines_bytes, 1e-5)
    made: list[Attempt[RematRecord]] = []
    while len(made) < 6 and (not made or is_worthwhile(made, LIMIT, 6)):
        choice = decide(search, LIMIT, made, PlannerSettings(BOUND))
        if made and choice.estimate == whole:
            break
        size, step_s = choice.estimate.temp_bytes, lines_s if made else whole_s
        made.append(made_of(choice.estimate, size, choice.known, step_s=step_s))
    assert len(made) == compiled
    assert best_of(made, LIMIT, BOUND) == used


@pytest.mark.parametrize(
    ("temp_bytes", "real_bytes", "is_tried"),
    [(798, 1100, False), (780, 1100, True), (798, 1001, True)],
)
def test_what_has_the_peak_of_a_plan_that_misses_is_not_compiled(
    temp_bytes: int, real_bytes: int, is_tried: bool
) -> None:
    """Of other moves XLA's figure for the one says little, but of the same peak it says all."""
    held = Estimate(Candidate.of_moves("chunk"), 500, 2.0)
    missed = Estimate(Candidate.of_moves("one-hot"), 800, 1.0)
    alike = Estimate(Candidate.of_moves("undo-checkpoint"), temp_bytes, 1.1)
    other = Estimate(Candidate.of_moves("undo-checkpoint,chunk"), 700, 1.2)
    search = Search.of(Estimate(None, 2000, 0.0), held, missed, alike, other)
    made = [made_of(missed, real_bytes), made_of(held, 500)]
    chosen = decide(search, LIMIT, made, PlannerSettings(BOUND, 6)).estimate
    assert chosen == (alike if is_tried else other)


@pytest.mark.parametrize(("dear_s", "chosen"), [(1500.0, 850), (900.0, 780)])
def test_what_min_compiles_goes_before_what_takes_a_whole_step(dear_s: float, chosen: int) -> None:
    """Of a plan with a bit more memory XLA may make less than the model says."""
    whole, missed = Estimate(None, 2000, 0.0), Estimate(Candidate(0, 3), 980, 1.0)
    low, dear = Estimate(Candidate(0, 2), 850, 10.0), Estimate(Candidate(0, 1), 780, dear_s)
    search = Search.of(whole, missed, low, dear, lowest=(whole, low, dear))
    made = [Attempt(RematRecord(Prediction(0, 980, 0.0), estimate=missed), 1210, 1210)]
    found = decide(search, LIMIT, made, PlannerSettings(BOUND, 6)).estimate
    assert found.temp_bytes == chosen


@pytest.mark.parametrize(("missed_bytes", "chosen"), [(50, 2.0), (150, 5.0)])
def test_a_miss_by_next_to_nothing_asks_for_a_faster_plan(missed_bytes: int, chosen: float) -> None:
    """Plans of the same memory take some bytes more or less: the faster one is tried, as by min."""
    limit = 1000 * LIMIT
    slow = [Estimate(Candidate(0, n, moves=f"chunk{{chunks={n}}}"), limit, 4.0 + n) for n in (1, 2)]
    faster = Estimate(Candidate(0, 3, moves="chunk"), limit, 2.0)
    search = Search.of(Estimate(None, 2 * limit, 0.0), *slow, lowest=slow)
    search.within = lambda _: search.estimates.update({faster.candidate: faster})
    real_bytes = limit + missed_bytes
    tried = Estimate(Candidate(0, 4, moves="chunk{chunks=4}"), limit + 1, 3.0)
    made = [made_of(tried, real_bytes)]
    for price in (5, 6):
        other = Estimate(Candidate(0, price, moves=f"chunk{{chunks={price}}}"), limit + 1, price)
        made.append(made_of(other, real_bytes + 1))
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
    whole = made_of(search.estimates[None], 2 * LIMIT)
    assert decide(search, 0, [whole], PlannerSettings(LEAST, 6)).estimate.temp_bytes == 770


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
