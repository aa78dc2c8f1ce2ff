"""The planner's record of a plan for a budget, for later plans and for dumps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from ..analysis.loops.carries import Kept
from ..framework.errors import SpecError
from ..framework.feedback import Attempt, PlanRecord
from ..framework.spec import parse_spec
from ..framework.structure import Condition, Figure, Whole
from ..framework.tables import Fact, Kind
from .candidates import Candidate
from .moves import MOVES


class RematObstacle(StrEnum):
    """A reason why a program is not rewritten."""

    HELPER = "helper"
    NO_BARRIERS = "no-barriers"
    ONLY_SCANS = "only-scans"
    NOTHING_HELD = "nothing-held"
    NO_GAIN = "no-gain"
    IN_VAIN = "in-vain"
    ONE_COMPILE = "one-compile"

    @property
    def is_total(self) -> bool:
        """Whether nothing of the program can be rewritten, whatever the budget."""
        return self in (type(self).HELPER, type(self).NO_BARRIERS, type(self).NOTHING_HELD)

    @property
    def reason(self) -> str:
        """Returns the reason, and the remedy if there is one."""
        return _REASONS[self]

    @property
    def sentence(self) -> str:
        """Returns the reason as a sentence that names the part that is not rewritten."""
        only_scans = self is RematObstacle.ONLY_SCANS
        start = "Its straight-line part is left as it is" if only_scans else "Nothing is recomputed"
        return f"{start}: {self.reason}."

    def stands_at(self, kept: Kept) -> bool:
        """Whether it is the reason why an array is in memory at the peak, where loops keep it."""
        if kept.carry is not None:
            return self not in (
                RematObstacle.NO_BARRIERS,
                RematObstacle.ONLY_SCANS,
                RematObstacle.NOTHING_HELD,
                RematObstacle.NO_GAIN,
            )
        return self is not RematObstacle.ONLY_SCANS or not kept.in_loops


_DROPPED = (
    "the CPU compiler of jaxlib 0.10 keeps no optimization barriers, so that only scans are "
    "rewritten; jax 0.12 or a GPU rewrites straight-line programs too"
)
_REASONS = {
    RematObstacle.HELPER: (
        "it is a helper program, which no share is meant for: it has neither a matrix product nor "
        "a backward pass"
    ),
    RematObstacle.NO_BARRIERS: _DROPPED,
    RematObstacle.ONLY_SCANS: _DROPPED,
    RematObstacle.NOTHING_HELD: (
        "nothing of min_bytes or more that may be computed again is held in memory for later; "
        "arguments, results, collectives, custom calls and side effects never are"
    ),
    RematObstacle.NO_GAIN: "no recomputation that was tried lowers the peak",
    RematObstacle.IN_VAIN: (
        "that saves less than a tenth of what was to be saved, so that the program is used as it is"
    ),
    RematObstacle.ONE_COMPILE: (
        "a share is of what the program takes as it is, and compiles=1 leaves no compile beyond "
        "that one"
    ),
}


def reason_of(obstacle: RematObstacle | None, kept: Kept) -> str:
    """Returns why a program is not rewritten, by the arrays at its peak; empty if unknown."""
    if obstacle is not None and obstacle.stands_at(kept):
        return obstacle.reason
    return "" if kept.carry is None else f"{kept.carry.reason}; {kept.carry.remedy}"


def obstacle_of(*, keeps_barriers: bool, scans: bool, lines: bool) -> RematObstacle | None:
    """Returns the obstacle of a program; None if there is none.

    Args:
      keeps_barriers: whether the target honours optimization barriers.
      scans: whether there are pairs of loops to rewrite.
      lines: whether there are straight-line blocks to rewrite.
    """
    if scans and not keeps_barriers:
        return RematObstacle.ONLY_SCANS
    if scans or lines:
        return None
    return RematObstacle.NOTHING_HELD if keeps_barriers else RematObstacle.NO_BARRIERS


def _has_known_moves(candidate: Candidate) -> bool:
    """Whether its moves are passes that `fit` runs, each once: a dump can hold any text."""
    try:
        names = [step.name for step in parse_spec(candidate.moves, source="the moves of a plan")]
    except SpecError:
        return False
    return len(set(names)) == len(names) and _KNOWN_MOVES.issuperset(names)


_KNOWN_MOVES = {name for move in MOVES.values() for name in move.passes}
_MOVED = Condition(
    f"one whose moves are some of {', '.join(sorted(_KNOWN_MOVES))}", _has_known_moves
)


@dataclass(frozen=True)
class Estimate:
    """The predicted temporary memory at the peak, and added time, of a candidate.

    ``candidate`` is None for the unmodified program. ``seconds`` are weighted as in prices: cheap
    work counts by a share.
    """

    candidate: Annotated[Candidate, _MOVED] | None
    temp_bytes: Whole
    seconds: Figure


@dataclass(frozen=True)
class Measurement:
    """A candidate that was compiled, and the temporary memory in XLA's figures."""

    estimate: Estimate
    real_bytes: int


@dataclass(frozen=True)
class RematRecord(PlanRecord):
    """The record of a plan of the planner.

    Attributes:
      estimate: the candidate that the plan was made with; None without a budget.
      considered: the estimates of all candidates that were known to the planner then.
      added_seconds: the roofline time of the recomputation, one operation after the other; an upper
        bound for cheap work, which mostly fuses into kernels that run anyway.
      obstacle: the reason why the module, or its straight-line blocks, cannot be rewritten.
      unmodified_bytes: temporary memory of the unmodified program, by the model of estimates; None
        without a budget.
      step_seconds: the weighted time of a step of the unmodified program; 0 where it is unknown.
    """

    estimate: Estimate | None = None
    considered: tuple[Estimate, ...] = ()
    added_seconds: Figure = 0.0
    obstacle: RematObstacle | None = None
    unmodified_bytes: Whole | None = None
    step_seconds: Figure = 0.0

    @property
    def modelled_temp_bytes(self) -> tuple[int, int] | None:
        if self.estimate is None or self.unmodified_bytes is None:
            return None
        return self.unmodified_bytes, self.estimate.temp_bytes

    @property
    def candidate(self) -> Candidate | None:
        """Returns the candidate of the plan; None for the unmodified program."""
        return self.estimate.candidate if self.estimate else None

    @property
    def is_final(self) -> bool:
        """Whether no other plan could recompute anything."""
        return super().is_final or (self.obstacle is not None and self.obstacle.is_total)

    @property
    def is_unmodified(self) -> bool:
        return self.candidate is None

    @property
    def cost(self) -> float:
        """Returns the weighted added time of the plan in seconds."""
        return self.estimate.seconds if self.estimate else 0.0

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Returns the costs of the plan; none without a budget."""
        if self.prediction is None:
            return ()
        return (
            Fact("added work", self.prediction.added_flops or 0, Kind.FLOPS),
            Fact("added time, cheap work counted whole", self.added_seconds, Kind.SECONDS),
            Fact("plans considered", len(self.considered)),
        )


def measured(attempts: Sequence[Attempt[RematRecord]]) -> list[Measurement]:
    """Returns the attempts as estimates with XLA's figures for them."""
    return [
        Measurement(attempt.record.estimate, attempt.temp_bytes)
        for attempt in attempts
        if attempt.record.estimate is not None
    ]
