"""The pages do not contradict each other: what was true once is gone, and a truth stands once."""

from __future__ import annotations

import re
import subprocess

import pytest
from support import ROOT

pytestmark = pytest.mark.once

HISTORY = ("CHANGELOG.md", "decisions")

STALE = (
    "not measured on a device",
    "No program of this project has run",
    "as soon as there are any",
    "times on a CPU",
    "hloom was written without a GPU",
    "and runs as CUDA graphs",
    "mostly one or two",
)
"""Sentences that were true before an H200 measured, or that a newcomer was led astray by."""

ONCE = {
    # What `offload` costs; gpu.md has what each measurement decided, passes.md an option's help.
    r"1\.6 to 2\.6": ("docs/moves.md", "docs/gpu.md", "docs/passes.md"),
    # What a step may take of a GPU.
    r"75 %[^|]{0,80}(?:its memory|the GPU|JAX|card)|JAX[^|]{0,60}\b(?:0\.)?75\b": (
        "docs/targets.md",
    ),
    # How many compiles a budget takes.
    r"the median budget took": ("docs/use.md",),
    # What the flag gave on an H200: the README's is generated.
    r"\d+ training steps with scans": ("README.md",),
    # Which program ran on which GPU.
    r"driver \d+\.\d+": ("docs/results.md",),
}
"""What no two pages may say otherwise: it stands on the first of these, and others link to it."""


def sentences(text: str) -> str:
    """The text with its lines joined, so that a sentence is found across their ends, without the
    lines that hloom prints."""
    return re.sub(r"\s+", " ", re.sub(r"(?m)^hloom: .*$", "", text))


def pages() -> dict[str, str]:
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    return {
        str(page.relative_to(ROOT)): sentences(page.read_text(encoding="utf-8"))
        for page in found
        if not {page.name, page.parent.name}.intersection(HISTORY)
    }


def stale(texts: dict[str, str]) -> list[str]:
    return [
        f"{page}: {sentence}"
        for page, text in texts.items()
        for sentence in STALE
        if sentence.lower() in text.lower()
    ]


def told_twice(texts: dict[str, str]) -> list[str]:
    return [
        f"{page}: {match[0]}: link to {places[0]}"
        for truth, places in ONCE.items()
        for page, text in texts.items()
        if page not in places and (match := re.search(truth, text))
    ]


def test_no_page_says_what_was_true_once() -> None:
    assert stale(pages()) == []


def test_a_truth_stands_once() -> None:
    assert told_twice(pages()) == []


@pytest.mark.parametrize(("truth", "places"), ONCE.items())
def test_the_page_of_a_truth_has_it(truth: str, places: tuple[str, ...]) -> None:
    assert re.search(truth, pages()[places[0]])


def test_pages_that_the_code_names_are_there() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.sh", "*.toml", "Makefile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    named = {
        (file, path)
        for file in listed
        for path in re.findall(r"\bdocs/[\w/-]+\.md\b", (ROOT / file).read_text(encoding="utf-8"))
    }
    assert len(named) > 10
    assert sorted(each for each in named if not (ROOT / each[1]).exists()) == []


def test_the_checks_above_can_fail() -> None:
    texts = {
        "a.md": sentences("Figures are here as\nsoon as there are any."),
        "b.md": "By default JAX gives 75 % of it.",
        "docs/targets.md": "75 % of its memory",
    }
    assert stale(texts) == ["a.md: as soon as there are any"]
    assert [each.split(":")[0] for each in told_twice(texts)] == ["b.md"]
