"""Records of plans that were dumped: what is none is refused, whatever the file holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hloom.passes.framework.feedback import Prediction
from hloom.passes.framework.structure import StructureError, read, written
from hloom.passes.planner.candidates import TOP, Candidate
from hloom.passes.planner.record import Estimate, RematObstacle, RematRecord

pytestmark = pytest.mark.once

MOVED = Candidate(4, 64, 1, True, False, 0, "one-hot,chunk{chunks=4}")
ESTIMATE = Estimate(MOVED, 1000, 0.5)
RECORD = RematRecord(
    prediction=Prediction(2000, 1000, 3.5),
    estimate=ESTIMATE,
    considered=(Estimate(None, 3000, 0.0), ESTIMATE, Estimate(Candidate(0, TOP), 2900, 0.25)),
    added_seconds=0.25,
    obstacle=RematObstacle.ONLY_SCANS,
    unmodified_bytes=3000,
)
GOOD: dict[str, Any] = json.loads(json.dumps(written(RECORD)))


def test_a_record_is_read_as_it_was_written() -> None:
    assert read(RematRecord, GOOD) == RECORD


MOVES = ("chunk{", "remat", "default", "chunk,capture", "chunk,chunk", "chunk{chunks=-1}")
CANDIDATES: list[Any] = [
    [],
    {},
    "",
    "chunk",
    3,
    True,
    {"window_length": 1},
    {"window_length": 1, "price": True},
    {"window_length": 1, "price": 2, "segmented": 0},
    {"window_length": 1.5, "price": 2},
    {"window_length": "1", "price": "2"},
    {"window_length": None, "price": None},
    {"window_length": -1, "price": 2},
    {"window_length": 1, "price": TOP + 1},
    {"window_length": 10**40, "price": 2},
    {"window_length": 1, "price": 2, "evicted_to": 10**400},
    *(
        {"window_length": 1, "price": 2, "moves": moves}
        for moves in (*MOVES, "split-loop{at=3:1}", "no-pass\x1b[31m\n")
    ),
]


@pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda candidate: repr(candidate)[:60])
def test_what_is_no_candidate_is_told_in_a_line(candidate: Any) -> None:
    estimate = {**GOOD["estimate"], "candidate": candidate}
    with pytest.raises(StructureError, match=r"^estimate.candidate") as caught:
        read(RematRecord, {**GOOD, "estimate": estimate})
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300
    with pytest.raises(StructureError, match=r"^considered\[0\].candidate"):
        read(RematRecord, {**GOOD, "considered": [estimate]})


FIGURES = (True, "1", None, [], 10**400, float("nan"), float("inf"), -float("inf"))


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: repr(figure)[:9])
@pytest.mark.parametrize(
    ("inside", "name"),
    [
        ("estimate", "temp_bytes"),
        ("prediction", "step_bytes"),
        ("estimate", "seconds"),
        ("prediction", "added_flops"),
    ],
)
def test_what_is_no_figure_is_told_in_a_line(inside: str, name: str, figure: Any) -> None:
    with pytest.raises(StructureError, match=f"{inside}.{name} is .*, not a .*number") as caught:
        read(RematRecord, {**GOOD, inside: {**GOOD[inside], name: figure}})
    assert str(caught.value).isprintable()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(sorted(GOOD)), JSON), st.lists(JSON, max_size=3))
def test_no_content_ends_otherwise(changes: dict[str, Any], considered: list[Any]) -> None:
    """Callers make one line of this exception, and of no other."""
    for plan in (changes, {**GOOD, **changes}, {**GOOD, "considered": considered}):
        try:
            record = read(RematRecord, plan)
        except StructureError:
            continue
        assert read(RematRecord, json.loads(json.dumps(written(record)))) == record
