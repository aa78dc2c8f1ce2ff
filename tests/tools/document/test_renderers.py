"""A document as text, as a page and as JSON: each has every figure, fact and note."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.dumps.report_dumps import HOSTILE

from hloom.passes.framework.tables import Described, Fact, Kind
from hloom.passes.ir.names import SourceLine
from hloom_tools.document.content import (
    Document,
    Headline,
    Note,
    PageLink,
    Section,
    Strip,
    TableView,
    one_table,
    rows_of,
    table_of,
)
from hloom_tools.document.page import fragment, page
from hloom_tools.document.terminal import as_text

pytestmark = pytest.mark.once

COLUMNS = (
    ("what", Kind.TEXT),
    ("takes", Kind.BYTES),
    ("share", Kind.SHARE),
    ("grows", Kind.CHANGE),
    ("value", Kind.VALUE),
)
VALUE = Described("jit(f)/mul", SourceLine("/home/me/train.py:12"), "tensor<8xf32>")
ROWS = [(f"row {n}", 1536, 0.25, -0.148, VALUE) for n in range(12)]


@pytest.fixture
def document() -> Document:
    strip = Strip.stacked({"plan": 1.0, "apply": 3.0}, 4.0, "plan 1 s, apply 3 s")
    [row] = rows_of([("pass", Kind.CODE)], [("remat{min_bytes=0}",)])
    drawn = TableView(
        "Drawn", "", [("pass", Kind.CODE)], (replace(row, strip=strip),), strip="phases"
    )
    files = table_of("Files", [("file", Kind.TEXT)], [(PageLink("a.mlir", "#part-1"),)])
    part = Section(
        "Figures",
        facts=(Fact("bytes", 2048, Kind.BYTES),),
        headlines=(Headline("cost", "+1.34 ms", (Note("by rooflines"),)),),
        tables=(table_of("Rows", COLUMNS, ROWS, text="Above the rows."), drawn),
        notes=(Note("nothing", "missing.json", remedy="dump it again"), Note("See", code="ls x")),
    )
    module = Section(
        "jit_step",
        "module-1",
        "fit · cpu",
        notes=(Note(HOSTILE, "A pass failed", "error"),),
        parts=(part, Section("Folded", tables=(files,), page_only=True)),
    )
    return Document("A dump", (module,), (("command", "python train.py"),))


SHOWN = (
    "A dump",
    "python train.py",
    "jit_step",
    "fit · cpu",
    HOSTILE,
    "A pass failed",
    "by rooflines",
    "Above the rows",
    "row 0",
    "1.50 KiB",
    "25 %",
    "-14.8 %",
    "f32[8]",
    "train.py:12",
    "remat",
    "missing.json",
    "ump it again",
    "ls x",
)


def test_text_and_page_have_the_same(document: Document, tmp_path: Path) -> None:
    text = as_text(document, 80)
    shown = html.unescape(re.sub(r"<[^>]*>", "", page(document, folder=tmp_path)))
    for expected in SHOWN:
        assert expected in text
        assert expected in shown
    assert "bytes: 2.00 KiB" in text
    assert "Cost: +1.34 ms; by rooflines" in text
    assert "and 4 more" in text
    assert "row 11" in shown
    assert "plan 1 s, apply 3 s" in shown
    assert "a.mlir" in shown
    assert "a.mlir" not in text


def test_a_page_takes_no_name_for_its_own_and_links_what_is_there(
    document: Document, tmp_path: Path
) -> None:
    written = page(document, folder=tmp_path)
    assert "<script" not in written
    ids = re.findall(r' id="([^"]+)"', written)
    assert len(ids) == len(set(ids))
    assert {"module-1", "module-1-1", "module-1-2"} <= set(ids)
    assert "width:75.00%" in written


@pytest.mark.parametrize("width", [40, 80, 200])
def test_text_is_for_80_columns_and_loses_nothing(document: Document, width: int) -> None:
    lines = as_text(document, width).splitlines()
    assert max(map(len, lines)) <= max(width, 80)
    assert not [line for line in lines if "…" in line or line != line.rstrip()]


def test_json_has_the_numbers(document: Document) -> None:
    told = json.loads(json.dumps(document.to_json()))
    [module] = told["sections"]
    table = module["sections"][0]["tables"][0]
    assert table["columns"][1] == ["takes", "bytes"]
    assert table["rows"][11][:4] == ["row 11", 1536, 0.25, -0.148]
    assert told["facts"] == {"command": "python train.py"}


def test_a_command_stays_on_one_line() -> None:
    command = "hloom-opt " + "/a/long/path " * 12
    text = as_text(Document("", (Section("", notes=(Note("Next", code=command),)),)), 80)
    assert command.strip() in text.splitlines()[1]


def test_a_notebook_gets_the_tables_alone() -> None:
    told = one_table("title", [("size", Kind.COUNT)], [(n,) for n in range(20)], ["", "a remark"])
    shown = fragment(told)
    assert shown.count("<tr>") == 21
    assert "A remark." in shown
    assert "<html" not in shown


def test_a_source_line_in_a_text_is_short_and_a_path_to_copy_is_whole() -> None:
    where = "add (/home/me/runs/train.py:12) waits for /v/lib/python3.12/site-packages/flax/a.py:3"
    rows = [(where, "/home/me/runs/train.py:12")]
    told = one_table("", [("why", Kind.TEXT), ("file", Kind.CODE)], rows)
    text = as_text(told, 200)
    assert "add (train.py:12) waits for flax/a.py:3" in text
    assert "/home/me/runs/train.py:12" in text
    assert where in json.dumps(told.to_json())


def test_the_text_of_a_result_is_no_output_of_a_notebook(
    document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert as_text(document, 80).splitlines()
