"""What docs say of the seconds that are read off XLA's text, by the committed table."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest

from benchmarks.common.tables import RESULTS
from benchmarks.time_error import (
    BEFORE,
    fastest,
    is_plan_of,
    pairs_in_order,
    reached_by,
    unplanned,
)
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


@pytest.mark.parametrize("rows", [unplanned(ROWS), ROWS])
def test_pairs_are_in_the_order_of_what_was_measured(rows: list[dict[str, Any]]) -> None:
    right, count = pairs_in_order(rows)
    assert count > 100
    assert right >= 0.97 * count
    found = fastest(rows)
    assert len(found) == 9
    assert max(found.values()) <= 1.02


def test_a_row_that_does_not_count_says_why() -> None:
    whys = {"another memory", "another plan was timed", "copies to the host"}
    assert {row["left_out"] for row in ENTRY["rows"] if not row["is_counted"]} <= whys
    assert not any(row["left_out"] for row in ROWS)


@pytest.mark.parametrize(
    ("said", "is_plan"),
    [
        ({"predicted_added_s": 0.1, "moves": ["remat"]}, True),
        ({"predicted_added_s": 0.1000000001, "moves": ["remat"]}, False),
        ({"predicted_added_s": 0.1, "moves": []}, False),
        ({}, False),
    ],
)
def test_a_plan_is_that_of_then_where_it_foresees_the_same(
    said: dict[str, Any], is_plan: bool
) -> None:
    step = {"predicted_added_s": 0.1, "moves": ["remat"]}
    assert is_plan_of(said, step) == is_plan
    assert is_plan_of(said, step | {"moves": None}) == (said.get("predicted_added_s") == 0.1)


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
    assert (reached.products, reached.iteration_s) == (6.0, 12.0)
