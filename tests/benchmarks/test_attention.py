"""The promises of `attention` about memory, by the committed tables."""

from __future__ import annotations

import json

import pytest

from benchmarks.attention import BUDGETS, GPTS, MODELS
from benchmarks.common.tables import RESULTS

pytestmark = pytest.mark.once
[ENTRY] = json.loads((RESULTS / "attention.json").read_text("utf-8")).values()
MIB = 2**20

MOST_MIB = {
    "unrolled, 1024": (3545, 1980),
    "scanned, 1024": (5984, 1960),
    "unrolled, 4096": (14200, None),
    "scanned, 4096": (23923, None),
}
"""For a GPT of twelve layers the most under `attention`, and under `attention,remat`."""


def test_every_model_takes_what_it_takes_by_hand() -> None:
    rows = {row["model"]: row for row in ENTRY["models"]}
    assert rows.keys() == MODELS.keys()
    for row in rows.values():
        assert row["attention_bytes"] <= 1.05 * row["by_hand_bytes"]
        assert row["attention_bytes"] < 0.5 * row["off_bytes"]


def test_every_gpt_takes_no_more_than_it_did() -> None:
    rows = {row["model"]: row for row in ENTRY["gpts"]}
    assert rows.keys() == GPTS.keys() == MOST_MIB.keys()
    for name, (alone, recomputed) in MOST_MIB.items():
        assert rows[name]["attention"] <= alone * MIB
        if recomputed is not None:
            assert rows[name]["attention,remat"] <= recomputed * MIB


def test_fit_holds_budgets_with_attention() -> None:
    around = 350 * MIB  # arguments and results
    sizes = {"4GiB": 4096, "2GiB": 2048, "1GiB": 1024, "768MiB": 768}
    for row in ENTRY["budgets"]:
        assert "in a fused kernel" in row["effect"]
        assert row["temp_bytes"] + around <= sizes[row["budget"]] * MIB
    assert {(row["model"], row["budget"]) for row in ENTRY["budgets"]} >= {
        ("scanned, 1024", budget) for budget in BUDGETS
    }
