"""Earlier compiles of a dumped module: the target, and XLA's figures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hloom.dumps.read.module import ModuleDump, plans_by_pass
from hloom.passes.framework.feedback import Attempt
from hloom.passes.framework.target import Target
from hloom.passes.planner.record import Estimate, RematRecord
from hloom.tools.replay import manifest as recorded

_MOST_BYTES, _MOST_SECONDS = 2**60, 1e9
"""What is more is no figure of a device: the file is damaged."""


def target_of(dump: ModuleDump) -> Target | None:
    """The target that a module was planned for; None where the dump does not tell."""
    platform = dump.manifest.get("platform")
    unknown = Target(platform=platform if isinstance(platform, str) else "cpu")
    found = recorded.target(dump.manifest.get("target"), unknown)
    return None if found is unknown else found


@dataclass(frozen=True)
class CompiledPlan:
    """A plan of `remat` or `fit` with XLA's figures, and whether it is the one that was used."""

    attempt: Attempt[RematRecord]
    used: bool


def compiled_plans(dump: ModuleDump) -> Iterator[CompiledPlan]:
    """The plans for a budget that were compiled; what is damaged is left out."""
    rows: list[tuple[dict[str, Any] | None, dict[str, Any]]] = []
    if dump.attempts:
        rows += [(_plan(dump, number), row) for number, row in enumerate(dump.attempts, 1)]
    elif dump.memory is not None:
        rows.append((dump.plan("remat"), {**dump.memory, "used": True}))
    for plan, figures in rows:
        step_bytes, temp_bytes = figures.get("step_bytes"), figures.get("temp_bytes")
        if plan is None or type(step_bytes) is not int or type(temp_bytes) is not int:
            continue
        if not 0 < temp_bytes <= step_bytes < _MOST_BYTES:
            continue
        limit_bytes = figures.get("limit_bytes")
        if limit_bytes is not None and not (
            type(limit_bytes) is int and 0 < limit_bytes < step_bytes
        ):
            continue
        if (record := record_of(plan)) is not None:
            attempt = Attempt(record, step_bytes, temp_bytes, limit_bytes)
            yield CompiledPlan(attempt, bool(figures.get("used")))


def record_of(plan: dict[str, Any]) -> RematRecord | None:
    """The record of a dumped plan for a budget; None for another one, and where it is damaged."""
    try:
        record = RematRecord.from_json(plan)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return None
    estimates = [record.estimate, *record.considered]
    return record if all(each is not None and _is_sound(each) for each in estimates) else None


def _is_sound(estimate: Estimate) -> bool:
    is_finite = math.isfinite(estimate.seconds) and 0 <= estimate.seconds < _MOST_SECONDS
    return is_finite and 0 < estimate.temp_bytes < _MOST_BYTES


def _plan(dump: ModuleDump, number: int) -> dict[str, Any] | None:
    """The plan of an attempt: in its own folder, or, of the one that was used, in the module's."""
    if dump.attempts[number - 1].get("used"):
        return dump.plan("remat")
    return plans_by_pass(dump.planned_for(number)).get("remat")
