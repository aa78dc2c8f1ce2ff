"""What docs say of the seconds that are read off XLA's text, by the committed table."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest

from benchmarks.common.tables import RESULTS
from benchmarks.time_error import BEFORE, fastest, pairs_in_order, reached_by, unplanned
from hloom.xla.kernels import KernelKind
from hloom.xla.step_time import StepTime

pytestmark = pytest.mark.once
[ENTRY] = json.loads((RESULTS / "time_error.json").read_text("utf-8")).values()
ROWS = [row for row in ENTRY["rows"] if row["is_counted"]]


def test_steps_are_foreseen_within_a_tenth() -> None:
    errors = sorted(abs(row["error"]) for row in ROWS)
    assert len(errors) >= 50
    assert statistics.median(errors) <= 0.04
    assert errors[len(errors) * 9 // 10] <= StepTime.within


@pytest.mark.parametrize(
    ("rows", "share", "slower"), [(unplanned(ROWS), 0.97, 1.02), (ROWS, 0.9, 1.06)]
)
def test_pairs_are_in_the_order_of_what_was_measured(
    rows: list[dict[str, Any]], share: float, slower: float
) -> None:
    right, count = pairs_in_order(rows)
    assert count > 100
    assert right >= share * count
    found = fastest(rows)
    assert len(found) == 9
    assert max(found.values()) <= slower


def test_a_pair_out_of_order_counts_as_such() -> None:
    rows = [
        {"program": "a", "measured_s": measured, "foreseen_s": foreseen}
        for measured, foreseen in ((1.0, 1.0), (2.0, 3.0), (3.0, 2.5), (1.01, 0.5))
    ]
    assert pairs_in_order(rows) == (4, 5)
    assert fastest(rows) == {"a": 1.01}


def test_values_are_in_the_order_of_their_names() -> None:
    reached = reached_by(range(len(BEFORE)))
    assert reached.bandwidth[KernelKind.COLUMN_REDUCTION] == 2.0
    assert (reached.products, reached.iteration_s) == (6.0, 11.0)
