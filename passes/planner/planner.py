"""Plans for a budget over all moves: the closed loop of `remat` on the variants of a program."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from jax.extend.mlir import ir

from ..framework.feedback import Attempt, Prediction
from ..framework.target import Target
from ..ir import walk
from .loop import Bounds, Choice, decide, temp_budget
from .model import added_work
from .moves import FitPlan, Moved, MoveEffect, moved
from .moves_search import UNDO, FitSearch
from .plan import RematPlan, obstacle_in
from .record import Estimate, RematRecord
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


class FitPlanner:
    """Plans for a budget. The module is analysed once, and each attempt edits a clone of it."""

    def __init__(
        self,
        origin: ir.Module,
        target: Target,
        bounds: Bounds,
        moves: Sequence[str],
        min_bytes: int,
    ) -> None:
        self._bounds, self._budget = bounds, bounds.budget
        self._target, self._moves = target, tuple(moves)
        self._variants = Variants(origin, target, min_bytes)

    def __call__(self, module: ir.Module, attempts: Sequence[Attempt[RematRecord]]) -> FitPlan:
        """The next plan, for a clone of the module or the module itself, after these attempts."""
        try:
            choice, around_bytes = self._choose(attempts)
        except walk.NoEntryError as error:
            unplanned = RematRecord(unplanned=f"no budget can be held: {error}")
            return FitPlan(module, None, RematPlan((), ()), record=unplanned)
        variant = self._variants.made_by(choice.estimate.candidate)
        plans = variant.plan(choice.estimate)
        again_flops, again_s = added_work(*plans, variant.model.pricing)
        own = plans if variant.base is not None else variant.model.on(module, plans)
        remat = RematPlan(*own)
        record = RematRecord(
            prediction=Prediction(
                step_bytes=around_bytes + choice.expected_bytes,
                temp_bytes=choice.expected_bytes,
                added_flops=again_flops + variant.added_flops,
            ),
            estimate=choice.estimate,
            considered=choice.known,
            added_seconds=again_s + variant.added_seconds,
            obstacle=None
            if variant.base is not None
            else obstacle_in(variant.model, self._target, self._budget),
            unmodified_bytes=self._variants.base.model.estimate(None).temp_bytes,
        )
        return FitPlan(
            module,
            None if variant.base is None else variant.of,
            remat,
            tuple(self._effects(variant, remat, choice.estimate)),
            record,
            lambda other, ids: self._again(variant, other, ids),
        )

    def _choose(self, attempts: Sequence[Attempt[RematRecord]]) -> tuple[Choice, int]:
        """The candidate to compile, and what the step takes beside temporary memory."""
        model = self._variants.base.model
        first = attempts or (Attempt(RematRecord(), model.unmodified().around_bytes, 0),)
        known = attempts[-1].record.considered if attempts else ()
        share = self._budget.percent is not None
        limit = temp_budget(self._budget, attempts if share else first, self._target)
        moves = self._moves
        if limit is not None and _is_undone_in_vain(attempts, limit):
            moves = tuple(move for move in moves if move != UNDO)
            known = tuple(each for each in known if not moves_of(each).startswith(UNDO))
        search = FitSearch(self._variants, moves, known)
        if limit is None:
            # A share of what the unmodified program takes, which is compiled first to find out.
            unmodified = search.estimate(None)
            choice = Choice(unmodified, unmodified.temp_bytes, (unmodified,))
        else:
            choice = decide(search, limit, attempts, self._bounds)
        return choice, first[0].step_bytes - first[0].temp_bytes

    def _effects(
        self, variant: Variant, remat: RematPlan, estimate: Estimate
    ) -> Iterator[MoveEffect]:
        before = self._variants.base.model.estimate(None).temp_bytes
        if variant.base is not None:
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
