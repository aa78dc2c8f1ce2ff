"""The committed table of sizes is true, and what one person has to know does not grow."""

from __future__ import annotations

import json

import pytest

from benchmarks import house
from benchmarks.common.tables import RESULTS

pytestmark = pytest.mark.once

MOST = {
    "plugin, the core: what a jit with `fit` or `remat` imports": 60_000,
    "plugin: `hloom`, `passes`, `lowering`, `runtime`": 72_000,
    "`hloom_steps`": 8_600,
    "`hloom_tools`": 12_100,
    "`tests/`": 70_000,
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
