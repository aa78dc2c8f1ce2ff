"""The promises of `fit` about the time of a step that fits as it is, by the committed table."""

from __future__ import annotations

import json

import pytest

from benchmarks.common.tables import RESULTS
from benchmarks.fit_time import NOW, PROGRAMS

pytestmark = pytest.mark.once
[ENTRY] = json.loads((RESULTS / "fit_time.json").read_text("utf-8")).values()


@pytest.mark.parametrize("device", ENTRY["devices"])
def test_no_step_is_slower_where_memory_does_not_ask_for_it(device: str) -> None:
    rows = ENTRY["devices"][device]
    assert {row["program"] for row in rows} <= set(PROGRAMS)
    assert {row["reached"] for row in rows} == {NOW}
    assert len(rows) >= (8 if device == "h200" else 4)
    assert max(row["ratio"] for row in rows) <= 1.01
    assert max(row["compiles"] for row in rows) <= 2
