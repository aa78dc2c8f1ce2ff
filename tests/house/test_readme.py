"""README.md's figures are those of benchmarks/results, and its passes those that there are."""

from __future__ import annotations

import pytest

from benchmarks import readme

README = (readme.ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_is_up_to_date() -> None:
    assert readme.filled_in(README) == README, "run: python -m benchmarks.readme"


def test_a_wrong_figure_is_found() -> None:
    wrong = README.replace("| XLA's temporary memory, MiB |", "| XLA's temporary memory, MiB | 1")
    assert wrong != README
    assert readme.filled_in(wrong) == README


def test_a_missing_marker_is_told() -> None:
    with pytest.raises(ValueError, match="0 sections between markers 'h100', wanted 1"):
        readme.filled_in(README.replace("<!-- end h100 -->", ""))
