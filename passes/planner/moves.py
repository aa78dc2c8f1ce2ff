"""Makes moves, which are passes that run before the recomputation, and lists those to try.

A new move is a pass, and a row of `MOVES`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jax.extend.mlir import ir

from ..attention import Attention
from ..budgeted import INDISTINCT
from ..chunk import Chunk
from ..chunk.plan import ChunkRecord
from ..framework.base import Decision, DivisiblePlan, Pass, PlanBase, PlanWithEffect
from ..framework.feedback import AS_FAST, MeasuredPlan, PlanRecord
from ..framework.options import Bytes
from ..framework.pipeline import Pipeline
from ..framework.tables import Table
from ..framework.target import Target
from ..ir.clone import clone_module
from ..offload import Offload
from ..recursive_checkpoint import RecursiveCheckpoint
from ..recursive_checkpoint.plan import MOST_LEVELS, SegmentedLoop, SegmentsRecord
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

_MOST_MICROBATCHES = 16
"""The most microbatches that are tried, from 2 on, each twice as many as the last."""

_SHARES = 4
"""How many shares of the stacks are tried for a budget: the model's figure for one corrects the
next."""

_ROOM = 0.02
"""A share that leaves no more of the budget free is not raised."""

_SMALLEST_SEGMENTED = 64
"""`recursive-checkpoint` considers loops where it saves one part in so many of the peak, or its own
`min_bytes`."""

_EXPOSED = (0.0, 0.1, 0.5, 2.0)
"""Shares of the loops' time that may be waited for copies between device and host."""


class Trials(Protocol):
    """The questions that a move may have before it names the next trials.

    Attributes:
      peak_bytes: temporary memory of the unmodified program.
      step_seconds: time of a step of it.
    """

    @property
    def peak_bytes(self) -> int: ...

    @property
    def step_seconds(self) -> float: ...

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

    def best_seconds(self) -> float:
        """Returns the least added time of a plan that fits, of all moves; infinite without one."""

    def added_seconds(self, moves: str) -> float:
        """Returns the time that these moves alone add; nothing where they find nothing to do."""

    def added_flops(self, moves: str) -> float:
        """Returns the floating-point operations that these moves alone add."""

    def missing_bytes(self, moves: str) -> float:
        """Returns by how much the plans with these moves miss the bound: the fastest that fits,
        negative then, else the one of least memory."""

    def cuts(self) -> tuple[LoopCut, ...]:
        """Returns what recomputation inside the bodies of the program's loops can do."""


@dataclass(frozen=True)
class LoopCut:
    """A choice of what the bodies of all loops recompute.

    Attributes:
      freed_bytes: of the loops' stacks.
      seconds: the time that it adds to a step.
      flops: the floating-point operations that it adds.
    """

    freed_bytes: int
    seconds: float
    flops: float


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


def _fused() -> Iterator[str]:
    yield Attention.name


def _segmented(trials: Trials) -> Iterator[str]:
    """Yields `recursive-checkpoint` where it promises less time than the best plan: in the share of
    the stacks that the bound leaves, together with the cut inside the bodies that repeats the
    fewest operations of those that promise as fast a step as any; where none holds, with the least
    memory of each number of levels, and with one segment more where the model sees no difference:
    stacks of other lengths leave other gaps between them in XLA's heap."""
    step = RecursiveCheckpoint()
    least = min(trials.peak_bytes // _SMALLEST_SEGMENTED + 1, step.min_bytes)
    step = dataclasses.replace(step, min_bytes=Bytes(least))
    loops = _segmented_loops(trials, step)
    if not loops:
        return
    stacked = sum(each.stacked_bytes for each in loops)
    repeats = max(_repeats(loops), 1e-9)
    again_s = trials.added_seconds(str(step)) / repeats
    again_flops = trials.added_flops(str(step)) / repeats
    share = 1 - trials.missing_bytes("") / stacked
    cuts = [(max(1 - cut.freed_bytes / stacked, 0.0), cut) for cut in trials.cuts()]
    last = ""
    for _ in range(_SHARES):
        promised = [
            (again_s * repeats + cut.seconds, again_flops * repeats + cut.flops, left)
            for left, cut in [(1.0, LoopCut(0, 0.0, 0.0)), *cuts]
            if (repeats := _repeats_within(loops, share, left)) < math.inf
        ]
        promised = [each for each in promised if each[0] < trials.best_seconds()]
        if not promised:
            break
        most_s = AS_FAST * (trials.step_seconds + min(promised)[0]) - trials.step_seconds
        _, residuals = min((flops, left) for added_s, flops, left in promised if added_s <= most_s)
        rounded = min(float(f"{share:.4g}"), 0.95)
        found = str(dataclasses.replace(step, share=rounded, residuals=round(residuals, 3)))
        if found == last or not trials.runs(found):
            break
        yield found
        last, missing = found, trials.missing_bytes(found)
        if -_ROOM * stacked * share <= missing <= 0:
            break
        share -= missing / stacked
    if trials.best_seconds() < math.inf:
        return
    left = round(min((left for left, _ in cuts), default=1.0), 3)
    schedules = [(1, 1.0), *((levels, left) for levels in range(1, MOST_LEVELS + 1))]
    for levels, residuals in dict.fromkeys(schedules):
        tried = dataclasses.replace(step, levels=levels, residuals=residuals)
        if trials.runs(str(tried)):  # else one level more makes the same program
            step = tried
            yield str(step)
        elif (levels, residuals) == schedules[0]:
            yield str(step)  # what was asked about the loops: it makes the same program
        if trials.best_seconds() < math.inf:
            return
    counts = {each.segments for each in _segmented_loops(trials, step)}
    if len(counts) == 1:
        more = str(dataclasses.replace(step, segments=counts.pop() + 1))
        if trials.left_bytes(more) <= trials.left_bytes(str(step)):
            yield more


def _segmented_loops(trials: Trials, step: RecursiveCheckpoint) -> tuple[SegmentedLoop, ...]:
    records = (run.record for run in trials.runs(str(step)))
    found = next((each for each in records if isinstance(each, SegmentsRecord)), SegmentsRecord())
    return found.loops


def _repeats(loops: Sequence[SegmentedLoop]) -> float:
    """Returns how often an iteration is computed again, on average by the bytes of stacks."""
    stacked = sum(each.stacked_bytes for each in loops)
    return sum(each.repeated / each.trips * each.stacked_bytes for each in loops) / stacked


def _repeats_within(loops: Sequence[SegmentedLoop], share: float, residuals: float) -> float:
    """Returns the same in a share of the stacks' bytes; infinite where a loop has no schedule."""
    found = [each.within(share, residuals, MOST_LEVELS) for each in loops]
    if any(schedule is None for schedule in found):
        return math.inf
    return _repeats(
        [
            dataclasses.replace(each, repeated=schedule.repeated)
            for each, schedule in zip(loops, found, strict=True)
            if schedule is not None
        ]
    )


def _accumulated() -> Iterator[str]:
    counts = (2**times for times in range(1, _MOST_MICROBATCHES.bit_length()))
    return (f"accumulate{{microbatches={count}}}" for count in counts)


def _looped() -> Iterator[str]:
    return iter(_LOOPS)


def _offloaded() -> Iterator[str]:
    return (str(Offload(exposed=exposed)) for exposed in _EXPOSED)


@dataclass(frozen=True)
class Move:
    """A row of `MOVES`.

    Attributes:
      passes: the names of the passes that make it; a dump may name no others.
      trials: their specs, in the order in which they are tried; None where the search itself
        decides when the move is made, or where these are in ``alone``.
      alone: the same for a move that is made only where it is named, and needs no trials before.
      is_nested: where the last trial finds nothing to do, those before it find nothing either.
    """

    passes: tuple[str, ...] = ()
    trials: Callable[[Trials], Iterator[str]] | None = None
    alone: Callable[[], Iterator[str]] | None = None
    is_nested: bool = False

    def tried(self, trials: Trials) -> Iterator[str]:
        """Returns the specs to try after others."""
        if self.alone is not None:
            return self.alone()
        return iter(()) if self.trials is None else self.trials(trials)


MOVES = {
    RECOMPUTE: Move(),
    UNDO: Move((UNDO,)),
    "attention": Move(("attention",), alone=_fused),
    "chunk": Move(("one-hot", "chunk"), _chunked),
    "uninitialized-stacks": Move(("uninitialized-stacks",), _unfilled),
    "recursive-checkpoint": Move(("recursive-checkpoint",), _segmented),
    SPLIT_LOOP: Move((SPLIT_LOOP,)),
    "accumulate": Move(("accumulate",), alone=_accumulated),
    "offload": Move(("offload",), alone=_offloaded, is_nested=True),
    "ragged": Move(("ragged",), alone=_looped, is_nested=True),
}
"""The moves by their names, in the order in which they are tried."""

DEFAULT_MOVES = tuple(name for name, move in MOVES.items() if move.alone is None)
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
    module: ir.Module,
    moves: str,
    target: Target,
    ids: Collection[str] | None = None,
    known: dict[tuple[Pass, ...], Moved] | None = None,
    *,
    reported: bool = True,
) -> Moved:
    """Returns a copy of the module after a spec of moves; equal modules give the same.

    Args:
      module: the module, its calls inlined.
      moves: the passes.
      target: what it will run on.
      ids: the decisions to carry out; None for all.
      known: the results of steps that other moves began with, to which these are added: most moves
        have the same preparations.
      reported: whether the runs report what the passes do, which may take as long as a plan.
    """
    known = {} if known is None or ids is not None else known
    pipeline = Pipeline.parse(moves, source="fit")
    steps = pipeline.steps()
    done = max((count for count in range(len(steps)) if steps[:count] in known), default=0)
    before = known.get(steps[:done], Moved(module, ()))
    copy = clone_module(before.module)
    runs = [
        dataclasses.replace(run, prepares=run.step not in pipeline.passes) for run in before.runs
    ]
    with copy.context, ir.Location.unknown():
        for number, step in enumerate(steps[done:], done):
            if not runs:
                known[steps[:number]] = Moved(module, ())
            elif step is steps[-1]:
                known.setdefault(steps[:number], Moved(clone_module(copy), tuple(runs)))
            plan = step.nothing_on(target.platform) or step.plan(copy, target)
            if plan.empty:
                continue
            if not reported:
                runs.append(MoveRun(step, "", "", step not in pipeline.passes, (), None, ()))
                step.apply(plan)
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
