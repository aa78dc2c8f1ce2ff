"""Decides which of several estimates is better, and corrects estimates by XLA's figures."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from .. import budgeted
from .candidates import Candidate
from .record import Estimate, Measurement

INDISTINCT = 1.01
"""Added times that differ by less than this factor count as equal."""

NO_TIME = 0.0001
"""Plans whose times differ by less than this share of a step's count as equally fast."""


def cheapest(estimates: Iterable[Estimate]) -> Estimate | None:
    """Returns the estimate of least added time; segments and short windows lose among equals."""
    return min(estimates, key=cost, default=None)


def leanest(estimates: Iterable[Estimate], same_seconds: float) -> Estimate | None:
    """Returns the estimate of least memory among those with the windows and moves of the cheapest
    one that take at most ``same_seconds`` longer. A plan that fills a budget to its last bytes and
    saves next to no time is not worth it: those bytes are room for errors of the model."""
    found = list(estimates)
    best = cheapest(found)
    if best is None or best.candidate is None or not same_seconds:
        return best
    like = dataclasses.replace(best.candidate, price=0)
    alike = (
        one
        for one in found
        if one.seconds <= best.seconds + same_seconds
        and one.candidate is not None
        and dataclasses.replace(one.candidate, price=0) == like
    )
    return min(alike, key=lambda one: (one.temp_bytes, cost(one)))


def better(one: Estimate, other: Estimate, moves_seconds: float) -> Estimate:
    """Returns the cheaper of two estimates at grid prices, after moves that take ``moves_seconds``.

    With segments, whose lengths make little difference, the one that leaves more room for the
    steps.
    """
    first, second = sorted([one, other], key=cost)
    first_s, second_s = (one.seconds - moves_seconds for one in (first, second))
    if second_s <= first_s * INDISTINCT and is_segmented(first):
        return min(first, second, key=lambda estimate: estimate.temp_bytes)
    return first


def is_segmented(estimate: Estimate) -> bool:
    return estimate.candidate is not None and estimate.candidate.segmented


def cost(estimate: Estimate) -> tuple[float, bool, int, int]:
    candidate = estimate.candidate
    if candidate is None:
        return 0.0, False, 0, 0
    return estimate.seconds, candidate.segmented, -candidate.window_length, -candidate.price


def corrected_bytes(estimate: Estimate, tried: Sequence[Measurement]) -> float:
    """Returns the expected temporary memory of an estimate, corrected by XLA's figures for others.

    The ratio between XLA's figure and the model's is similar for similar candidates. It says less
    about candidates with other moves, and about moves alone where it was measured with
    recomputation after them, which XLA may undo: for these the nearest candidates of each set of
    moves are averaged, with one more of the ratio of the unmodified program, 1 where that is
    unknown.
    """
    if not tried:
        return estimate.temp_bytes
    nearest = min(tried, key=lambda other: _distance(estimate, other.estimate))
    if nearest.estimate.candidate == estimate.candidate:
        return nearest.real_bytes
    if same_moves(estimate, nearest.estimate) and not recomputes_less(estimate, nearest.estimate):
        return estimate.temp_bytes * math.exp(_log_ratio(nearest))
    by_moves: dict[str | None, Measurement] = {}
    for one in sorted(tried, key=lambda other: _distance(estimate, other.estimate)):
        candidate = one.estimate.candidate
        by_moves.setdefault(None if candidate is None else _names_in(candidate.moves), one)
    ratios = [_log_ratio(one) for one in by_moves.values()]
    return estimate.temp_bytes * math.exp(sum(ratios) / (len(ratios) + (None not in by_moves)))


def _log_ratio(one: Measurement) -> float:
    return math.log(max(one.real_bytes, 1) / max(one.estimate.temp_bytes, 1))


def _distance(one: Estimate, other: Estimate) -> float:
    distance = abs(math.log(max(one.temp_bytes, 1) / max(other.temp_bytes, 1)))
    if one.candidate is None or other.candidate is None:
        return distance + (one.candidate != other.candidate)
    distance += 0.5 * (_windows(one.candidate) != _windows(other.candidate))
    return distance + 0.5 * (not same_moves(one, other))


def same_moves(one: Estimate, other: Estimate) -> bool:
    """Whether two candidates have the same moves, or one is the unmodified program.

    Options are ignored: a loop that is split one iteration later is much the same.
    """
    if one.candidate is None or other.candidate is None:
        return True
    return _names_in(one.candidate.moves) == _names_in(other.candidate.moves)


def recomputes_less(one: Estimate, other: Estimate) -> bool:
    """Whether the first has moves alone, and the second recomputes something."""
    mine, others = one.candidate, other.candidate
    return bool(mine and not mine.recomputes and others and others.recomputes)


@functools.cache
def _names_in(moves: str) -> str:
    return re.sub(r"\{[^}]*\}", "", moves)


def _windows(candidate: Candidate) -> tuple[int, bool, bool]:
    return candidate.window_length, candidate.segmented, candidate.nested


def is_better(one: Estimate, other: Estimate) -> bool:
    """Whether an estimate of the same moves and price takes less time and no more memory."""
    mine, others = one.candidate, other.candidate
    return (
        mine is not None
        and others is not None
        and (mine.moves, mine.price, mine.evicted_to)
        == (others.moves, others.price, others.evicted_to)
        and one.temp_bytes <= other.temp_bytes
        and one.seconds < other.seconds
    )


def least(estimates: Sequence[Estimate], tried: Sequence[Measurement] = ()) -> Estimate:
    """Returns the estimate of least memory; among indistinct ones one of moves that no compiled
    plan has, which XLA's figures of others say less of, then one that recomputes nothing where all
    of those do, or the reverse, then the one that saves least.

    Of estimates at one price, those that take longer than another and no less memory are left out.
    """
    compiled = [each for one in tried if (each := one.estimate.candidate) and each.moves]
    done, again = {each.moves for each in compiled}, {each.recomputes for each in compiled}
    least_bytes = min(corrected_bytes(estimate, tried) for estimate in estimates)
    most_bytes = least_bytes * budgeted.INDISTINCT
    near = [one for one in estimates if corrected_bytes(one, tried) <= most_bytes]
    return min(
        (one for one in near if not any(is_better(other, one) for other in near)),
        key=lambda one: (
            (False, False, 0, 0)
            if (each := one.candidate) is None
            else (each.moves in done, each.recomputes in again, each.price, each.window_length)
        ),
    )


def uncompiled(estimates: Iterable[Estimate], tried: Sequence[Measurement]) -> list[Estimate]:
    """Returns the estimates that were not compiled; equal figures most likely mean equal plans, and
    a plan may have other figures once it was read as it is written."""
    done = {figures_of(one.estimate) for one in tried}
    plans = {one.estimate.candidate for one in tried}
    left = (estimate for estimate in estimates if estimate.candidate not in plans)
    return [estimate for estimate in left if figures_of(estimate) not in done]


def affordable(
    estimates: Sequence[Estimate],
    step_seconds: float,
    little: float,
    tried: Sequence[Measurement] = (),
) -> list[Estimate]:
    """Returns the estimates whose memory is worth their time where no budget requires it.

    An estimate is left out if it adds the time of a step or more to that of another which takes at
    most ``little`` times as much memory. For a kind that was not tried the model's memory counts,
    where that is less: XLA's figures of others say little about it.
    """
    if not step_seconds:
        return list(estimates)  # nothing of the program has a price
    kinds = {kind_of(one.estimate) for one in tried}
    sizes = [
        (min(size_bytes, one.temp_bytes) if kind_of(one) not in kinds else size_bytes, one)
        for one in estimates
        for size_bytes in [corrected_bytes(one, tried)]
    ]
    in_order = sorted((size_bytes, other.seconds) for size_bytes, other in sizes)
    fastest_s = [math.inf, *itertools.accumulate((seconds for _, seconds in in_order), min)]
    return [
        one
        for size, one in sizes
        if fastest_s[bisect_right(in_order, (size * little, math.inf))] > one.seconds - step_seconds
    ]


def kind_of(estimate: Estimate) -> tuple[bool, ...]:
    """Returns the properties that make the kind of an estimate's plan."""
    candidate = estimate.candidate
    if candidate is None:
        return ()
    return candidate.evicted_to > 0, candidate.segmented, candidate.nested


def figures_of(estimate: Estimate) -> tuple[int, float]:
    """Returns the memory and the added time of an estimate."""
    return estimate.temp_bytes, estimate.seconds
