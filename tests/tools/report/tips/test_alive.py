"""What lives in each stretch of a curve."""

from __future__ import annotations

from typing import Any

import pytest

from hloom.passes.analysis.memory_model.profile import LiveBuffer, MemoryProfile, Point
from hloom.passes.framework.structure import StructureError, read
from hloom.passes.ir.names import SourceLine
from hloom.xla.live_ranges import LiveRanges
from hloom_tools.report.tips.alive import MOST_STRETCHES, Tip, spikes, tips_of_model, tips_of_xla

pytestmark = pytest.mark.once


def value(name: str, start: int, end: int, size_bytes: int, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "operation": f"jit(f)/{name}",
        "line": "train.py:3",
        "type": "f32[2]",
        "bytes": size_bytes,
        "start": start,
        "end": end,
        "kind": "temp",
    } | more


RANGES: dict[str, Any] = {
    "instructions": 6,
    "curve": [[0, 0], [1, 10], [2, 30], [4, 5]],
    "values": [
        value("mul", 1, 3, 10),
        value("mul", 2, 3, 10),
        value("exp", 2, 2, 15),
        value("given", 0, 5, 99, kind="argument"),
        value("add", 4, 5, 5),
    ],
}


def tips_of(ranges: dict[str, Any]) -> tuple[Tip, ...]:
    unused = {"peak_bytes": 0, "peak_at": 0, "temp_bytes": 0, "at_peak": [], "values_left_out": 0}
    return tips_of_xla(read(LiveRanges, unused | ranges))


def test_each_instruction_tells_what_lives_there_the_largest_first() -> None:
    tips = tips_of(RANGES)
    assert [(tip.title, tip.bytes) for tip in tips] == [
        (f"instruction {n} of 6", size) for n, size in enumerate((0, 10, 30, 30, 5, 5))
    ]
    there = [[(row.value.leaf, row.size_bytes) for row in tip.alive[0].rows] for tip in tips]
    assert there[2] == [("mul", 20), ("exp", 15)]
    assert there[3] == [("mul", 20)]
    assert there[0] == []
    assert not any("given" in str(tip) for tip in tips)


def test_a_long_schedule_is_parted_and_a_stretch_tells_its_highest_place() -> None:
    count = 100 * MOST_STRETCHES
    ranges = {
        "instructions": count,
        "curve": [[0, 1], [250, 70], [251, 1]],
        "values": [value("spike", 250, 250, 69), value("low", 0, count, 1)],
    }
    tips = tips_of(ranges)
    assert len(tips) == MOST_STRETCHES
    assert sum(tip.width for tip in tips) == count
    assert [tip.title for tip in tips if tip.bytes == 70] == ["instructions 200 to 299 of 8000"]
    assert [row.value.leaf for row in tips[2].alive[0].rows] == ["spike", "low"]
    assert [row.value.leaf for row in tips[3].alive[0].rows] == ["low"]


def test_many_values_are_counted() -> None:
    many = [value(f"v{n}", 0, 0, n + 1) for n in range(9)]
    tips = tips_of({"instructions": 1, "curve": [[0, 45]], "values": many})
    assert len(tips[0].alive[0].rows) + tips[0].alive[0].others == 9
    assert tips[0].alive[0].rows[0].value.leaf == "v8"


def profile(sizes: list[int], name: str) -> MemoryProfile:
    points = tuple(Point(size, "jit(f)/add", "train.py:3") for size in sizes)
    buffer = LiveBuffer(f"jit(f)/{name}", SourceLine("train.py:5"), "tensor<2xf32>", 4, 1, 1)
    return MemoryProfile(points, 0, (), 100, 0, 0, buffers=(buffer,))


def test_both_curves_of_the_model_tell_theirs_and_the_shorter_one_ends() -> None:
    tips = tips_of_model(profile([1, 8], "before"), profile([1, 4, 2], "after"))
    told = [[(each.curve, each.bytes) for each in tip.alive] for tip in tips]
    assert told == [
        [("before", 101), ("after", 101)],
        [("before", 108), ("after", 104)],
        [("after", 102)],
    ]
    leaves = [[row.value.leaf for row in each.rows] for each in tips[1].alive]
    assert leaves == [["before"], ["after"]]
    assert tips_of_model(MemoryProfile((), 0, (), 0, 0, 0), None) == ()


def test_spikes_are_the_highest_of_those_that_stand_out() -> None:
    levels = [0, 5, 1, 9, 9, 2, 3]
    changes = [[n, level] for n, level in enumerate(levels)]
    tips = tips_of({"instructions": len(levels), "curve": changes, "values": []})
    assert [tip.begin for tip in spikes(tips)] == [1, 3, 6]
    assert spikes(()) == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"values": [value("mul", 0, 1, -1)]},
        {"values": [{"kind": "temp"}]},
        {"values": 3},
        {"curve": [[0]]},
        {"curve": [[0, 1], [0, 2]]},
        {"curve": [[7, 1]]},
        {"instructions": "many"},
    ],
)
def test_what_is_damaged_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(StructureError):
        tips_of(RANGES | wrong)


def test_a_claim_of_very_many_instructions_costs_nothing() -> None:
    tips = tips_of(RANGES | {"instructions": 2**59})
    assert len(tips) == MOST_STRETCHES
    assert tips[0].bytes == 30
