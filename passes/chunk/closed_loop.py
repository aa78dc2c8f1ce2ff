"""Chunks for a budget: what to compile next, given what XLA made of what was compiled before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hloom.passes.chunk.record import ChunkRecord
from hloom.passes.framework.base import Target
from hloom.passes.framework.feedback import Attempt
from hloom.passes.framework.options import Budget

_CAUTION = 0.99
"""The share of the budget that a plan aims at."""

_STEP = 0.8
"""A further attempt aims at this share of what the one before was to take, at most."""


class Predicted(Protocol):
    """What is known of the program before it is compiled."""

    @property
    def around_bytes(self) -> int: ...

    @property
    def before_bytes(self) -> int: ...


def temp_budget(
    budget: Budget, attempts: Sequence[Attempt[ChunkRecord]], target: Target
) -> int | None:
    """Bytes of temporary memory that the budget leaves; None where nothing is known to bound."""
    if not attempts:
        return None
    if budget.percent is not None:
        whole = next((each.temp_bytes for each in attempts if not each.record.chunks), None)
        return None if whole is None else int(whole * budget.percent / 100)
    return _bytes_left(budget, target, attempts[0].step_bytes - attempts[0].temp_bytes)


def _bytes_left(budget: Budget, target: Target, around_bytes: int) -> int | None:
    if budget.least:
        return 0
    bound = target.usable_bytes if budget.size_bytes is None else budget.size_bytes
    return None if bound is None else bound - around_bytes


def goal_after(
    budget: Budget,
    attempts: Sequence[Attempt[ChunkRecord]],
    target: Target,
    program: Predicted,
) -> int:
    """What the next plan may take of temporary memory, by the model.

    The first plan for a share is the program as it is, which is then known.
    """
    if not attempts:
        if budget.percent is not None:
            return program.before_bytes
        limit = _bytes_left(budget, target, program.around_bytes)
        return program.before_bytes if limit is None else int(limit * _CAUTION)
    limit = temp_budget(budget, attempts, target)
    last = attempts[-1]
    predicted = last.record.prediction
    if limit is None or predicted is None:
        return program.before_bytes
    factor = last.temp_bytes / max(predicted.temp_bytes, 1)
    aim = limit * _CAUTION / max(factor, 1e-9)
    return int(min(aim, _STEP * predicted.temp_bytes) if last.record.chunks else aim)


def best_of(attempts: Sequence[Attempt[ChunkRecord]], limit_bytes: int | None) -> int:
    """The attempt of the fewest chunks that holds the budget, else the one with least memory."""
    numbers = range(len(attempts))
    fitting = [
        n for n in numbers if limit_bytes is not None and attempts[n].temp_bytes <= limit_bytes
    ]
    if fitting:
        return min(fitting, key=lambda n: (attempts[n].record.chunks, n))
    return min(numbers, key=lambda n: (attempts[n].temp_bytes, n))
