"""Which passes the planner tries for a move, by what it knows of those before."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from hloom.passes.chunk import Chunk
from hloom.passes.chunk.plan import ChunkRecord
from hloom.passes.planner.moves import MOVES, MoveRun

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
    assert trials is not None
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
    assert trials is not None
    assert [*trials(Known({}, 0, dear))] == ["one-hot", *wanted]
