"""Makes moves, which are passes that run before the recomputation, and lists those to try.

A new move is a pass, and a row of `MOVES`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jax.extend.mlir import ir

from ..attention import Attention
from ..budgeted import INDISTINCT
from ..chunk import Chunk
from ..chunk.plan import ChunkRecord
from ..framework.base import Decision, DivisiblePlan, Pass, PlanBase, PlanWithEffect
from ..framework.feedback import MeasuredPlan, PlanRecord
from ..framework.options import Bytes
from ..framework.pipeline import Pipeline
from ..framework.tables import Table
from ..framework.target import Target
from ..ir.clone import clone_module
from ..offload import Offload
from ..recursive_checkpoint import MOST_LEVELS, RecursiveCheckpoint
from ..uninitialized_stacks import UninitializedStacks

RECOMPUTE, UNDO, SPLIT_LOOP = "recompute", "undo-checkpoint", "split-loop"
"""Moves that the search itself makes: at its end, before others, and after them."""

FASTER = (UNDO, Attention.name)
"""Moves that may take time away, so that they are tried where there is memory, too, and others are
made after them."""

OF_LOOPS = (SPLIT_LOOP, UninitializedStacks.name, RecursiveCheckpoint.name)
"""Moves after which loops are not as passes expect them that take whole loops."""

_LARGE_PROGRAM_BYTES, _SMALLEST_CHUNKED = 2**30, 64
"""`chunk` considers values of its own `min_bytes` in a program of at least the first size; in a
smaller one those of more than one part in the second number of its peak."""

_MORE_CHUNKS = (2, 4)
"""Times as many chunks as `chunk` takes by itself: recomputation lowers the rest of the peak."""

_LOOPS = ("ragged", "ragged{loops=all}")
"""`ragged` for loops that take less time by the roofline, then for all."""

_MICROBATCHES = (2, 4, 8, 16)

_HALVINGS = 3
"""How often the share of a loop's iterations that keep their residuals is halved or doubled."""

_SMALLEST_SEGMENTED = 64
"""`recursive-checkpoint` considers loops where it saves one part in so many of the peak, or its own
`min_bytes`."""

_EXPOSED = (0.0, 0.1, 0.5, 2.0)
"""Shares of the loops' time that may be waited for copies between device and host."""


class Trials(Protocol):
    """The questions that a move may have before it names the next trials.

    Attributes:
      peak_bytes: temporary memory of the unmodified program.
    """

    @property
    def peak_bytes(self) -> int: ...

    def left_bytes(self, moves: str) -> int:
        """Returns the model's temporary memory of the program after these moves alone; the
        unmodified program's where they find nothing to do."""

    def runs(self, moves: str) -> tuple[MoveRun, ...]:
        """Returns the runs of these moves' passes; empty where they find nothing to do."""

    def may_recompute(self, moves: str) -> bool:
        """Whether something may be recomputed after these moves."""

    def are_dear(self, moves: str) -> bool:
        """Whether these moves alone take as long as the best plan that was found until now."""

    def least_seconds(self, moves: str) -> float:
        """Returns the least added time of a plan with these moves that fits, by the search until
        now; infinite where none fits."""


def _chunked(trials: Trials) -> Iterator[str]:
    """Yields `chunk` with its own options, without the layers of loops, whose stacks recomputation
    reaches only where no loop of `chunk` reads them, and with more chunks where the first does not
    fit, or fits in less time."""
    yield "one-hot"
    step = Chunk()
    if trials.peak_bytes < _LARGE_PROGRAM_BYTES:
        least = 1 << max(trials.peak_bytes // _SMALLEST_CHUNKED, 1).bit_length()
        step = Chunk(min_bytes=Bytes(least))
    record = _record(trials, step)
    if not record.chunks:
        return
    yield str(step)
    if not trials.may_recompute(str(step)):
        return  # the rest of the peak is unchanged, and for that `chunk` has enough chunks
    best_s = trials.least_seconds(str(step))
    if 0 < record.of_layers < record.chunks:
        around = dataclasses.replace(step, layers=False)
        yield str(around)
        around_s = trials.least_seconds(str(around))
        if around_s < best_s:
            step, best_s, record = around, around_s, _record(trials, around)
    last = str(step)
    for times in _MORE_CHUNKS:
        if trials.are_dear(last):
            return  # and so are more chunks
        more = last = str(dataclasses.replace(step, chunks=times * record.chunks))
        yield more
        if not trials.runs(more):
            continue  # `chunk` makes the same program for that number
        more_s = trials.least_seconds(more)
        if best_s < math.inf and more_s >= best_s:
            return
        best_s = more_s


def _record(trials: Trials, step: Chunk) -> ChunkRecord:
    records = (run.record for run in trials.runs(str(step)))
    return next((each for each in records if isinstance(each, ChunkRecord)), ChunkRecord())


def _unfilled(trials: Trials) -> Iterator[str]:
    """Yields `uninitialized-stacks` where the zeros of its stacks are at the peak by the model:
    before jax 0.12 XLA:GPU writes those of one type at once, before the first loop that needs them,
    and since then still those below a mebibyte (`fills_apart_bytes`). Elsewhere XLA may choose an
    order of more memory without them: 960 MiB for 808 in a scanned GPT on jax 0.10.2."""
    spec = UninitializedStacks.name
    if trials.left_bytes(spec) * INDISTINCT < trials.peak_bytes:
        yield spec


def _fused(_: Trials) -> Iterator[str]:
    yield Attention.name


def _segmented(trials: Trials) -> Iterator[str]:
    """Yields `recursive-checkpoint` where no plan without it fits: with the least memory of one
    level, of more levels until a plan fits, and then with fewer iterations computed again."""
    if trials.least_seconds("") < math.inf:
        return
    step = RecursiveCheckpoint()
    least = min(trials.peak_bytes // _SMALLEST_SEGMENTED + 1, step.min_bytes)
    step = dataclasses.replace(step, min_bytes=Bytes(least))
    for levels in range(1, MOST_LEVELS + 1):
        step = dataclasses.replace(step, levels=levels)
        if not trials.runs(str(step)):
            return
        yield str(step)
        if trials.least_seconds(str(step)) < math.inf:
            break
    kept, change = 0.5, 0.25
    for _ in range(_HALVINGS if step.levels == 1 else 0):
        more = str(dataclasses.replace(step, kept=kept))
        yield more
        kept += change if trials.least_seconds(more) < math.inf else -change
        change /= 2


def _accumulated(_: Trials) -> Iterator[str]:
    return (f"accumulate{{microbatches={count}}}" for count in _MICROBATCHES)


def _looped(_: Trials) -> Iterator[str]:
    return iter(_LOOPS)


def _offloaded(_: Trials) -> Iterator[str]:
    return (str(Offload(exposed=exposed)) for exposed in _EXPOSED)


@dataclass(frozen=True)
class Move:
    """A row of `MOVES`.

    Attributes:
      passes: the names of the passes that make it; a dump may name no others.
      trials: their specs, in the order in which they are tried; None where the search itself
        decides when the move is made.
      is_default: it is made unless others are named.
      is_nested: where the last trial finds nothing to do, those before it find nothing either.
    """

    passes: tuple[str, ...] = ()
    trials: Callable[[Trials], Iterator[str]] | None = None
    is_default: bool = True
    is_nested: bool = False


MOVES = {
    RECOMPUTE: Move(),
    UNDO: Move((UNDO,)),
    "attention": Move(("attention",), _fused, is_default=False),
    "chunk": Move(("one-hot", "chunk"), _chunked),
    "uninitialized-stacks": Move(("uninitialized-stacks",), _unfilled),
    "recursive-checkpoint": Move(("recursive-checkpoint",), _segmented),
    SPLIT_LOOP: Move((SPLIT_LOOP,)),
    "accumulate": Move(("accumulate",), _accumulated, is_default=False),
    "offload": Move(("offload",), _offloaded, is_default=False, is_nested=True),
    "ragged": Move(("ragged",), _looped, is_default=False, is_nested=True),
}
"""The moves by their names, in the order in which they are tried."""

DEFAULT_MOVES = tuple(name for name, move in MOVES.items() if move.is_default)
"""The moves that are made unless others are named."""


@runtime_checkable
class WaitingPlan(Protocol):
    """A plan that makes the device wait."""

    @property
    def exposed_s(self) -> float:
        """Returns the seconds of a step in which only copies to the host and back run."""


@dataclass(frozen=True)
class MoveRun:
    """The plan and effect of one pass of the moves.

    Attributes:
      step: the pass.
      summary: its plan in a line.
      effect: what it does, in a few words.
      prepares: the spec does not name it: another pass of the moves requires it.
      tables: the tables of its plan.
      record: the record of a measured pass's plan; None for others.
      decisions: its plan's decisions; its name alone where its plan is not divisible.
      waited_s: seconds of a step in which only copies to the host and back run.
    """

    step: Pass
    summary: str
    effect: str
    prepares: bool
    tables: tuple[Table, ...]
    record: PlanRecord | None
    decisions: tuple[Decision, ...]
    waited_s: float = 0.0


@dataclass(frozen=True)
class Moved:
    """A module that moves have rewritten.

    Attributes:
      module: the module, which must not be edited.
      runs: the passes that changed it.
    """

    module: ir.Module
    runs: tuple[MoveRun, ...]

    @property
    def count(self) -> int:
        """Returns how many passes that the moves name changed the module, without preparations."""
        return sum(not run.prepares for run in self.runs)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return tuple(decision for run in self.runs for decision in run.decisions)


def moved(
    module: ir.Module, moves: str, target: Target, ids: Collection[str] | None = None
) -> Moved:
    """Returns a copy of the module after a spec of moves; equal modules give the same.

    Args:
      module: the module, its calls inlined.
      moves: the passes.
      target: what it will run on.
      ids: the decisions to carry out; None for all.
    """
    copy, runs = clone_module(module), list[MoveRun]()
    with copy.context, ir.Location.unknown():
        pipeline = Pipeline.parse(moves, source="fit")
        for step in pipeline.steps():
            plan = step.nothing_on(target.platform) or step.plan(copy, target)
            if plan.empty:
                continue
            chosen = plan
            decisions: tuple[Decision, ...] = (Decision(step.name, plan.summary()),)
            if isinstance(plan, DivisiblePlan):
                found = plan.decisions()
                decisions = tuple(
                    Decision(f"{step.name}/{each.id}", each.description) for each in found
                )
                if ids is not None:
                    kept = [
                        part.id
                        for part, whole in zip(found, decisions, strict=True)
                        if whole.id in ids
                    ]
                    chosen = plan.restricted_to(kept)
            elif ids is not None and step.name not in ids:
                continue
            if chosen.empty:
                continue
            summary = chosen.summary()
            runs.append(
                MoveRun(
                    step=step,
                    summary=summary,
                    effect=chosen.effect() if isinstance(chosen, PlanWithEffect) else summary,
                    prepares=step not in pipeline.passes,
                    tables=chosen.tables() if isinstance(chosen, PlanBase) else (),
                    record=chosen.record if isinstance(chosen, MeasuredPlan) else None,
                    decisions=decisions,
                    waited_s=chosen.exposed_s if isinstance(chosen, WaitingPlan) else 0.0,
                )
            )
            step.apply(chosen)
    return Moved(copy, tuple(runs))
