"""What a dump tells of earlier compiles of its module: the target, and XLA's figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hloom.dumps.read.module import ModuleDump
from hloom.files import FileError, read_json
from hloom.passes.framework.base import Target
from hloom.passes.framework.feedback import Attempt
from hloom.passes.remat.record import RematRecord
from hloom.tools.replay import manifest as recorded


def target_of(dump: ModuleDump) -> Target | None:
    """The target that a module was planned for; None where the dump does not tell."""
    platform = dump.manifest.get("platform")
    unknown = Target(platform=platform if isinstance(platform, str) else "cpu")
    found = recorded.target(dump.manifest.get("target"), unknown)
    return None if found is unknown else found


def attempts_of(dump: ModuleDump) -> tuple[Attempt[RematRecord], ...]:
    """The plans of `remat` that were compiled, with XLA's figures; without what is damaged."""
    return tuple(_attempts(dump))


def _attempts(dump: ModuleDump) -> Iterator[Attempt[RematRecord]]:
    rows: list[tuple[dict[str, Any] | None, dict[str, Any]]] = []
    if dump.attempts:
        rows += [(_plan(dump, number), row) for number, row in enumerate(dump.attempts, 1)]
    elif dump.memory is not None:
        rows.append((dump.plan("remat"), dump.memory))
    for plan, figures in rows:
        step_bytes, temp_bytes = figures.get("step_bytes"), figures.get("temp_bytes")
        if plan is None or type(step_bytes) is not int or type(temp_bytes) is not int:
            continue
        if not 0 < temp_bytes <= step_bytes:
            continue
        try:
            record = RematRecord.from_json(plan)
        except (KeyError, TypeError, ValueError):
            continue
        if record.estimate is not None and record.estimate.temp_bytes > 0:
            yield Attempt(record, step_bytes, temp_bytes)


def _plan(dump: ModuleDump, number: int) -> dict[str, Any] | None:
    """The plan of an attempt: in its own folder, or, of the one that was used, in the module's."""
    for file in sorted((dump.folder / f"attempt-{number}").glob("plan-*-remat.json")):
        try:
            plan = read_json(file.parent, file.name)
        except (FileError, OSError, ValueError):
            return None
        return plan if isinstance(plan, dict) else None
    return dump.plan("remat") if dump.attempts[number - 1].get("used") else None
