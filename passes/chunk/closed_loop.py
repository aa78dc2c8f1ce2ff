"""Chunks for a budget: what to plan next, given what XLA made of what was compiled before."""

from __future__ import annotations

from collections.abc import Sequence

from ..framework.feedback import Attempt
from .plan import ChunkRecord

_CAUTION = 0.99
"""The share of the budget that a plan aims at."""

_STEP = 0.8
"""A further attempt aims at this share of what the one before was to take, at most."""


def goal_after(
    attempts: Sequence[Attempt[ChunkRecord]], limit_bytes: int | None, before_bytes: int
) -> int:
    """What the next plan may take of temporary memory, by the model.

    The first plan for a share is the program as it is, which is then known.

    Args:
      attempts: what was measured, oldest first.
      limit_bytes: what the budget leaves; None where nothing is known to bound.
      before_bytes: temporary memory of the program as it is, by the model.
    """
    if limit_bytes is None:
        return before_bytes
    if not attempts:
        return int(limit_bytes * _CAUTION)
    last = attempts[-1]
    predicted = last.record.prediction
    if predicted is None:
        return before_bytes
    factor = last.temp_bytes / max(predicted.temp_bytes, 1)
    aim = limit_bytes * _CAUTION / max(factor, 1e-9)
    return int(min(aim, _STEP * predicted.temp_bytes) if last.record.chunks else aim)
