"""Variants of a program: what moves make of it, each with the model of its recomputation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from jax.extend.mlir import ir

from ..analysis.cost import all_flops
from ..analysis.loops.counted import runs_of
from ..framework.errors import echo
from ..framework.target import Target
from ..ir.ops import facts_of
from ..ir.types import TensorSizes
from .candidates import Candidate, PlannerSettings
from .model import Model, Plans
from .moves import UNDO, Moved, moved
from .record import Estimate


@dataclass(frozen=True)
class Variant:
    """A program after some moves.

    Attributes:
      moves: their spec; empty for the program as it is.
      of: the module and what the moves did.
      base: the program as it is, or what it is without checkpoints where these are undone before
        other moves; None for the program as it is.
    """

    moves: str
    of: Moved
    target: Target
    settings: PlannerSettings
    base: Variant | None = None

    @cached_property
    def model(self) -> Model:
        """Memory and time of its candidates."""
        like = None if self.base is None else self.base.model
        return Model(self.of.module, self.target, self.settings.min_bytes, like)

    @cached_property
    def step_seconds(self) -> float:
        """The time of a step on a device by rooflines, in which a second of cheap work counts by a
        share, and what it sends its peers by the links; nothing is done beside something else."""
        pricing = self.model.pricing
        runs = {block: runs_of(block) for block in self.model.blocks}
        work_s = sum(
            runs[op.block] * pricing.seconds(op)
            for op in self.model.operations
            if not facts_of(op.name).holds_code and op.block in runs
        )
        return work_s + self.model.device.exchange_seconds(self.target.speed)

    @cached_property
    def behind(self) -> Variant | None:
        """What the passes behind make of it; None where there are none, or they do nothing."""
        if not self.settings.behind:
            return None
        found = moved(self.of.module, self.settings.behind, self.target)
        return Variant("", found, self.target, self.settings) if found.count else None

    def plan(self, estimate: Estimate) -> Plans:
        """What an estimate of the variant recomputes in its module."""
        own = of_remat(estimate.candidate)
        return ((), ()) if own is None else self.model.plan(own)

    @cached_property
    def added_flops(self) -> float:
        """Floating-point operations that the moves add."""
        if self.base is None:
            return 0.0
        sizes = TensorSizes()
        after, before = (
            sum(all_flops(op, sizes) for op in one.model.main.operations)
            for one in (self, self.base)
        )
        return self.base.added_flops + self._counted(after - before)

    @cached_property
    def added_seconds(self) -> float:
        """What the moves add to a step; less than nothing where a checkpoint is undone."""
        if self.base is None:
            return 0.0
        waited_s = sum(run.waited_s for run in self.of.runs)
        added_s = self._counted(self._more_seconds(self.base))
        return self.base.added_seconds + added_s + waited_s

    def _more_seconds(self, base: Variant) -> float:
        """What a step takes longer than one of another variant.

        Behind a pipeline it is as many times as long: there a device has a part of the work, and
        idles and sends in each group of microbatches. What is recomputed has no such price, so
        that both count as they do in the program in front of it.
        """
        if self.behind is None or base.behind is None:
            return self.step_seconds - base.step_seconds
        return (self.behind.step_seconds / base.behind.step_seconds - 1) * base.step_seconds

    def _counted(self, added: float) -> float:
        """What is added, or taken away by work that is not done; that a roofline only promises
        less of other moves counts as nothing."""
        return added if self.moves == UNDO else max(added, 0.0)


class Variants:
    """The variants of one module, made when they are asked for."""

    def __init__(self, origin: ir.Module, target: Target, settings: PlannerSettings) -> None:
        self._target, self._settings = target, settings
        self.base = Variant("", Moved(origin, ()), target, settings)
        self._known: dict[str, Variant | None] = {"": self.base}

    def of(self, moves: str) -> Variant | None:
        """The program after these moves; None where they find nothing to do."""
        if moves not in self._known:
            found = moved(self.base.of.module, moves, self._target)
            first = UNDO if moves.startswith(f"{UNDO},") else ""
            base = self.of(first)
            made = None
            if base is not None and found.count > base.of.count:
                made = Variant(moves, found, self._target, self._settings, base)
                if made.behind is None and base.behind is not None:
                    made = None  # the moves leave the passes behind nothing to do
            self._known[moves] = made
        return self._known[moves]

    def made_by(self, candidate: Candidate | None) -> Variant:
        """The variant of a candidate. Raises ValueError where it is of no program like this."""
        moves = "" if candidate is None else candidate.moves
        variant = self.of(moves)
        if variant is None:
            raise ValueError(f"a plan has the moves {echo(moves)}, which find nothing to do here")
        return variant

    def have(self, candidate: Candidate | None) -> bool:
        """Whether a candidate is of this program: a dump may have others."""
        variant, own = self.of("" if candidate is None else candidate.moves), of_remat(candidate)
        return variant is not None and (own is None or variant.model.has(own))

    @property
    def simulated_operations(self) -> int:
        """Operations that were simulated by now, over all candidates."""
        return sum(
            each.model.simulated * len(each.model.operations)
            for each in self._known.values()
            if each is not None and "model" in vars(each)
        )


def of_remat(candidate: Candidate | None) -> Candidate | None:
    """The candidate on a variant's own program; None where nothing is recomputed there."""
    if candidate is None or not candidate.recomputes:
        return None
    return replace(candidate, moves="")


def moves_of(estimate: Estimate) -> str:
    """The moves of an estimate's candidate."""
    return "" if estimate.candidate is None else estimate.candidate.moves
