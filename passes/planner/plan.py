"""The plan of the planner for a module: moves, then what is recomputed in what they make of it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from ..framework.base import Decision
from ..framework.text import size
from ..ir import walk
from ..ir.clone import IRMapping, replace_body
from ..recompute.plan import RematPlan, apply_plan
from .moves import Moved
from .record import RematRecord

_RECOMPUTED = "remat/"
"""What the ids of decisions to recompute begin with, where there are moves."""


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
class MemoryPlan:
    """Moves and recomputation for one module.

    Attributes:
      module: the module to rewrite.
      remat: what is recomputed, of `moved`'s module, or of the module itself.
      record: for the plans that follow.
      moved: what the moves make of the module; None where there are no moves.
      effects: what each move gives and costs; empty without a budget.
      again: makes the same plan with some of the moves' decisions alone, and nothing recomputed
        unless all of these are there.
    """

    module: ir.Module
    remat: RematPlan = field(default_factory=RematPlan)
    record: RematRecord = field(default_factory=RematRecord)
    moved: Moved | None = None
    effects: tuple[MoveEffect, ...] = ()
    again: Callable[[ir.Module, Collection[str]], Moved | None] | None = field(
        default=None, repr=False
    )

    @property
    def empty(self) -> bool:
        return self.moved is None and self.remat.empty

    def summary(self) -> str:
        if self.empty:
            if why := self.record.unplanned:
                return f"nothing to do: {why}"
            if (obstacle := self.record.obstacle) is not None:
                return f"nothing to recompute: {obstacle.reason}"
            return "nothing to recompute" if self.record.estimate is None else "nothing to do"
        if not self.effects:
            return self.remat.summary()
        told = [str(effect) for effect in self.effects if not effect.prepares]
        if (prediction := self.record.prediction) is not None:
            told.append(f"{size(prediction.step_bytes)} predicted for the step")
        return "; ".join(told)

    def effect(self) -> str:
        if not self.effects:
            return self.remat.effect()
        return ", ".join(effect.effect for effect in self.effects if not effect.prepares)

    def to_json(self) -> dict[str, object]:
        moves = [effect.to_json() for effect in self.effects]
        return {"moves": moves} | self.remat.to_json() | self.record.to_json()

    def decisions(self) -> tuple[Decision, ...]:
        """Those of the moves, then those of the recomputation, which needs all of the moves."""
        recomputed = self.remat.decisions()
        if self.moved is None:
            return recomputed
        ids = (Decision(f"{_RECOMPUTED}{each.id}", each.description) for each in recomputed)
        return (*self.moved.decisions, *ids)

    def restricted_to(self, ids: Collection[str]) -> MemoryPlan:
        """The plan with these decisions alone, without a prediction."""
        if self.moved is None:
            return MemoryPlan(self.module, self.remat.restricted_to(ids))
        if all(each.id in ids for each in self.moved.decisions):
            left = {each.removeprefix(_RECOMPUTED) for each in ids if each.startswith(_RECOMPUTED)}
            return MemoryPlan(self.module, self.remat.restricted_to(left), moved=self.moved)
        assert self.again is not None
        return MemoryPlan(self.module, moved=self.again(self.module, ids))

    def apply(self) -> None:
        """Edits the module."""
        if self.moved is None:
            apply_plan(self.remat)
            return
        ops = walk.operations(self.moved.module.operation)
        number = {walk.key(op): place for place, op in enumerate(ops)}
        replace_body(self.module, self.moved.module)
        mapping = IRMapping(number, self.module)
        apply_plan(RematPlan(*mapping.of((self.remat.blocks, self.remat.scans))))
