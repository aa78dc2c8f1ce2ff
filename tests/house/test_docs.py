"""docs/passes.md is what the passes themselves say.

What is generated in README.md and docs/ is what benchmarks/results and the packages say. What is
committed as measured says so only as long as hloom plans what it planned then.
"""

from __future__ import annotations

import argparse
import json
import re

import pytest
from support import ROOT
from support.toy_passes import NeedsTouch, Touch, Toy

from benchmarks import readme, step_memory
from benchmarks.common.tables import RESULTS
from benchmarks.gpu import front
from benchmarks.tpu.maxtext.measure import planned
from benchmarks.tpu.maxtext.programs import DECODERS
from hloom.passes.framework import registry
from hloom.passes.framework.base import Pass
from hloom.passes.framework.options import options_of
from hloom.passes.framework.pipeline import Pipeline
from hloom_tools import passes_doc

PASSES_MD = ROOT / "docs" / "passes.md"


def test_passes_md_is_up_to_date() -> None:
    assert PASSES_MD.read_text(encoding="utf-8") == passes_doc.markdown(), (
        "docs/passes.md is not what the passes say: hloom passes --markdown > docs/passes.md"
    )


@pytest.fixture(params=registry.all_passes(), ids=lambda cls: cls.name)
def pass_class(request: pytest.FixtureRequest) -> type[Pass]:
    return request.param


def test_every_pass_shows_before_and_after(pass_class: type[Pass]) -> None:
    section = passes_doc.markdown().split(f"\n## {pass_class.name}\n")[1].split("\n## ")[0]
    for heading in ("Before:", "After:"):
        assert f"\n{heading}\n\n```mlir\n" in section, f"{pass_class.name} has no '{heading}:'"


def test_every_example_is_a_spec_that_runs_the_pass(pass_class: type[Pass]) -> None:
    pipeline = Pipeline.parse(pass_class.example)
    assert pass_class in map(type, pipeline.passes)


def test_every_summary_is_one_line(pass_class: type[Pass]) -> None:
    assert 0 < len(pass_class.summary) <= 80
    assert "\n" not in pass_class.summary
    assert not pass_class.summary.endswith(".")


def test_every_option_is_told(pass_class: type[Pass]) -> None:
    section = passes_doc.markdown().split(f"\n## {pass_class.name}\n")[1].split("\n## ")[0]
    for option in options_of(pass_class):
        assert f"\n- `{option.name}` ({option.wants}" in section
        assert option.doc


def test_the_section_of_a_pass_word_for_word() -> None:
    with registry.registered(Toy, Touch, NeedsTouch):
        document = passes_doc.markdown()
    toy = document.split("\n## toy\n")[1].split("\n## ")[0]
    options = toy[toy.index("- `limit`") :]
    assert options == (
        "- `limit` (a whole number, from -5 to 100 (things); default: `8`): How many.\n"
        "- `ratio` (a number, at least 0.0; default: `0.5`): How much.\n"
        "- `weight` (a number; default: `1.0`): How heavy.\n"
        "- `loud` (on or off; default: `off`): Whether to shout.\n"
        "- `mode` (one of fast, small-first; default: `fast`): Which way.\n"
        "- `size` (a size in bytes such as 4KiB or 60GiB; default: `4KiB`): How large.\n"
        "- `room` (a size in bytes such as 4KiB or 60GiB, at least 1MiB; default: `1GiB`): "
        "How much room.\n"
        "- `budget` (a size such as 60GiB, a share such as 50%, fit, or min): How much in all.\n"
        "\n"
        "Example: `toy{limit=4}`\n"
    )
    needs = document.split(f"\n## {NeedsTouch.name}\n")[1].split("\n## ")[0]
    assert "Runs first: `touch`." in needs
    touch = document.split("\n## touch\n")[1].split("\n## ")[0]
    assert "It has no options." in touch
    assert "It prepares for other passes" in touch


def test_the_overview_names_every_pass_once() -> None:
    rows = re.findall(r"^- \[`(.+?)`\]\(#(.+?)\): ", passes_doc.markdown(), re.MULTILINE)
    assert rows == [(cls.name, cls.name) for cls in registry.all_passes()]


def test_options_stand_before_the_long_text(capsys: pytest.CaptureFixture[str]) -> None:
    """`hloom passes NAME` begins with what a spec needs."""
    arguments = argparse.Namespace(name="fit", markdown=False, json=None)
    assert passes_doc.run(arguments) == 0
    printed = capsys.readouterr().out
    places = [printed.index(each) for each in ("\n  budget  ", "Example: fit{", "Before:")]
    assert places == sorted(places)


def test_the_page_begins_with_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    document = passes_doc.markdown()
    name, shown = re.findall(r"```console\n\$ hloom passes (.+?)\n(.+?)\n…\n```", document, re.S)[0]
    assert passes_doc.run(argparse.Namespace(name=name, markdown=False, json=None)) == 0
    assert capsys.readouterr().out.startswith(shown)


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


@pytest.mark.once
@pytest.mark.parametrize("decoder", DECODERS)
def test_the_plan_that_maxtext_s_table_states_is_that_of_today(decoder: str) -> None:
    """Else `python -m benchmarks.tpu.maxtext plans` states it anew, and marks what is of before."""
    report = json.loads((RESULTS / "maxtext.json").read_text("utf-8"))
    assert {entry["plans"][decoder] for entry in report.values()} == {planned(decoder)}
