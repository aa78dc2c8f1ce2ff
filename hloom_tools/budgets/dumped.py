"""Reads the earlier compiles of a dumped module: the target, and XLA's figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hloom.dumps.read.dump import ModuleDump, PlanFile
from hloom.passes.framework.feedback import Attempt, record_in
from hloom.passes.framework.structure import Whole, read
from hloom.passes.framework.target import Target
from hloom.passes.planner.record import Estimate, RematRecord
from hloom_tools.replay import manifest as recorded

_MEASURED = ("step_bytes", "temp_bytes")
_MOST_SECONDS = 1e9
"""A larger figure is none of a device: the file is damaged."""


def target_of(dump: ModuleDump) -> Target | None:
    """Returns the target that a module was planned for; None where the dump does not have it."""
    platform = dump.manifest.get("platform")
    unknown = Target(platform=platform if isinstance(platform, str) else "cpu")
    found = recorded.target(dump.manifest.get("target"), unknown)
    return None if found is unknown else found


@dataclass(frozen=True)
class CompiledPlan:
    """A plan for a budget with XLA's figures, and whether it was used."""

    attempt: Attempt[RematRecord]
    used: bool


def compiled_plans(dump: ModuleDump) -> Iterator[CompiledPlan]:
    """Yields the compiled plans for a budget; damaged ones are left out."""
    rows: list[tuple[Sequence[PlanFile], dict[str, Any]]] = []
    if dump.attempts:
        rows += [(_plans(dump, number), row) for number, row in enumerate(dump.attempts, 1)]
    elif dump.memory is not None:
        rows.append((dump.planned, {**dump.memory, "used": True}))
    for plans, figures in rows:
        try:
            step_bytes, temp_bytes = (read(Whole, figures.get(each)) for each in _MEASURED)
            limit_bytes = read(Whole | None, figures.get("limit_bytes"))
        except ValueError:
            continue
        is_sound = 0 < temp_bytes <= step_bytes and (
            limit_bytes is None or 0 < limit_bytes < step_bytes
        )
        if is_sound and (record := record_of(plans)) is not None:
            attempt = Attempt(record, step_bytes, temp_bytes, limit_bytes)
            yield CompiledPlan(attempt, bool(figures.get("used")))


def record_of(plans: Iterable[PlanFile]) -> RematRecord | None:
    """Returns the record of the last of these plans that is for a budget; None without a valid
    one."""
    found = None
    for plan in plans:
        try:
            record = record_in(plan.json, RematRecord)
        except ValueError:
            continue
        if record.estimate is not None:
            found = record
    if found is None or not all(map(_is_sound, (found.estimate, *found.considered))):
        return None
    return found


def _is_sound(estimate: Estimate | None) -> bool:
    return (
        estimate is not None and 0 <= estimate.seconds < _MOST_SECONDS and estimate.temp_bytes > 0
    )


def _plans(dump: ModuleDump, number: int) -> Sequence[PlanFile]:
    """Returns the plans of an attempt: from its own folder, or, for the used one, from the
    module's."""
    if dump.attempts[number - 1].get("used"):
        return dump.planned
    return dump.planned_for(number)
