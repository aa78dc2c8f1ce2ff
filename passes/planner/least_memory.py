"""The plans of least memory, in the order in which `min` compiles them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..budgeted import INDISTINCT
from .comparison import (
    affordable,
    corrected_bytes,
    kind_of,
    least,
    recomputes_less,
    same_moves,
    uncompiled,
)
from .record import Estimate, Measurement
from .search import Search

LITTLE = 1.1
"""Memory is not worth the time of a whole step where a plan of less than that takes at most this
many times as much."""

NEARLY = 1.1
"""A plan that misses the budget by less than this factor may miss it because the model is wrong: a
plan of little memory is compiled as well, although more is expected of it than was reached."""

STALLED = 2
"""The attempts for the least memory end where so many in a row reach no less than those before; for
a budget far below it, where these were expected to miss it, or reach no less than the unmodified
program."""

_FAR_OFF = 2
"""Where XLA takes more than so many times the model's memory, other moves are tried next."""


def next_of_min(search: Search, passed: Sequence[Measurement], most: int) -> Estimate | None:
    """Returns the plan that `min` compiles after the plans ``passed``; it reads the text of
    ``most`` plans at most. None where it ends.

    XLA's figure of the unmodified program has no influence: a budget of bytes, for which that is
    not compiled, compiles the same plans in the same order.
    """
    if is_stalled(passed):
        return None
    lowest = affordable(search.lowest(), search.step_seconds, LITTLE, passed)
    others = uncompiled(lowest, [Measurement(search.estimate(None), 0)])
    # XLA's figure of one plan says little about another whose peak is elsewhere.
    most_bytes = reached_bytes(passed) / INDISTINCT
    less = [one for one in uncompiled(others, passed) if one.temp_bytes <= most_bytes]
    # XLA may have undone what a plan recomputes, but not its moves.
    far = [p.estimate for p in passed if p.real_bytes > p.estimate.temp_bytes * NEARLY]
    alone = [
        one
        for one in less
        if any(same_moves(one, other) and recomputes_less(one, other) for other in far)
    ]
    return least_as_written(search, alone or promising(others, passed) or less, passed, most)


def least_as_written(
    search: Search, estimates: Sequence[Estimate], tried: Sequence[Measurement], most: int
) -> Estimate | None:
    """Returns the estimate of least memory that the program confirms as its plan writes it, or
    else, of ``most`` that were read so, the least as written; None where none of these promises
    less than was reached."""
    written: list[Estimate] = []
    while estimates and len(written) < most:
        chosen = least(estimates, tried)
        written.append(found := search.as_written(chosen))
        if found.temp_bytes <= chosen.temp_bytes * INDISTINCT:
            return found
        known = (search.estimate(each.candidate) for each in estimates)
        estimates = promising([*known], tried)
    left = promising(written, tried)
    return least(left, tried) if left else None


def promising(lowest: Sequence[Estimate], tried: Sequence[Measurement]) -> list[Estimate]:
    """Returns the untried estimates that may take less than was reached.

    Where the model is far off about the last plan, estimates of less memory with untried moves come
    first: XLA may split the program after other moves over the devices in another way.
    """
    real_bytes, untried = reached_bytes(tried), uncompiled(lowest, tried)
    if tried and tried[-1].real_bytes > tried[-1].estimate.temp_bytes * _FAR_OFF:
        done = [one.estimate for one in tried if one.estimate.candidate is not None]
        others = [
            estimate
            for estimate in untried
            if estimate.temp_bytes < real_bytes
            and not any(same_moves(estimate, other) for other in done)
        ]
        if others:
            return others
    less = [
        estimate
        for estimate in untried
        if corrected_bytes(estimate, tried) <= real_bytes * INDISTINCT
    ]
    if less:
        return less
    # XLA's figures of one kind of plans say little about another kind.
    kinds = {kind_of(one.estimate) for one in tried}
    return [
        estimate
        for estimate in untried
        if kind_of(estimate) not in kinds and estimate.temp_bytes <= real_bytes * NEARLY
    ]


def reached_bytes(tried: Sequence[Measurement]) -> float:
    """Returns the least measured memory; infinite without a measurement."""
    return min((one.real_bytes for one in tried), default=math.inf)


def is_stalled(tried: Sequence[Measurement]) -> bool:
    """Whether the last attempts reached no less memory than those before them."""
    reals = [one.real_bytes for one in tried]
    before, last = reals[:-STALLED], reals[-STALLED:]
    return bool(before) and min(last) * INDISTINCT > min(before)
