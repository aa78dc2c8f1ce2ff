"""The house: what is known in one place, so that the next reader asks there."""

from __future__ import annotations

import re

import pytest
from support import ROOT

FOLDERS = ("hloom", "hloom_cli", "lowering", "passes", "runtime")

ONCE = {
    r"\bDotDimensionNumbers\(": {"passes/ir/products.py"},
    r"\bRaggedDotDimensionNumbers\(": {"passes/ir/products.py"},
    r"\bdimension_shardings\b": {"passes/ir/shardings.py"},
    r"sdy-propagation-pipeline": {"passes/analysis/shardings/propagation.py"},
}
"""The files that may have a pattern: they read which axes of a product are which, what a sharding
says, and where Shardy places values."""


@pytest.mark.parametrize("pattern", ONCE)
def test_what_is_known_in_one_place(pattern: str) -> None:
    found = {
        str(file.relative_to(ROOT))
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*.py")
        if re.search(pattern, file.read_text(encoding="utf-8"))
    }
    assert found == ONCE[pattern]
