"""Makes the plans for a budget: the closed loop on the variants of a program."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from jax.extend.mlir import ir

from ..analysis.autodiff import is_backward
from ..framework.feedback import Attempt, Prediction, temp_limit
from ..framework.target import Target
from ..ir import walk
from ..ir.ops import facts_of
from ..recompute.plan import RematPlan
from .candidates import PlannerSettings
from .loop import Choice, decide
from .model import Model, added_work
from .moves import UNDO, Moved, moved
from .plan import MemoryPlan, MoveEffect
from .record import Estimate, RematObstacle, RematRecord
from .search import Search
from .variants import Variant, Variants, moves_of

_MOST_UNDONE = 2
"""Plans that undo checkpoints and take more than the budget, before these stay."""


def _is_undone_in_vain(attempts: Sequence[Attempt[RematRecord]], limit_bytes: int) -> bool:
    """Whether plans without the user's checkpoints, that should hold the budget, do not."""
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
        """The next plan, for a clone of the module or the module itself, after these attempts."""
        try:
            choice, around_bytes = self._choose(attempts)
        except walk.NoEntryError as error:
            return MemoryPlan(
                module, record=RematRecord(unplanned=f"no budget can be held: {error}")
            )
        variant = self._variants.made_by(choice.estimate.candidate)
        plans = variant.plan(choice.estimate)
        again_flops, again_s = added_work(*plans, variant.model.pricing)
        remat = RematPlan(*(plans if variant.moves else variant.model.on(module, plans)))
        record = RematRecord(
            prediction=Prediction(
                step_bytes=around_bytes + choice.expected_bytes,
                temp_bytes=choice.expected_bytes,
                added_flops=again_flops + variant.added_flops,
            ),
            estimate=choice.estimate,
            considered=choice.known,
            added_seconds=again_s + variant.added_seconds,
            obstacle=None if variant.moves else self._obstacle(variant.model),
            unmodified_bytes=self._variants.base.model.estimate(None).temp_bytes,
        )
        return MemoryPlan(
            module,
            remat,
            record,
            variant.of if variant.moves else None,
            tuple(self._effects(variant, remat, choice.estimate)),
            lambda other, ids: self._again(variant, other, ids),
        )

    def _choose(self, attempts: Sequence[Attempt[RematRecord]]) -> tuple[Choice, int]:
        """The candidate to compile, and what the step takes beside temporary memory."""
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
            return decide(search, limit, attempts, self._settings), around_bytes
        # A share of what the unmodified program takes, which is compiled first to find out.
        unmodified = search.estimate(None)
        return Choice(unmodified, unmodified.temp_bytes, (unmodified,)), around_bytes

    def _obstacle(self, model: Model) -> RematObstacle | None:
        """Why nothing of the program is recomputed, whatever the budget is; None where some is."""
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
            after = variant.model.estimate(None).temp_bytes
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
                    plan=run.plan,
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
                plan={},
            )

    def _again(self, variant: Variant, module: ir.Module, ids: Collection[str]) -> Moved | None:
        found = moved(module, variant.moves, self._target, ids)
        return found if found.runs else None
