"""Reasons why `remat` leaves a program, or a part of it, unchanged."""

from __future__ import annotations

from enum import StrEnum


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
