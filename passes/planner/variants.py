"""Variants of a program: its modules after moves, each with the model of its recomputation."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from jax.extend.mlir import ir

from ..analysis.cost import all_flops
from ..analysis.flops import executed_sizes
from ..analysis.memory_model.targets import memory_rules
from ..framework.base import Pass
from ..framework.errors import echo
from ..framework.target import Target
from ..ir.clone import clone_module, digest_of
from ..ir.ops import facts_of
from ..recompute.plan import RematPlan
from .candidates import Candidate, PlannerSettings
from .leave_stacks import write_plan
from .model import Model
from .moves import FASTER, Moved, moved
from .record import Estimate


@dataclass(frozen=True)
class Variant:
    """A program after some moves.

    Attributes:
      moves: their spec; empty for the unmodified program.
      of: the module, and the runs of the moves.
      base: the unmodified program, or that without checkpoints where these are undone before other
        moves; None for the unmodified program.
    """

    moves: str
    of: Moved
    target: Target
    settings: PlannerSettings
    base: Variant | None = None
    written_bytes: dict[Candidate, int] = field(default_factory=dict, compare=False)

    @cached_property
    def model(self) -> Model:
        """Returns the model of its candidates' memory and time."""
        like = None if self.base is None else self.base.model
        min_bytes = self.settings.min_bytes
        module, moves_seconds = self.of.module, lambda: self.added_seconds
        return Model(module, self.target, min_bytes, like, self.moves, moves_seconds)

    @cached_property
    def digest(self) -> bytes:
        """Returns that of the module."""
        return digest_of(self.of.module)

    @cached_property
    def step_seconds(self) -> float:
        """Returns the roofline time of a step on a device, in which cheap work counts by a share,
        and the time of its communication by the links; nothing overlaps."""
        pricing = self.model.pricing
        runs = self.model.runs
        work_s = sum(
            runs[op.block] * pricing.seconds(op)
            for op in self.model.operations
            if not facts_of(op.name).holds_code and op.block in runs
        )
        return work_s + self.model.device.exchange_seconds(self.target.speed)

    @cached_property
    def behind(self) -> Variant | None:
        """Returns the variant after the later passes; None if there are none or they do nothing."""
        if not self.settings.behind:
            return None
        found = moved(self.of.module, self.settings.behind, self.target)
        return Variant("", found, self.target, self.settings) if found.count else None

    def written(self, candidate: Candidate | None) -> ir.Module:
        """Returns a copy of the program with the plan of a candidate written into it."""
        module = clone_module(self.of.module)
        plans = self.model.on(module, self.model.plan(candidate))
        waits = memory_rules(self.target).makes_zeros_early
        write_plan(module, RematPlan(*plans, zeros_wait=waits))
        return module

    @property
    def whole(self) -> Estimate:
        """Returns the estimate of the program after the moves, with nothing recomputed."""
        return self.model.estimate(self.model.nothing)

    @cached_property
    def added_flops(self) -> float:
        """Returns the floating-point operations that the moves add."""
        if self.base is None:
            return 0.0
        sizes = executed_sizes(self.target.platform)
        after, before = (
            sum(all_flops(op, sizes) for op in one.model.main.operations)
            for one in (self, self.base)
        )
        return self.base.added_flops + self._counted(after - before)

    @cached_property
    def added_seconds(self) -> float:
        """Returns the time that the moves add to a step; negative where a checkpoint is undone."""
        if self.base is None:
            return 0.0
        waited_s = sum(run.waited_s for run in self.of.runs)
        added_s = self._counted(self._more_seconds(self.base))
        return self.base.added_seconds + added_s + waited_s

    def _more_seconds(self, base: Variant) -> float:
        """Returns how much longer a step takes than one of another variant.

        With a later pipeline the ratio of both times after it counts: there a device has a part of
        the work, and idles and sends in each group of microbatches. The ratio is applied to the
        time before the pipeline, by which recomputation is counted too.
        """
        if self.behind is None or base.behind is None:
            return self.step_seconds - base.step_seconds
        return (self.behind.step_seconds / base.behind.step_seconds - 1) * base.step_seconds

    def _counted(self, added: float) -> float:
        """Returns the added time, negative where the moves remove work; for other moves a gain that
        only a roofline promises counts as nothing."""
        return added if self.moves in FASTER else max(added, 0.0)


class Variants:
    """The variants of one module, made on demand."""

    def __init__(self, origin: ir.Module, target: Target, settings: PlannerSettings) -> None:
        self._target, self._settings = target, settings
        self.base = Variant("", Moved(origin, ()), target, settings)
        self._known: dict[str, Variant | None] = {"": self.base}
        self._steps: dict[tuple[Pass, ...], Moved] = {}

    def of(self, moves: str) -> Variant | None:
        """Returns the program after these moves; None where they find nothing to do."""
        if moves not in self._known:
            found = moved(self.base.of.module, moves, self._target, known=self._steps)
            first = next((one for one in FASTER if moves.startswith(f"{one},")), "")
            base = self.of(first)
            made = None
            if base is not None and found.count > base.of.count:
                made = Variant(moves, found, self._target, self._settings, base)
                if made.behind is None and base.behind is not None:
                    made = None  # the moves leave nothing to do for the later passes
            self._known[moves] = made
        return self._known[moves]

    def made_by(self, candidate: Candidate | None) -> Variant:
        """Returns the variant of a candidate. Raises ValueError if it is of another program."""
        moves = "" if candidate is None else candidate.moves
        variant = self.of(moves)
        if variant is None:
            raise ValueError(f"a plan has the moves {echo(moves)}, which find nothing to do here")
        return variant

    def have(self, candidate: Candidate | None) -> bool:
        """Whether a candidate is of this program: a dump may have others."""
        variant = self.of("" if candidate is None else candidate.moves)
        again = candidate is not None and candidate.recomputes
        return variant is not None and (not again or variant.model.has(candidate))

    @property
    def simulated_operations(self) -> int:
        """Returns how many operations were simulated by now, over all candidates."""
        return sum(
            each.model.simulated * len(each.model.operations)
            for each in self._known.values()
            if each is not None and "model" in vars(each)
        )


def moves_of(estimate: Estimate) -> str:
    """Returns the moves of an estimate's candidate."""
    return "" if estimate.candidate is None else estimate.candidate.moves
