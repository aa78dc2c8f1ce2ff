"""What a measured pass would decide, were its predictions true: nothing is compiled here."""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.framework.base import Attempt, MeasuredPass, Target
from hloom.passes.framework.errors import PassError, reason_of
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir.clone import clone_module


@dataclass(frozen=True)
class Foresight:
    """The attempts that lead to the plan to show.

    Attributes:
      attempts: those before it, with what was predicted for them.
      complaint: what that plan is predicted to miss; None where nothing.
    """

    attempts: tuple[Attempt, ...] = ()
    complaint: str | None = None


def foresee(pipeline: Pipeline, module: ir.Module, target: Target) -> Foresight:
    """Goes through the pipeline's attempts, without any where no pass measures or predicts.

    Raises PassError where a step fails.
    """
    found = pipeline.driver()
    if found is None:
        return Foresight()
    index, driver = found
    prepared = clone_module(module)
    pipeline.run(prepared, target=target, stop=index)
    with prepared.context, ir.Location.unknown():
        try:
            return _go_through(driver, prepared, target)
        except Exception as error:
            raise PassError(driver.name, "plan", reason_of(error)) from error


def _go_through(driver: MeasuredPass, module: ir.Module, target: Target) -> Foresight:
    planner = driver.planner(module, target)
    attempts: list[Attempt] = []
    while len(attempts) < driver.compiles:
        plan = planner(module, attempts).to_json()
        if isinstance(why := plan.get("unplanned"), str):
            return Foresight(complaint=why)
        step_bytes, temp_bytes = (plan.get(f"predicted_{kind}_bytes") for kind in ("step", "temp"))
        if not isinstance(step_bytes, int) or not isinstance(temp_bytes, int):
            break
        # How the rest is shared out among arguments and results makes no difference.
        attempts.append(Attempt(plan, step_bytes - temp_bytes, 0, 0, temp_bytes))
        if not driver.wants_another(attempts, target):
            break
    if not attempts:
        return Foresight()
    best = driver.best(attempts, target)

    def module_of_best() -> ir.Module:
        rewritten = clone_module(module)
        plan = planner(rewritten, attempts[:best])
        if not plan.empty:
            driver.apply(plan)
        return rewritten

    complaint = driver.complaint(attempts, best, target, module_of_best)
    return Foresight(tuple(attempts[:best]), complaint.text if complaint else None)
