"""What docs say of the seconds that are read off XLA's text, by the committed table."""

from __future__ import annotations

import json
import statistics

import pytest

from benchmarks.common.tables import RESULTS
from benchmarks.time_error import BEFORE, fastest, pairs_in_order, reached_by
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


def test_pairs_are_in_the_order_of_what_was_measured() -> None:
    right, count = pairs_in_order(ROWS)
    assert count > 100
    assert right >= 0.97 * count


def test_the_fastest_by_the_model_is_nearly_the_fastest() -> None:
    found = fastest(ROWS)
    assert len(found) == 9
    assert max(found.values()) <= 1.02


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
    assert (reached.products, reached.iteration_s) == (5.0, 10.0)
