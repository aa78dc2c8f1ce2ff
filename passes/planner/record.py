"""What the planner keeps of a plan for a budget: for the plans after it, and for dumps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..analysis.loops.carries import Kept
from ..framework.errors import echo
from ..framework.feedback import (
    Attempt,
    PlanRecord,
    number,
    prediction_of,
    unplanned_of,
    whole_number,
)
from ..framework.spec import parse_spec
from ..framework.tables import Fact, Kind
from .candidates import TOP, Candidate
from .moves import MOVES


class RematObstacle(StrEnum):
    """A reason why a program is not rewritten. The plan's JSON has its value."""

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
        """The reason, and the remedy if there is one."""
        return _REASONS[self]

    @property
    def sentence(self) -> str:
        """The reason as a sentence that names the part that is not rewritten."""
        only_scans = self is RematObstacle.ONLY_SCANS
        start = "Its straight-line part is left as it is" if only_scans else "Nothing is recomputed"
        return f"{start}: {self.reason}."

    def stands_at(self, kept: Kept) -> bool:
        """Whether it is the reason for what stands at the peak, where loops keep that."""
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
    """Why a program is not rewritten, by what stands at its peak; empty where nobody knows."""
    if obstacle is not None and obstacle.stands_at(kept):
        return obstacle.reason
    return "" if kept.carry is None else f"{kept.carry.reason}; {kept.carry.remedy}"


def obstacle_of(*, keeps_barriers: bool, scans: bool, lines: bool) -> RematObstacle | None:
    """The obstacle of a program; None if there is none.

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


@dataclass(frozen=True)
class Estimate:
    """What a candidate is predicted to give: temporary memory at the peak, and added time.

    ``candidate`` is None for the program as it is. ``seconds`` are as they count in prices: of
    cheap work a share.
    """

    candidate: Candidate | None
    temp_bytes: int
    seconds: float

    def to_json(self) -> dict[str, object]:
        return {
            "setting": _candidate_json(self.candidate),
            "temp_bytes": self.temp_bytes,
            "weighted_seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Estimate:
        return cls(
            _candidate(found["setting"]),
            whole_number(found["temp_bytes"]),
            number(found["weighted_seconds"]),
        )


@dataclass(frozen=True)
class Measurement:
    """A candidate that was compiled, and the temporary memory XLA gave it."""

    estimate: Estimate
    real_bytes: int


@dataclass(frozen=True)
class RematRecord(PlanRecord):
    """The record of a plan of the planner.

    Attributes:
      estimate: the candidate that the plan was made with; None without a budget.
      considered: the estimates of all candidates that were known when it was made.
      added_seconds: what is done once more by its roofline, all of it one after the other; of cheap
        work, which mostly fuses into kernels that run anyway, an upper bound.
      obstacle: what keeps the module from being rewritten, or its straight-line blocks.
      unmodified_bytes: temporary memory of the program as it is, by the model of estimates; None
        without a budget.
      step_seconds: the time of a step of the program as it is, as it counts in prices; 0 where it
        is not known.
    """

    estimate: Estimate | None = None
    considered: tuple[Estimate, ...] = ()
    added_seconds: float = 0.0
    obstacle: RematObstacle | None = None
    unmodified_bytes: int | None = None
    step_seconds: float = 0.0

    @property
    def modelled_temp_bytes(self) -> tuple[int, int] | None:
        if self.estimate is None or self.unmodified_bytes is None:
            return None
        return self.unmodified_bytes, self.estimate.temp_bytes

    @property
    def candidate(self) -> Candidate | None:
        """What the plan was made with; None for the program as it is."""
        return self.estimate.candidate if self.estimate else None

    @property
    def is_final(self) -> bool:
        """Whether there is nothing that another plan could recompute."""
        return super().is_final or (self.obstacle is not None and self.obstacle.is_total)

    @property
    def is_unmodified(self) -> bool:
        return self.candidate is None

    @property
    def cost(self) -> float:
        """The added time of the plan in seconds, as it counts in prices."""
        return self.estimate.seconds if self.estimate else 0.0

    @property
    def facts(self) -> tuple[Fact, ...]:
        """What the plan costs; none without a budget."""
        if self.prediction is None:
            return ()
        return (
            Fact("added work", self.prediction.added_flops or 0, Kind.FLOPS),
            Fact("added time at most", self.added_seconds, Kind.SECONDS),
            Fact("plans considered", len(self.considered)),
        )

    def to_json(self) -> dict[str, object]:
        found = super().to_json()
        if self.obstacle is not None:
            found["obstacle"] = str(self.obstacle)
        if self.estimate is None or self.prediction is None:
            return found
        return found | {
            "setting": _candidate_json(self.estimate.candidate),
            "model_temp_bytes": self.estimate.temp_bytes,
            "model_unmodified_bytes": self.unmodified_bytes,
            "weighted_seconds": self.estimate.seconds,
            "considered": [one.to_json() for one in self.considered],
            "added_seconds": self.added_seconds,
            "step_seconds": self.step_seconds,
        }

    @classmethod
    def from_json(cls, plan: Mapping[str, Any]) -> RematRecord:
        estimate = None
        if "model_temp_bytes" in plan:
            estimate = Estimate.from_json({**plan, "temp_bytes": plan["model_temp_bytes"]})
        obstacle, unmodified = plan.get("obstacle"), plan.get("model_unmodified_bytes")
        return cls(
            prediction=prediction_of(plan),
            unplanned=unplanned_of(plan),
            estimate=estimate,
            considered=tuple(map(Estimate.from_json, plan.get("considered", ()))),
            added_seconds=number(plan.get("added_seconds", 0.0)),
            obstacle=None if obstacle is None else RematObstacle(obstacle),
            unmodified_bytes=None if unmodified is None else whole_number(unmodified),
            step_seconds=number(plan.get("step_seconds", 0.0)),
        )


def measured(attempts: Sequence[Attempt[RematRecord]]) -> list[Measurement]:
    """The attempts as estimates with what XLA made of them."""
    return [
        Measurement(attempt.record.estimate, attempt.temp_bytes)
        for attempt in attempts
        if attempt.record.estimate is not None
    ]


def _candidate_json(candidate: Candidate | None) -> list[int | bool | str] | None:
    if candidate is None:
        return None
    *fields, moves = dataclasses.astuple(candidate)
    return [*fields, moves] if moves else fields


_FIELDS = (int, int, int, bool, bool, int)
_OLD_FIELDS = _FIELDS[:3]
"""Those that dumps of earlier versions have."""

_LARGEST = 2**31


def _candidate(found: Any) -> Candidate | None:
    """The candidate of a dump. Raises ValueError for anything that is none."""
    if found is None:
        return None
    fields, moves = found, ""
    if isinstance(found, list) and found and isinstance(found[-1], str):
        *fields, moves = found
    kinds = tuple(map(type, fields)) if isinstance(fields, list) else ()
    if (
        kinds not in (_FIELDS, _OLD_FIELDS)
        or not all(0 <= field < _LARGEST for field in fields)
        or fields[1] > TOP
    ):
        raise ValueError(
            f"the setting of a plan is {echo(repr(found))}, not [window length, price up to {TOP}, "
            "prefix, segmented, nested, evicted to]"
        )
    _check_moves(moves)
    return dataclasses.replace(Candidate(*fields), moves=moves)


def _check_moves(moves: str) -> None:
    """Raises ValueError where the spec has other passes than those that `fit` runs, or one twice:
    a dump can hold any text."""
    names = [step.name for step in parse_spec(moves, source="the moves of a plan")]
    known = sorted(name for move in MOVES.values() for name in move.passes)
    if len(set(names)) < len(names) or not set(names) <= set(known):
        raise ValueError(
            f"the moves of a plan are {echo(moves)}, not some of {', '.join(known)}, each once"
        )
