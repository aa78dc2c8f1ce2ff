"""docs/passes.md is what the passes themselves say."""

from __future__ import annotations

import argparse
import re

import pytest
from support import ROOT
from support.toy_passes import NeedsTouch, Touch, Toy

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
    found: type[Pass] = request.param
    return found


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
