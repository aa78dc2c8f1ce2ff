"""What a measured pass would decide, were its predictions true: nothing is compiled here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jax.extend.mlir import ir

from hloom.passes.framework.errors import PassError, reason_of
from hloom.passes.framework.feedback import Attempt, MeasuredPass, Progress, attempts
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module


@dataclass(frozen=True)
class DryRun:
    """The attempts that lead to the plan to show.

    Attributes:
      attempts: those before it, with what was predicted for them.
      complaint: what that plan is predicted to miss; None where nothing.
    """

    attempts: tuple[Attempt[Any], ...] = ()
    complaint: str | None = None


def dry_run(pipeline: Pipeline, module: ir.Module, target: Target) -> DryRun:
    """Goes through the pipeline's attempts, without any where no pass measures or predicts.

    Raises PassError where a step fails.
    """
    found = pipeline.driver(target.platform)
    if found is None:
        return DryRun()
    index, driver = found
    prepared = clone_module(module)
    pipeline.run(prepared, target=target, stop=index)
    with prepared.context, ir.Location.unknown():
        try:
            return _go_through(driver, prepared, target)
        except Exception as error:
            raise PassError(driver.name, "plan", reason_of(error)) from error


def _go_through(driver: MeasuredPass[Any], module: ir.Module, target: Target) -> DryRun:
    planner = driver.planner(module, target)
    unplanned: str | None = None

    def predicted(earlier: tuple[Attempt[Any], ...]) -> Attempt[Any] | None:
        nonlocal unplanned
        record = planner(module, earlier).record
        unplanned, prediction = record.unplanned, record.prediction
        if unplanned is not None or prediction is None:
            return None
        return Attempt(record, prediction.step_bytes, prediction.temp_bytes)

    last: Progress[Any] = Progress()
    for progress in attempts(driver, target, predicted):
        last = progress
    if unplanned is not None:
        return DryRun(complaint=unplanned)
    if not last.attempts:
        return DryRun()
    earlier = last.attempts[: last.best]

    def module_of_best() -> ir.Module:
        rewritten = clone_module(module)
        plan = planner(rewritten, earlier)
        if not plan.empty:
            driver.apply(plan)
        return rewritten

    complaint = driver.complaint(last.attempts, last.best, target, module_of_best)
    return DryRun(earlier, complaint.text if complaint else None)
