"""The committed table of sizes is true, and what one person has to know does not grow.

Every tuned number has a row in the ablation, or the source it comes from, or is listed.
"""

from __future__ import annotations

import json

import pytest

from benchmarks import house
from benchmarks.ablation.numbers import ROOT, tuned
from benchmarks.common.tables import RESULTS

pytestmark = pytest.mark.once


MOST = {
    "plugin, the core: what a jit with `fit` or `remat` imports": 58_300,
    "plugin: `hloom`, `passes`, `lowering`, `runtime`": 72_000,
    "`hloom_steps`": 8_400,
    "`hloom_tools`": 12_000,
    "`tests/`": 67_000,
}
"""Lines of Python. The numbers may only fall; the rest of the table has limits of its own."""


def test_no_part_grows_over_its_limit() -> None:
    found = house.counted()
    assert {part: found[part] for part, most in MOST.items() if found[part] > most} == {}


def test_the_table_is_true_to_three_percent() -> None:
    """Else `python -m benchmarks.house` writes it anew."""
    listed = json.loads((RESULTS / "house.json").read_text("utf-8"))["now"]
    found = house.counted()
    assert listed.keys() == found.keys()
    for part, count in found.items():
        assert listed[part] == pytest.approx(count, rel=0.03), part


def test_the_core_and_what_is_beside_it_are_the_plugin() -> None:
    plugin, *parts = [count for part, count in house.counted().items() if "plugin" in part]
    assert sum(parts) == plugin
    assert min(parts) > 0


LISTED = ROOT / "benchmarks/ablation/without_row.txt"
MOST_LISTED, MOST_TUNED = 54, 249
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
