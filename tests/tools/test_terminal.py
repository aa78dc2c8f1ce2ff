"""What comes from files is text on a terminal and nothing else."""

from __future__ import annotations

import io
import sys

import pytest
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text
from support.log_streams import FakeTerminal

from hloom.show.terminal import PlainConsole
from hloom.show.visible import in_columns, visible
from hloom_tools.complaint import complain
from hloom_tools.document.terminal import Breakable

pytestmark = pytest.mark.once

HOSTILE = "\x1b]0;t\x07\x9b2J\u202e\u2066\ud800\u200b\r\x00\x7f"


def test_control_characters_are_written_out() -> None:
    assert visible(HOSTILE) == ("\\x1b]0;t\\x07\\x9b2J\\u202e\\u2066\\ud800\\u200b\\r\\x00\\x7f")
    assert visible("a\tb\nç ✓ … 漢") == "a\tb\nç ✓ … 漢"
    assert len(in_columns(HOSTILE)) == len(HOSTILE)
    assert in_columns(HOSTILE).replace("\ufffd", "") == "]0;t2J"


@pytest.mark.parametrize("text", [HOSTILE, "[/red]", "[link=x]a[/link]", ":smile:", "a\x1b[31mb"])
def test_a_console_prints_strings_as_they_are(text: str) -> None:
    stream = io.StringIO()
    console = PlainConsole(file=stream, width=200, force_terminal=False)
    table = Table(title=text)
    table.add_column(text)
    table.add_row(text)
    console.print(text, Text(text), table)
    shown = stream.getvalue()
    assert not any(not c.isprintable() and c != "\n" for c in shown)
    shown.encode()
    if text != HOSTILE:  # rich drops some control characters of its own accord
        assert shown.count(visible(text)) == 5


def test_styles_still_reach_a_terminal() -> None:
    stream = io.StringIO()
    console = PlainConsole(file=stream, force_terminal=True, color_system="standard")
    console.print(Text("a\x1b[32mb", style="red"))
    assert stream.getvalue() == "\x1b[31ma\\x1b[32mb\x1b[0m\n"


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (40, ["mul (backward) flax/nnx/_attention.py:40"]),
        (30, ["mul (backward)", "flax/nnx/_attention.py:40"]),
        (18, ["mul (backward)", "flax/nnx/", "_attention.py:40"]),
        (14, ["mul (backward)", "flax/nnx/", "_attention.", "py:40"]),
    ],
)
def test_names_are_broken_behind_their_separators(width: int, lines: list[str]) -> None:
    stream = io.StringIO()
    name = Breakable("mul (backward) flax/nnx/_attention.py:40")
    PlainConsole(file=stream, width=width).print(name)
    assert stream.getvalue().splitlines() == lines


def test_a_name_without_separators_is_broken_anyhow_and_is_text() -> None:
    stream = io.StringIO()
    PlainConsole(file=stream, width=12).print(Breakable("[red]" + "漢" * 8 + "\x1b[0m"))
    shown = stream.getvalue()
    assert all(cell_len(line) <= 12 for line in shown.splitlines())
    assert "".join(shown.split()) == "[red]" + "漢" * 8 + "\\x1b[0m"


def test_errors_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert complain("hloom x", ValueError("\x1b[31m")) == 1
    assert capsys.readouterr().err == "hloom x: error: \\x1b[31m\n"


LONG = "f" * 100
SENTENCE = f"one two three four five six seven eight nine {LONG} ten"


def test_a_person_reads_errors_in_lines_of_whole_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    for stream, lines in ((FakeTerminal(), 5), (io.StringIO(), 1)):
        monkeypatch.setattr(sys, "stderr", stream)
        assert complain("hloom x", SENTENCE) == 1
        told = stream.getvalue().splitlines()
        assert len(told) == lines
        assert " ".join(line.strip() for line in told) == f"hloom x: error: {SENTENCE}"
        assert all(len(line) <= 30 for line in told if LONG not in line) or lines == 1


def test_a_console_says_sentences_in_whole_words_to_a_person_alone() -> None:
    person, pipe = io.StringIO(), io.StringIO()
    PlainConsole(file=person, width=20, force_terminal=True, color_system=None).say(SENTENCE, "  ")
    PlainConsole(file=pipe, width=20).say(SENTENCE, "  ")
    assert pipe.getvalue() == f"{SENTENCE}\n"
    first, *others = person.getvalue().splitlines()
    assert first == "one two three four"
    assert all(line.startswith("  ") for line in others)
    assert f"  {LONG}" in others  # what is to be copied stays whole
