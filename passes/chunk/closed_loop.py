"""Chunks for a budget: what to compile next, given what XLA made of what was compiled before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..framework import feedback
from ..framework.feedback import Attempt
from ..framework.options import Budget
from ..framework.target import Target
from .plan import ChunkRecord

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
    budget: Budget,
    attempts: Sequence[Attempt[ChunkRecord]],
    target: Target,
    around_bytes: int | None = None,
) -> int | None:
    """Bytes of temporary memory that the budget leaves; None where nothing is known to bound."""
    return feedback.temp_limit(
        budget, attempts, target, lambda record: not record.chunks, around_bytes
    )


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
        limit = temp_budget(budget, attempts, target, program.around_bytes)
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
    return feedback.best_of(attempts, limit_bytes, lambda record: record.chunks)
