"""Plans for a budget: moves, then recomputation after them; and the planner."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from jax.extend.mlir import ir

from ..analysis.autodiff import is_backward
from ..analysis.loops.carries import Kept, loop_stacks
from ..framework.base import Decision, PlanBase
from ..framework.feedback import Attempt, Prediction, temp_limit
from ..framework.tables import Fact, Kind, Table
from ..framework.target import Target
from ..framework.text import lower_first, size
from ..ir import walk
from ..ir.clone import IRMapping, replace_body
from ..ir.ops import facts_of
from ..recompute.plan import RematPlan
from .aim import Aim
from .candidates import PlannerSettings
from .leave_stacks import write_plan
from .loop import decide
from .model import Model, added_work
from .moves import UNDO, Moved, moved
from .record import Estimate, RematObstacle, RematRecord, reason_of
from .search import Search
from .strategy import Choice
from .variants import Variant, Variants, moves_of

_RECOMPUTED = "remat/"
"""The prefix of the ids of decisions to recompute, where there are moves."""


@dataclass(frozen=True)
class MoveEffect:
    """The memory and time that one move saves and costs, by the models.

    Attributes:
      spec: the pass; `remat` for the recomputation.
      summary: its effect in a line.
      effect: the same in a few words.
      prepares: it only prepares the program for a move that comes after it.
      before_bytes, after_bytes: temporary memory at the peak without it and with it; None where
        that was not computed.
      added_seconds: time added to a step; one sixteenth of cheap work counts; negative for time
        saved.
      tables: the tables of the pass's own plan.
    """

    spec: str
    summary: str
    effect: str
    prepares: bool
    before_bytes: int | None
    after_bytes: int | None
    added_seconds: float
    tables: tuple[Table, ...] = field(repr=False)

    def __str__(self) -> str:
        text = f"{self.spec}: {self.effect}"
        if self.before_bytes is None or self.after_bytes is None:
            return text
        gain = f"{size(self.before_bytes)} become {size(self.after_bytes)}"
        changed = "added" if self.added_seconds >= 0 else "saved"
        return f"{text}, {gain}, {1e3 * abs(self.added_seconds):.3g} ms {changed}"


@dataclass(frozen=True)
class MemoryPlan(PlanBase):
    """Moves and recomputation for one module.

    Attributes:
      module: the module to rewrite.
      remat: the recomputation in `moved`'s module, or in the module itself.
      record: the record for later plans.
      moved: the module after the moves; None where there are no moves.
      effects: the memory and time of each move; empty without a budget.
      again: makes the same plan with some of the moves' decisions alone, and without recomputation
        unless all of these are included.
      holds: whether it is expected to hold the budget.
      kept: the arrays that loops keep at the peak, where the program is unchanged.
    """

    module: ir.Module
    remat: RematPlan = field(default_factory=RematPlan)
    record: RematRecord = field(default_factory=RematRecord)
    moved: Moved | None = None
    effects: tuple[MoveEffect, ...] = ()
    again: Callable[[ir.Module, Collection[str]], Moved | None] | None = field(
        default=None, repr=False
    )
    holds: bool = False
    kept: Kept = field(default_factory=Kept)

    @property
    def empty(self) -> bool:
        return self.moved is None and self.remat.empty

    def summary(self) -> str:
        if self.empty:
            if why := self.record.unplanned:
                return f"nothing to do: {why}"
            if self.holds:
                return "nothing to do"
            reason = reason_of(self.record.obstacle, self.kept)
            return f"nothing to recompute{f': {reason}' if reason else ''}"
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

    def facts(self) -> tuple[Fact, ...]:
        return (*self.remat.facts(), *self.record.facts)

    def tables(self) -> tuple[Table, ...]:
        """Returns a table of each move's memory and time, then the tables of each move's plan."""
        rows = tuple(
            (
                effect.spec,
                effect.summary,
                effect.before_bytes,
                effect.after_bytes,
                None if effect.after_bytes is None else effect.added_seconds,
            )
            for effect in self.effects
        )
        moves = (
            replace(table, title=f"{effect.spec.partition('{')[0]}: {lower_first(table.title)}")
            for effect in self.effects
            for table in effect.tables
        )
        done = Table("What was done, and what it costs", _COLUMNS, rows, _BY_MODEL if rows else "")
        return (done, *moves, *self.remat.tables())

    def decisions(self) -> tuple[Decision, ...]:
        """Returns the moves' decisions, then the recomputation's, which needs all moves."""
        recomputed = self.remat.decisions()
        if self.moved is None:
            return recomputed
        ids = (Decision(f"{_RECOMPUTED}{each.id}", each.description) for each in recomputed)
        return (*self.moved.decisions, *ids)

    def restricted_to(self, ids: Collection[str]) -> MemoryPlan:
        """Returns the plan with these decisions alone, without a prediction."""
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
            write_plan(self.module, self.remat)
            return
        ops = walk.operations(self.moved.module.operation)
        number = {walk.key(op): place for place, op in enumerate(ops)}
        replace_body(self.module, self.moved.module)
        mapping = IRMapping(number, self.module)
        plans = mapping.of((self.remat.blocks, self.remat.scans))
        write_plan(self.module, replace(self.remat, blocks=plans[0], scans=plans[1]))


_COLUMNS = {
    "move": Kind.CODE,
    "what it did": Kind.TEXT,
    "temporaries": Kind.BYTES,
    "become": Kind.BYTES,
    "adds to a step": Kind.SECONDS,
}
_BY_MODEL = (
    "Temporary memory at the peak by hloom's model, and time by the rooflines of the device. Of "
    "cheap work, which mostly fuses into kernels that run anyway, one sixteenth counts."
)

_MOST_UNDONE = 2
"""How many plans that undo checkpoints may exceed the budget, before checkpoints are kept."""


def _is_undone_in_vain(attempts: Sequence[Attempt[RematRecord]], limit_bytes: int) -> bool:
    """Whether plans without the user's checkpoints exceed a budget that they should hold."""
    undone = [
        attempt
        for attempt in attempts
        if (estimate := attempt.record.estimate) is not None and moves_of(estimate).startswith(UNDO)
    ]
    return len(undone) >= _MOST_UNDONE and all(one.temp_bytes > limit_bytes for one in attempts)


class MemoryPlanner:
    """Plans for a budget. The module is analysed once, and each attempt edits a clone of it."""

    def __init__(self, origin: ir.Module, target: Target, settings: PlannerSettings) -> None:
        self._target, self._settings = target, settings
        self._variants = Variants(origin, target, settings)

    def __call__(self, module: ir.Module, attempts: Sequence[Attempt[RematRecord]]) -> MemoryPlan:
        """Returns the next plan, for the module or a clone of it, after these attempts."""
        try:
            choice, around_bytes, limit_bytes = self._choose(attempts)
        except walk.NoEntryError as error:
            return MemoryPlan(
                module, record=RematRecord(unplanned=f"no budget can be held: {error}")
            )
        variant = self._variants.made_by(choice.estimate.candidate)
        plans = variant.model.plan(choice.estimate.candidate)
        again_flops, again_s = added_work(*plans, variant.model.pricing)
        blocks, scans = plans if variant.moves else variant.model.on(module, plans)
        remat = RematPlan(blocks, scans, variant.model.device.rules.makes_zeros_early)
        record = RematRecord(
            prediction=Prediction(
                step_bytes=around_bytes + choice.expected_bytes,
                temp_bytes=choice.expected_bytes,
                added_flops=again_flops + variant.added_flops,
            ),
            found=choice.lines,
            estimate=choice.estimate,
            considered=choice.known,
            added_seconds=again_s + variant.added_seconds,
            obstacle=None if variant.moves else self._obstacle(variant.model),
            unmodified_bytes=self._variants.base.whole.temp_bytes,
            step_seconds=self._variants.base.step_seconds,
        )
        return MemoryPlan(
            module,
            remat,
            record,
            variant.of if variant.moves else None,
            tuple(self._effects(variant, remat, choice.estimate)),
            lambda other, ids: self._again(variant, other, ids),
            limit_bytes is not None and choice.expected_bytes <= limit_bytes,
            self._kept if remat.empty and not variant.moves else Kept(),
        )

    @functools.cached_property
    def _kept(self) -> Kept:
        model = self._variants.base.model
        stacks = loop_stacks(model.module, model.device.bytes_of)
        return stacks.at_peak(model.estimate(None).temp_bytes)

    def _choose(self, attempts: Sequence[Attempt[RematRecord]]) -> tuple[Choice, int, int | None]:
        """Returns the candidate to compile, the bytes of a step besides temporary memory, and the
        limit on temporary memory; None where none is known."""
        around_bytes = self._variants.base.model.unmodified().around_bytes
        if attempts:
            around_bytes = attempts[0].step_bytes - attempts[0].temp_bytes
        limit = temp_limit(self._settings.budget, attempts, self._target, around_bytes)
        known = attempts[-1].record.considered if attempts else ()
        moves = self._settings.moves
        if limit is not None and _is_undone_in_vain(attempts, limit):
            moves = tuple(move for move in moves if move != UNDO)
            known = tuple(each for each in known if not moves_of(each).startswith(UNDO))
        search = Search(self._variants, moves, known)
        if limit is not None:
            return decide(search, limit, attempts, self._settings), around_bytes, limit
        # A share of the unmodified program's memory, which is compiled first to measure it.
        whole, why = search.estimate(None), "to measure what the budget is a share of"
        aim = Aim(math.inf)
        choice = Choice(whole, whole.temp_bytes, (whole,), search.found_by, aim, why)
        return choice, around_bytes, None

    def _obstacle(self, model: Model) -> RematObstacle | None:
        """Returns why nothing of a program is recomputed for any budget; None if something is."""
        if (
            self._settings.budget.percent is not None
            and not model.pairs
            and not any(facts_of(op.name).is_product or is_backward(op) for op in model.operations)
        ):
            return RematObstacle.HELPER
        return model.obstacle

    def _effects(
        self, variant: Variant, remat: RematPlan, estimate: Estimate
    ) -> Iterator[MoveEffect]:
        before = self._variants.base.model.estimate(None).temp_bytes
        if variant.moves:
            after = variant.whole.temp_bytes
            runs = variant.of.runs
            for number, run in enumerate(runs):
                last = number == len(runs) - 1
                yield MoveEffect(
                    spec=str(run.step),
                    summary=run.summary,
                    effect=run.effect,
                    prepares=run.prepares,
                    before_bytes=before if last else None,
                    after_bytes=after if last else None,
                    added_seconds=variant.added_seconds if last else 0.0,
                    tables=run.tables,
                )
            before = after
        if not remat.empty:
            yield MoveEffect(
                spec="remat",
                summary=remat.summary(),
                effect=remat.effect(),
                prepares=False,
                before_bytes=before,
                after_bytes=estimate.temp_bytes,
                added_seconds=estimate.seconds - variant.added_seconds,
                tables=(),
            )

    def _again(self, variant: Variant, module: ir.Module, ids: Collection[str]) -> Moved | None:
        found = moved(module, variant.moves, self._target, ids)
        return found if found.runs else None
