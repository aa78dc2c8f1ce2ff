"""What is committed as measured says so only as long as hloom plans what it planned then."""

from __future__ import annotations

import json

import pytest

from benchmarks.common.tables import RESULTS
from benchmarks.tpu.maxtext.measure import planned
from benchmarks.tpu.maxtext.programs import DECODERS


@pytest.mark.once
@pytest.mark.parametrize("decoder", DECODERS)
def test_the_plan_that_maxtext_s_table_states_is_that_of_today(decoder: str) -> None:
    """Else `python -m benchmarks.tpu.maxtext plans` states it anew, and marks what is of before."""
    report = json.loads((RESULTS / "maxtext.json").read_text("utf-8"))
    assert {entry["plans"][decoder] for entry in report.values()} == {planned(decoder)}
