"""Records of plans that were dumped: what is none is refused, whatever the file holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hloom.passes.framework.feedback import Prediction
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
GOOD: dict[str, Any] = json.loads(json.dumps(RECORD.to_json()))


def test_a_record_is_read_as_it_was_written() -> None:
    assert RematRecord.from_json(GOOD) == RECORD


def test_settings_of_earlier_versions_are_read() -> None:
    assert RematRecord.from_json({**GOOD, "setting": [4, 64, 1]}).candidate == Candidate(4, 64, 1)


SETTINGS: list[Any] = [
    [],
    {},
    "",
    "chunk",
    3,
    True,
    [1],
    [1, 2],
    [1, 2, 3, False],
    [1, 2, 3, False, False, 0, 0],
    [1, 2, True],
    [1, 2, 3, 0, 0, 0],
    [1.0, 2, 3],
    ["1", "2", "3"],
    [None, None, None],
    [-1, 2, 3],
    [1, TOP + 1, 3],
    [10**40, 2, 3],
    [1, 2, 10**400],
    ["chunk"],
    [1, 2, 3, "remat"],
    [1, 2, 3, "default"],
    [1, 2, 3, "chunk,capture"],
    [1, 2, 3, "chunk,chunk"],
    [1, 2, 3, "chunk{"],
    [1, 2, 3, "chunk{chunks=-1}"],
    [1, 2, 3, "split-loop{at=3:1}"],
    [1, 2, 3, "no-pass\x1b[31m\n"],
]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: repr(setting)[:40])
def test_what_is_no_setting_is_told_in_a_line(setting: Any) -> None:
    with pytest.raises(ValueError, match="of a plan") as caught:
        RematRecord.from_json({**GOOD, "setting": setting})
    assert str(caught.value).isprintable()
    with pytest.raises(ValueError, match="of a plan"):
        RematRecord.from_json(
            {**GOOD, "considered": [{**GOOD["considered"][0], "setting": setting}]}
        )


FIGURES = (True, "1", None, [], 10**400, float("nan"), float("inf"), -float("inf"))


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: repr(figure)[:9])
@pytest.mark.parametrize(
    "name", ["model_temp_bytes", "predicted_step_bytes", "weighted_seconds", "added_flops"]
)
def test_what_is_no_figure_is_told_in_a_line(name: str, figure: Any) -> None:
    with pytest.raises(ValueError, match="a figure of a plan is") as caught:
        RematRecord.from_json({**GOOD, name: figure})
    assert str(caught.value).isprintable()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(sorted(GOOD)), JSON), st.lists(JSON, max_size=3))
def test_no_content_ends_otherwise(changes: dict[str, Any], considered: list[Any]) -> None:
    """Callers make one line of these three exceptions, and of no other."""
    for plan in (changes, {**GOOD, **changes}, {**GOOD, "considered": considered}):
        try:
            record = RematRecord.from_json(plan)
        except (KeyError, TypeError, ValueError):
            continue
        written = json.loads(json.dumps(record.to_json()))
        assert RematRecord.from_json(written).to_json() == record.to_json()
