"""What is generated in README.md and docs/ is what benchmarks/results and the packages say."""

from __future__ import annotations

import json

import pytest

from benchmarks import readme, step_memory
from benchmarks.common.tables import RESULTS
from benchmarks.gpu import front


def text_of(page: str) -> str:
    return (readme.ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", readme.PAGES)
def test_a_page_is_up_to_date(page: str) -> None:
    assert readme.filled_in(page, text_of(page)) == text_of(page), (
        "run: python -m benchmarks.readme"
    )


def test_a_wrong_figure_is_found() -> None:
    text = text_of("docs/results.md")
    wrong = text.replace("| XLA's temporary memory, MiB |", "| XLA's temporary memory, MiB | 1")
    assert wrong != text
    assert readme.filled_in("docs/results.md", wrong) == text


def test_a_missing_package_is_found() -> None:
    text = text_of("docs/system.md")
    wrong = "".join(
        line for line in text.splitlines(keepends=True) if "| `lowering/` |" not in line
    )
    assert wrong != text
    assert readme.filled_in("docs/system.md", wrong) == text


def test_every_package_says_what_it_is_for() -> None:
    rows = [line for line in text_of("docs/system.md").splitlines() if line.startswith("| `")]
    assert len(rows) > 20
    assert [row for row in rows if row.split("|")[2].strip() == ""] == []


def test_a_missing_marker_is_told() -> None:
    page = text_of("docs/results.md").replace("<!-- end h100 -->", "")
    with pytest.raises(ValueError, match="0 sections between markers 'h100', wanted 1"):
        readme.filled_in("docs/results.md", page)


def test_the_picture_is_of_the_committed_figures() -> None:
    file = RESULTS / f"{step_memory.BENCHMARK.name}.json"
    report = json.loads(file.read_text(encoding="utf-8"))
    drawn = step_memory.PICTURE.read_text(encoding="utf-8")
    assert step_memory.picture(report) == drawn, "run: python -m benchmarks.step_memory --draw"
    for one in next(iter(report.values()))["specs"].values():
        peak_bytes = max(one["temp_bytes_over_schedule"])
        # XLA sets some bytes aside beyond those of the largest moment.
        assert 0.999 * one["temp_bytes"] < peak_bytes <= one["temp_bytes"]


def test_the_first_picture_is_of_what_an_h200_measured() -> None:
    drawn = front.PICTURE.read_text(encoding="utf-8")
    assert front.picture() == drawn, "run: python -m benchmarks.gpu.front"
    assert f"]({front.PICTURE.relative_to(readme.ROOT)})" in text_of("README.md")
