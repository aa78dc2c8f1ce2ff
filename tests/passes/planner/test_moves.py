"""Which passes the planner tries for a move, by what it knows of those before."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import jax
import pytest
from jax.extend.mlir import ir

from hloom.passes.chunk import Chunk
from hloom.passes.chunk.plan import ChunkRecord
from hloom.passes.cse import Cse, CsePlan
from hloom.passes.framework.base import Pass
from hloom.passes.framework.target import Target
from hloom.passes.planner.moves import MOVES, LoopCut, Moved, MoveRun, moved
from hloom.passes.recursive_checkpoint import RecursiveCheckpoint
from hloom.passes.recursive_checkpoint.plan import SegmentedLoop, SegmentsRecord

pytestmark = pytest.mark.once


@dataclass
class Known:
    """What a search knows: by spec the least added seconds of what it makes to fit; and the specs
    that alone take as long as its best plan."""

    seconds: dict[str, float]
    of_layers: int
    dear: tuple[str, ...] = ()
    peak_bytes: int = 2**31

    def runs(self, moves: str) -> tuple[MoveRun, ...]:
        record = ChunkRecord(chunks=12, of_layers=0 if "layers" in moves else self.of_layers)
        return (MoveRun(Chunk(), "", "", prepares=False, tables=(), record=record, decisions=()),)

    def may_recompute(self, moves: str) -> bool:
        return True

    def are_dear(self, moves: str) -> bool:
        return moves in self.dear

    def least_seconds(self, moves: str) -> float:
        return self.seconds.get(moves, math.inf)


@pytest.mark.parametrize(
    ("of_layers", "seconds", "wanted"),
    [
        (0, {"chunk": 1.0, "chunk{chunks=24}": 2.0}, ["chunk", "chunk{chunks=24}"]),
        (12, {"chunk": 1.0, "chunk{chunks=24}": 2.0}, ["chunk", "chunk{chunks=24}"]),
        (
            4,
            {"chunk": 2.0, "chunk{layers=off}": 1.0},
            ["chunk", "chunk{layers=off}", "chunk{chunks=24 layers=off}"],
        ),
        (
            4,
            {"chunk": 1.0, "chunk{layers=off}": 2.0, "chunk{chunks=24}": 2.0},
            ["chunk", "chunk{layers=off}", "chunk{chunks=24}"],
        ),
    ],
    ids=["no layers", "layers alone", "better without layers", "better with layers"],
)
def test_chunks_are_tried_without_layers_where_they_have_others(
    of_layers: int, seconds: dict[str, float], wanted: list[str]
) -> None:
    trials = MOVES["chunk"].trials
    assert [*trials(Known(seconds, of_layers))] == ["one-hot", *wanted]


@pytest.mark.parametrize(
    ("dear", "wanted"),
    [
        ((), ["chunk", "chunk{chunks=24}", "chunk{chunks=48}"]),
        (("chunk{chunks=24}",), ["chunk", "chunk{chunks=24}"]),
        (("chunk",), ["chunk"]),
    ],
)
def test_more_chunks_are_not_tried_where_fewer_are_dear(
    dear: tuple[str, ...], wanted: list[str]
) -> None:
    trials = MOVES["chunk"].trials
    assert [*trials(Known({}, 0, dear))] == ["one-hot", *wanted]


@dataclass
class OneLoop:
    """A search that knows a loop of 1,000 iterations, of which 40 % of the stacks may stay."""

    cut: LoopCut
    best_s: float
    step_seconds: float = 0.0
    peak_bytes: int = 2**30
    tried: list[str] = field(default_factory=list)

    def runs(self, moves: str) -> tuple[MoveRun, ...]:
        record = SegmentsRecord(loops=(SegmentedLoop(1000, 10, 100_000, 1000, 33),))
        step = RecursiveCheckpoint()
        return (MoveRun(step, "", "", prepares=False, tables=(), record=record, decisions=()),)

    def best_seconds(self) -> float:
        return 0.01 if self.tried else self.best_s

    def added_seconds(self, moves: str) -> float:
        return 1.0

    def added_flops(self, moves: str) -> float:
        return 1.0

    def missing_bytes(self, moves: str) -> float:
        return 0 if moves else 60_000

    def cuts(self) -> tuple[LoopCut, ...]:
        return (self.cut,)


@pytest.mark.parametrize(
    ("cut_s", "step_s", "best_s", "wanted"),
    [
        (0.01, 0.0, math.inf, ["share=0.4 residuals=0.5"]),
        (0.9, 0.0, math.inf, ["share=0.4"]),
        (0.01, 100.0, math.inf, ["share=0.4"]),
        (0.01, 0.0, 0.1, []),
    ],
    ids=["a cheap cut", "a dear cut", "as fast with more operations", "a better plan"],
)
def test_segments_are_chosen_with_the_cut_inside(
    cut_s: float, step_s: float, best_s: float, wanted: list[str]
) -> None:
    trials = MOVES["recursive-checkpoint"].trials
    assert trials is not None
    known = OneLoop(LoopCut(50_000, cut_s, flops=0.9), best_s, step_s)
    for each in trials(known):
        known.tried.append(each)
    assert known.tried == [f"recursive-checkpoint{{{each}}}" for each in wanted]


@dataclass
class NothingHolds(OneLoop):
    """The same, where no plan holds; after more segments than by default it takes so much. A level
    more than ``most_levels`` makes the same program."""

    more_bytes: int = 0
    most_levels: int = 3

    def runs(self, moves: str) -> tuple[MoveRun, ...]:
        return () if f"levels={self.most_levels + 1}" in moves else super().runs(moves)

    def best_seconds(self) -> float:
        return math.inf

    def left_bytes(self, moves: str) -> int:
        return self.more_bytes if "segments" in moves else 1000


@pytest.mark.parametrize(
    ("more_bytes", "most_levels", "is_tried"), [(1000, 3, True), (1000, 2, True), (1001, 3, False)]
)
def test_other_segments_that_take_as_much_are_tried_where_nothing_holds(
    more_bytes: int, most_levels: int, is_tried: bool
) -> None:
    """To XLA they may take less: two schedules of equal bytes are 15 MiB apart in 64 layers."""
    trials = MOVES["recursive-checkpoint"].trials
    assert trials is not None
    cut = LoopCut(0, 0.0, 0.0)
    known = NothingHolds(cut, math.inf, more_bytes=more_bytes, most_levels=most_levels)
    *_, last = trials(known)
    more = f"recursive-checkpoint{{segments=34 levels={most_levels}}}"
    assert (last == more) == is_tried


def test_preparations_that_find_nothing_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a move that changes the module, and not behind it: there they may find something."""
    planned: list[ir.Module] = []

    def plan(self: Cse, module: ir.Module, target: Target) -> CsePlan:
        planned.append(module)
        return CsePlan()

    monkeypatch.setattr(Cse, "plan", plan)
    module = jax.jit(jax.numpy.tanh).lower(1.0).compiler_ir()
    known: dict[tuple[Pass, ...], Moved] = {}
    for moves in ("undo-checkpoint", "uninitialized-stacks"):
        assert not moved(module, moves, Target(), known=known).runs
    assert len(planned) == 1
    moved(module, "undo-checkpoint", Target())
    assert len(planned) == 2
