"""Planning to a budget: what to compile next, given what XLA made of what was compiled before."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hloom.passes.framework.base import Attempt, Target
from hloom.passes.framework.options import Budget
from hloom.passes.remat.budget.estimate import Outcome
from hloom.passes.remat.budget.price_grid import Setting
from hloom.passes.remat.budget.search import Search, Tried, cheapest, corrected_bytes

_CAUTION = (0.99, 0.99, 0.97)
"""The share of the budget that the first, second, … attempt aims at."""

_LEAVES_MUCH = 0.93
"""A plan that takes less than this share of the budget may recompute more than it has to."""

_INDISTINCT = 1.02
"""Outcomes whose memory differs by less than this factor are the same to the model."""

_WORTH_A_COMPILE = 0.95
"""Another compile has to promise this share of the best attempt's added time, or less."""


@dataclass(frozen=True)
class Decision:
    """The setting to compile, None for the program as it is; and all outcomes known by now."""

    outcome: Outcome
    expected_bytes: int
    """Its temporary memory as the model, corrected by the attempts so far, has it."""
    known: tuple[Outcome, ...]


def temp_budget(budget: Budget, attempts: Sequence[Attempt], target: Target) -> int | None:
    """Bytes of temporary memory that the budget leaves; None where nothing is known to bound.

    What the step is given and returns is as in the first attempt.
    """
    if budget.percent is not None:
        unmodified = (a.temp_bytes for a in attempts if setting_of(a.plan) is None)
        share = next(unmodified, None)
        return None if share is None else int(share * budget.percent / 100)
    bound = target.usable_bytes if budget.size_bytes is None else budget.size_bytes
    if bound is None:
        return None
    return bound - (attempts[0].step_bytes - attempts[0].temp_bytes)


def decide(search: Search, limit_bytes: int, attempts: Sequence[Attempt]) -> Decision:
    """The next setting to compile for at most ``limit_bytes`` of temporary memory."""
    tried = tried_of(attempts)
    fits = _Fits(limit_bytes, tried)
    search.within(fits.aim_bytes, fits, tried)
    chosen = cheapest(_untried(filter(fits, search.outcomes.values()), tried))
    held = cheapest(one.outcome for one in tried if one.real_bytes <= limit_bytes)
    if held is not None and (chosen is None or chosen.seconds >= held.seconds):
        chosen = held  # once more: the attempts end
    elif chosen is None:
        lowest = search.lowest()
        real_bytes = min((one.real_bytes for one in tried), default=math.inf)
        # Where nothing promises less than what was reached, that once more.
        chosen = _least(
            [
                outcome
                for outcome in _untried(lowest, tried)
                if corrected_bytes(outcome, tried) <= real_bytes * _INDISTINCT
            ]
            or [one.outcome for one in tried if one.real_bytes == real_bytes]
            or lowest,
            tried,
        )
    return Decision(chosen, int(corrected_bytes(chosen, tried)), tuple(search.outcomes.values()))


class _Fits:
    """Whether an outcome is expected to hold a bound, with some caution."""

    def __init__(self, limit_bytes: int, tried: Sequence[Tried]) -> None:
        self.limit_bytes, self.tried = limit_bytes, tried
        self.aim_bytes = limit_bytes * _CAUTION[min(len(tried), len(_CAUTION) - 1)]

    def __call__(self, outcome: Outcome) -> bool:
        # The program as it is takes no planning again where it turns out too large.
        bound = self.limit_bytes if outcome.setting is None else self.aim_bytes
        return corrected_bytes(outcome, self.tried) <= bound


def is_worthwhile(attempts: Sequence[Attempt], limit_bytes: int) -> bool:
    """Whether one more compile may hold the budget, or hold it at less added time."""
    fitting = [attempt for attempt in attempts if attempt.temp_bytes <= limit_bytes]
    if not fitting:
        return True
    best = min(fitting, key=lambda attempt: seconds_of(attempt.plan))
    best_s = seconds_of(best.plan)
    if best_s and best.temp_bytes < limit_bytes * _LEAVES_MUCH:
        return True
    tried = tried_of(attempts)
    known = filter(_Fits(limit_bytes, tried), outcomes_of(attempts[-1].plan))
    better = cheapest(_untried(known, tried))
    return better is not None and better.seconds < best_s * _WORTH_A_COMPILE


def best_of(attempts: Sequence[Attempt], limit_bytes: int | None) -> int:
    """The attempt to use: the cheapest that holds the budget, else the one with least memory."""
    numbers = range(len(attempts))
    fitting = [
        n for n in numbers if limit_bytes is not None and attempts[n].temp_bytes <= limit_bytes
    ]
    if fitting:
        return min(fitting, key=lambda n: (seconds_of(attempts[n].plan), n))
    return min(numbers, key=lambda n: (attempts[n].temp_bytes, n))


def _least(outcomes: Sequence[Outcome], tried: Sequence[Tried]) -> Outcome:
    """The outcome of least memory; of those that the model cannot tell apart, what keeps least."""
    least = min(corrected_bytes(outcome, tried) for outcome in outcomes)
    return min(
        (one for one in outcomes if corrected_bytes(one, tried) <= least * _INDISTINCT),
        key=lambda one: (0, 0) if one.setting is None else (one.setting.step, one.setting.length),
    )


def _untried(outcomes: Iterable[Outcome], tried: Sequence[Tried]) -> list[Outcome]:
    """Outcomes of what was not compiled; what looks just like something compiled most likely is."""
    done = {_looks(one.outcome) for one in tried}
    return [outcome for outcome in outcomes if _looks(outcome) not in done]


def _looks(outcome: Outcome) -> tuple[int, float]:
    return outcome.temp_bytes, outcome.seconds


# Plans as JSON, as attempts hand them back.


def known_json(decision: Decision) -> dict[str, object]:
    """The decision and what was known when it was made, for the next one."""
    return {
        "setting": _setting_json(decision.outcome.setting),
        "model_temp_bytes": decision.outcome.temp_bytes,
        "predicted_temp_bytes": decision.expected_bytes,
        "weighted_seconds": decision.outcome.seconds,
        "considered": [
            {
                "setting": _setting_json(outcome.setting),
                "temp_bytes": outcome.temp_bytes,
                "weighted_seconds": outcome.seconds,
            }
            for outcome in decision.known
        ],
    }


def _setting_json(setting: Setting | None) -> list[int] | None:
    return None if setting is None else list(dataclasses.astuple(setting))


def _setting(found: Any) -> Setting | None:
    return None if found is None else Setting(*found)


def setting_of(plan: Mapping[str, Any]) -> Setting | None:
    """The setting that a plan was made with."""
    return _setting(plan.get("setting"))


def seconds_of(plan: Mapping[str, Any]) -> float:
    """The added time that a plan was made with, as it counts in prices: of cheap work a share."""
    return float(plan.get("weighted_seconds", 0.0))


def outcomes_of(plan: Mapping[str, Any]) -> tuple[Outcome, ...]:
    """Every outcome that was known when a plan was made."""
    return tuple(
        Outcome(_setting(one["setting"]), one["temp_bytes"], one["weighted_seconds"])
        for one in plan.get("considered", ())
    )


def tried_of(attempts: Sequence[Attempt]) -> list[Tried]:
    """The attempts as outcomes with what XLA made of them."""
    return [
        Tried(
            Outcome(
                setting_of(attempt.plan),
                int(attempt.plan["model_temp_bytes"]),  # type: ignore[call-overload]
                seconds_of(attempt.plan),
            ),
            attempt.temp_bytes,
        )
        for attempt in attempts
        if "model_temp_bytes" in attempt.plan
    ]
