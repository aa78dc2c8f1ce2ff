"""Every tuned number has a row in the ablation, or the source it comes from, or is listed."""

from __future__ import annotations

import json

import pytest

from benchmarks.ablation.numbers import ROOT, tuned
from benchmarks.common.tables import RESULTS

pytestmark = pytest.mark.once
LISTED = ROOT / "benchmarks/ablation/without_row.txt"
MOST_LISTED, MOST_TUNED = 100, 249
"""Neither may rise."""


def test_every_tuned_number_has_a_row_or_a_source_or_is_listed() -> None:
    report = json.loads((RESULTS / "ablation.json").read_text("utf-8"))
    rows = {
        row["name"]
        for entry in report.values()
        for part in entry.values()
        if isinstance(part, list)
        for row in part
    }
    bare = {each.key for each in tuned() if each.key not in rows and not each.has_source}
    listed = LISTED.read_text("utf-8").split()
    assert sorted(bare) == listed
    assert len(listed) <= MOST_LISTED


def test_the_number_of_tuned_numbers_does_not_rise() -> None:
    assert sum(each.count for each in tuned()) <= MOST_TUNED
