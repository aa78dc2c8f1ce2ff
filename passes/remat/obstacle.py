"""Why `remat` left a program as it is, or could do less to it than to others."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from jax.extend.mlir import ir

from hloom.passes.analysis.autodiff import is_backward


class Obstacle(StrEnum):
    """What keeps a program from being rewritten; in the plan's JSON by its value."""

    NO_BACKWARD = "no-backward"
    NO_BARRIERS = "no-barriers"
    ONLY_SCANS = "only-scans"
    NOTHING_READ = "nothing-read"
    NO_GAIN = "no-gain"
    ONE_COMPILE = "one-compile"

    @property
    def reason(self) -> str:
        """The reason and, where there is one, the remedy."""
        return _REASONS[self]

    @property
    def sentence(self) -> str:
        """The same as a sentence that says what is not rewritten."""
        start = "Its straight-line part is left as it is"
        return (
            f"{start if self is Obstacle.ONLY_SCANS else 'Nothing is recomputed'}: {self.reason}."
        )


_DROPPED = (
    "the CPU compiler of jaxlib 0.10 keeps no optimization barriers, so that only scans are "
    "rewritten; jax 0.12 or a GPU rewrites straight-line programs too"
)
_REASONS = {
    Obstacle.NO_BACKWARD: (
        "no backward pass was found, that is, no operation that JAX made by transposing another one"
    ),
    Obstacle.NO_BARRIERS: _DROPPED,
    Obstacle.ONLY_SCANS: _DROPPED,
    Obstacle.NOTHING_READ: (
        "the backward pass reads no value, of min_bytes or more, that may be computed again; "
        "collectives, custom calls and side effects never are"
    ),
    Obstacle.NO_GAIN: "no recomputation that was tried lowers the peak",
    Obstacle.ONE_COMPILE: (
        "a share is of what the program takes as it is, and compiles=1 leaves no compile beyond "
        "that one"
    ),
}


def obstacle_of(
    operations: Iterable[ir.Operation], *, keeps_barriers: bool, scans: bool, lines: bool
) -> Obstacle | None:
    """What keeps a program from being rewritten; None where nothing does.

    Args:
      operations: all of the program's.
      keeps_barriers: whether the target honours optimization barriers.
      scans: there are pairs of loops to rewrite.
      lines: there are straight-line blocks to rewrite.
    """
    if scans and not keeps_barriers:
        return Obstacle.ONLY_SCANS
    if scans or lines:
        return None
    if not any(map(is_backward, operations)):
        return Obstacle.NO_BACKWARD
    return Obstacle.NOTHING_READ if keeps_barriers else Obstacle.NO_BARRIERS
