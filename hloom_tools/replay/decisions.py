"""Repeats the plans of a dump's passes, with all or some of their decisions.

The plan of a measured pass depends on XLA's figures of its earlier plans. The dump has those plans
and figures, and the planner gets them again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from jax.extend.mlir import ir

from hloom.dumps.read.dump import ModuleDump
from hloom.passes.framework.base import Decision, DivisiblePlan, Pass, Plan
from hloom.passes.framework.feedback import Attempt, MeasuredPass, Planner, record_in
from hloom.passes.framework.pipeline import PassRun, Pipeline
from hloom.passes.framework.structure import Amount, Whole, read
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from hloom_tools.replay import ReplayError

_IN_TEXT = "-:"
"""How MLIR's parser names a place in a text that comes from no file."""


def recorded_attempts(dump: ModuleDump, step: MeasuredPass[Any]) -> tuple[Attempt[Any], ...]:
    """Returns the attempts of the measured pass before the plan that was used. Raises
    ReplayError."""
    used = next((n for n, row in enumerate(dump.attempts) if row.get("used")), 0)
    rows = enumerate(dump.attempts[:used], 1)
    return tuple(_attempt(dump, step, number, row) for number, row in rows)


def _attempt(
    dump: ModuleDump, step: MeasuredPass[Any], number: int, row: dict[str, Any]
) -> Attempt[Any]:
    used = reversed(dump.planned)
    plans = (each.json for each in (*dump.planned_for(number), *used) if each.name == step.name)
    try:
        record = record_in(next(plans, {}), step.record_type)
        step_bytes, temp_bytes = (
            read(Whole, row.get(name)) for name in ("step_bytes", "temp_bytes")
        )
        limit_bytes = read(Whole | None, row.get("limit_bytes"))
        step_s = read(Amount | None, row.get("step_s"))
        return Attempt(record, step_bytes, temp_bytes, limit_bytes, step_s)
    except ValueError as error:
        raise ReplayError(
            f"{dump.folder} has not all of attempt {number} of pass '{step.name}', which its plan "
            "followed from: its plan and the memory it took. Dump the step again, or name another "
            "pipeline."
        ) from error


class Replayed:
    """One step of a pipeline, with the plan of the dump.

    Attributes:
      step: the pass.
      prepares: whether it only prepares for other passes.
      decisions: the decisions of its last whole plan, in the order to add them; none where it is
        not divisible.
    """

    def __init__(
        self, step: Pass, attempts: Sequence[Attempt[Any]] = (), *, prepares: bool = False
    ) -> None:
        self.step, self.prepares = step, prepares
        self.decisions: tuple[Decision, ...] = ()
        self._attempts = attempts
        self._planner: Planner[Any] | None = None

    def whole(self) -> Pass:
        """Returns the pass with all its decisions."""
        return _Chosen(self, None, preparation=self.prepares)

    def counted(self) -> Pass:
        """Returns the pass with all its decisions, marked as one that changes programs itself."""
        return _Chosen(self, None, preparation=False)

    def restricted_to(self, ids: Collection[str]) -> Pass:
        """Returns the pass with these decisions alone, marked as in `counted`."""
        return _Chosen(self, frozenset(ids), preparation=False)

    def plan(self, module: ir.Module, target: Target, ids: frozenset[str] | None) -> Plan:
        """Returns the plan for a module after the earlier passes, with some decisions or all."""
        plan = self._plan(module, target)
        if isinstance(plan, DivisiblePlan):
            if ids is not None:
                return plan.restricted_to(ids)
            self.decisions = plan.decisions()
        return plan

    def _plan(self, module: ir.Module, target: Target) -> Plan:
        nothing = self.step.nothing_on(target.platform)
        if nothing is not None or not isinstance(self.step, MeasuredPass):
            return nothing or self.step.plan(module, target)
        if self._planner is None:
            # The module will be edited, and the planner reads its own copy for all later plans.
            self._planner = self.step.planner(clone_module(module), target)
        return self._planner(module, self._attempts)


class _Chosen(Pass):
    """A step of a pipeline with all or some of its decisions.

    It is no measured pass, so that no other plan is tried.
    """

    def __init__(
        self, replayed: Replayed, ids: frozenset[str] | None, *, preparation: bool
    ) -> None:
        self._replayed, self._ids = replayed, ids
        # The pass's identity in a pipeline, messages and records; a class variable in other passes.
        self.name = replayed.step.name  # type: ignore[misc]
        self.preparation = preparation  # type: ignore[misc]

    def __str__(self) -> str:
        return str(self._replayed.step)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def plan(self, module: ir.Module, target: Target) -> Plan:
        return self._replayed.plan(module, target, self._ids)

    def apply(self, plan: Any) -> None:
        self._replayed.step.apply(plan)

    def rewrites(self, plan: Any) -> bool:
        return self._replayed.step.rewrites(plan)


def replayed(pipeline: Pipeline, dump: ModuleDump, *, afresh: bool = False) -> tuple[Replayed, ...]:
    """Returns the steps of a pipeline, with the plans of the dump, or planned ``afresh``.

    Raises ReplayError where the dump lacks the attempts of a measured pass.
    """
    platform = str(dump.manifest.get("platform"))
    driver = pipeline.driver(platform)
    earlier = () if afresh or driver is None else recorded_attempts(dump, driver[1])
    return tuple(
        Replayed(
            step,
            earlier if driver is not None and index == driver[0] else (),
            prepares=pipeline.prepares(step, platform),
        )
        for index, step in enumerate(pipeline.steps())
    )


def other_plans(runs: Sequence[PassRun], dump: ModuleDump) -> tuple[str, ...]:
    """The passes whose plans are not those of the dump, with the entries that differ, as text."""
    recorded = {(plan.index, plan.name): _entries(plan.json) for plan in dump.planned}
    found = []
    for number, run in enumerate(runs, 1):
        wanted = recorded.get((number, run.name))
        made = _entries(json.loads(json.dumps(run.plan)))
        if wanted is not None and not _is_same(made, wanted):
            # Rows of values whose lines are not in the dumped text, and dumps of earlier versions.
            is_told = "tables" in wanted and not _is_lost(made.get("tables"))
            keys = sorted(made.keys() | wanted.keys() if is_told else made.keys() & wanted.keys())
            keys = [key for key in keys if is_told or key != "tables"]
            others = [key for key in keys if not _is_same(made.get(key), wanted.get(key))]
            found += [f"'{run.name}' ({', '.join(others)})"] if others else []
    return tuple(found)


def _entries(plan: dict[str, Any]) -> dict[str, Any]:
    """The entries of a plan, with those of its record in place of that."""
    record = plan.get("record")
    return {k: v for k, v in plan.items() if k != "record"} | record if record else plan


def _is_lost(part: Any) -> bool:
    """Whether a part of a plan names a place of the dumped text instead of the program's."""
    if isinstance(part, dict):
        return _is_in_text(part) or any(map(_is_lost, part.values()))
    return isinstance(part, list) and any(map(_is_lost, part))


def _is_in_text(part: dict[str, Any]) -> bool:
    source = part.get("source")
    return isinstance(source, dict) and str(source.get("line")).startswith(_IN_TEXT)


def _is_same(made: Any, recorded: Any) -> bool:
    """Whether parts of two plans are the same, as far as the dumped text shows.

    MLIR does not print the locations of the arguments of a loop's body.
    """
    if isinstance(made, list) and isinstance(recorded, list):
        return len(made) == len(recorded) and all(map(_is_same, made, recorded))
    if not isinstance(made, dict) or not isinstance(recorded, dict):
        return bool(made == recorded)
    lost = {"library", "function"} | ({"name", "source"} if _is_in_text(made) else set())
    return made.keys() - lost == recorded.keys() - lost and all(
        _is_same(value, recorded[key]) for key, value in made.items() if key not in lost
    )
