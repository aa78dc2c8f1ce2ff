"""Moves: passes that run before the recomputation, and what they made of a module."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from ..framework.base import Decision, DivisiblePlan, Pass, PlanWithEffect
from ..framework.pipeline import Pipeline
from ..framework.target import Target
from ..framework.text import size
from ..ir.clone import clone_module
from ..offload.plan import OffloadPlan
from .plan import RematPlan
from .record import RematRecord


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


@dataclass(frozen=True)
class MoveEffect:
    """What one move gives and costs, by the models.

    Attributes:
      spec: the pass; `remat` for what is recomputed.
      summary: what it does, in a line.
      effect: the same in a few words.
      prepares: it only prepares the program for a move that comes after it.
      before_bytes, after_bytes: temporary memory at the peak without it and with it; None where
        that was not looked at.
      added_seconds: of a step; of cheap work one sixteenth counts; below zero for time saved.
      plan: the pass's own plan.
    """

    spec: str
    summary: str
    effect: str
    prepares: bool
    before_bytes: int | None
    after_bytes: int | None
    added_seconds: float
    plan: dict[str, object] = field(repr=False)

    def to_json(self) -> dict[str, object]:
        return {
            "pass": self.spec,
            "summary": self.summary,
            "prepares": self.prepares,
            "temp_bytes_before": self.before_bytes,
            "temp_bytes_after": self.after_bytes,
            "weighted_seconds": self.added_seconds,
            "plan": self.plan,
        }

    def __str__(self) -> str:
        text = f"{self.spec}: {self.effect}"
        if self.before_bytes is None or self.after_bytes is None:
            return text
        gain = f"{size(self.before_bytes)} become {size(self.after_bytes)}"
        changed = "added" if self.added_seconds >= 0 else "saved"
        return f"{text}, {gain}, {1e3 * abs(self.added_seconds):.3g} ms {changed}"


@dataclass(frozen=True)
class FitPlan:
    """Moves and recomputation for one module.

    Attributes:
      module: the module to rewrite.
      moved: what the moves make of it; None where there are no moves.
      remat: what is recomputed, of `moved`'s module, or of the module itself.
      effects: what each move gives and costs.
      record: for the plans that follow.
      again: makes the same plan with some of the moves' decisions alone, and nothing recomputed
        unless all of these are there.
    """

    module: ir.Module
    moved: Moved | None
    remat: RematPlan
    effects: tuple[MoveEffect, ...] = ()
    record: RematRecord = field(default_factory=RematRecord)
    again: Callable[[ir.Module, Collection[str]], Moved | None] | None = field(
        default=None, repr=False
    )

    @property
    def empty(self) -> bool:
        return self.moved is None and self.remat.empty

    def summary(self) -> str:
        if self.empty:
            because = self.record.unplanned or ""
            return f"nothing to do{f': {because}' if because else ''}"
        told = [str(effect) for effect in self.effects if not effect.prepares]
        if (prediction := self.record.prediction) is not None:
            told.append(f"{size(prediction.step_bytes)} predicted for the step")
        return "; ".join(told)

    def effect(self) -> str:
        return ", ".join(effect.effect for effect in self.effects if not effect.prepares)

    def to_json(self) -> dict[str, object]:
        moves = [effect.to_json() for effect in self.effects]
        return {"moves": moves} | self.remat.to_json() | self.record.to_json()

    def decisions(self) -> tuple[Decision, ...]:
        """Those of the moves, then those of the recomputation, which needs all of the moves."""
        moves = () if self.moved is None else self.moved.decisions
        recomputed = (
            Decision(f"remat/{each.id}", each.description) for each in self.remat.decisions()
        )
        return (*moves, *recomputed)

    def restricted_to(self, ids: Collection[str]) -> FitPlan:
        """The plan with these decisions alone, without a prediction."""
        left = {each.removeprefix("remat/") for each in ids if each.startswith("remat/")}
        if self.moved is None:
            return FitPlan(self.module, None, self.remat.restricted_to(left))
        if all(each.id in ids for each in self.moved.decisions):
            return FitPlan(self.module, self.moved, self.remat.restricted_to(left))
        assert self.again is not None
        return FitPlan(self.module, self.again(self.module, ids), RematPlan((), ()))
