"""Moves: passes that run before the recomputation, and what they made of a module."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..framework.base import Decision, DivisiblePlan, Pass, PlanWithEffect
from ..framework.pipeline import Pipeline
from ..framework.target import Target
from ..ir.clone import clone_module
from ..offload.plan import OffloadPlan


@dataclass(frozen=True)
class MoveRun:
    """What one pass of the moves did.

    Attributes:
      step: the pass.
      summary: its plan in a line.
      effect: what it does, in a few words.
      prepares: the spec does not name it: another pass of the moves requires it.
      plan: its plan as JSON.
      decisions: what it decided; its name alone where its plan is not divisible.
      waited_s: seconds of a step in which nothing but copies to the host and back runs.
    """

    step: Pass
    summary: str
    effect: str
    prepares: bool
    plan: dict[str, object]
    decisions: tuple[Decision, ...]
    waited_s: float = 0.0


@dataclass(frozen=True)
class Moved:
    """A module that moves have rewritten.

    Attributes:
      module: the module, for nobody to edit.
      runs: the passes that changed it.
    """

    module: ir.Module
    runs: tuple[MoveRun, ...]

    @property
    def count(self) -> int:
        """How many passes that the moves name changed the module, preparations left out."""
        return sum(not run.prepares for run in self.runs)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return tuple(decision for run in self.runs for decision in run.decisions)


def moved(
    module: ir.Module, moves: str, target: Target, ids: Collection[str] | None = None
) -> Moved:
    """What a spec of moves makes of a copy of the module: of equal modules the same.

    Args:
      module: the module, its calls inlined.
      moves: the passes.
      target: what it will run on.
      ids: the decisions to carry out; None for all.
    """
    copy, runs = clone_module(module), list[MoveRun]()
    with copy.context, ir.Location.unknown():
        pipeline = Pipeline.parse(moves, source="fit")
        for step in pipeline.steps():
            plan = step.nothing_on(target.platform) or step.plan(copy, target)
            if plan.empty:
                continue
            chosen = plan
            decisions: tuple[Decision, ...] = (Decision(step.name, plan.summary()),)
            if isinstance(plan, DivisiblePlan):
                found = plan.decisions()
                decisions = tuple(
                    Decision(f"{step.name}/{each.id}", each.description) for each in found
                )
                if ids is not None:
                    kept = [
                        part.id
                        for part, whole in zip(found, decisions, strict=True)
                        if whole.id in ids
                    ]
                    chosen = plan.restricted_to(kept)
            elif ids is not None and step.name not in ids:
                continue
            if chosen.empty:
                continue
            summary = chosen.summary()
            runs.append(
                MoveRun(
                    step=step,
                    summary=summary,
                    effect=chosen.effect() if isinstance(chosen, PlanWithEffect) else summary,
                    prepares=step not in pipeline.passes,
                    plan=chosen.to_json(),
                    decisions=decisions,
                    waited_s=chosen.exposed_s if isinstance(chosen, OffloadPlan) else 0.0,
                )
            )
            step.apply(chosen)
    return Moved(copy, tuple(runs))
