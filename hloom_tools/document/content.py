"""The document that every command fills: sections of facts, tables and notes.

The cells of a table are typed, as those of a pass's plan (`hloom.passes.framework.tables`): a
renderer formats them. `terminal` renders a document by rich, `page` by jinja2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from hloom.passes.framework.structure import written
from hloom.passes.framework.tables import Described, Fact, Kind, Statement, Table, shown
from hloom.passes.ir.names import short_line
from hloom_tools.document.sources import Named, Sources, by_line

_DEEPEST = 40
"""The deepest indentation of a row."""

NO_SOURCES = Sources({})


@dataclass(frozen=True)
class PageLink:
    """A text that a page links: to a file, or to an anchor of the page, "#module-1"."""

    text: str
    to: Path | str

    def __str__(self) -> str:
        return self.text


Entry: TypeAlias = str | Named | PageLink
"""A line of a cell."""

Value: TypeAlias = float | Entry | Described | Sequence[Entry | Described] | None
"""A cell: a number of its column's kind, a text in its place, or lines; None is empty."""

Columns: TypeAlias = Sequence[tuple[str, Kind]]


@dataclass(frozen=True)
class CellView:
    """A cell with its column's heading and kind, as it was given and as lines."""

    heading: str
    kind: Kind
    entries: tuple[Entry, ...]
    value: Value = None


@dataclass(frozen=True)
class Strip:
    """The bars that a page draws at the end of a row.

    Attributes:
      bars: the class, the start and the width of each bar, in shares of the whole.
      mark: the place of a mark, in shares; None without one.
      text: the same in words.
    """

    bars: tuple[tuple[str, float, float], ...]
    text: str
    mark: float | None = None

    @classmethod
    def stacked(
        cls, parts: Mapping[str, float], whole: float, text: str, mark: float | None = None
    ) -> Strip:
        """Returns bars one behind the other: their amounts of a whole by class."""
        bars, start = [], 0.0
        for name, amount in parts.items():
            bars.append((name, start / whole, amount / whole))
            start += amount
        return cls(tuple(bars), text, None if mark is None else mark / whole)


@dataclass(frozen=True)
class RowView:
    """The cells of a row, the first one indented by `depth`.

    Attributes:
      continues: whether its value is of the same line as that of the row above.
      strip: what a page draws behind it.
      anchor: its anchor in a page.
      idle: whether it is of something that did nothing.
    """

    cells: tuple[CellView, ...]
    depth: int = 0
    continues: bool = False
    strip: Strip | None = None
    anchor: str = ""
    idle: bool = False

    @property
    def line(self) -> str:
        """Returns the line of the row's value; empty where it has none or several."""
        entries = next((cell.entries for cell in self.cells if cell.kind is Kind.VALUE), ())
        one = entries[0] if len(entries) == 1 else ""
        return one.place.line if isinstance(one, Named) else ""


@dataclass(frozen=True)
class TableView:
    """A table with the lines of the user's program.

    Attributes:
      text: sentences above the rows; empty for none.
      more: the number of rows that are not there.
      most: the most rows that a terminal shows, and a page unfolded; 0 for all.
      folded: whether a page shows it behind a line to click.
      page_only: whether a terminal leaves it out.
      strip: the heading of what a page draws in the rows; empty where it draws nothing.
      key: what the colors of the strips mean: class and text.
    """

    title: str
    text: str
    columns: Columns
    rows: tuple[RowView, ...]
    more: int = 0
    most: int = 8
    folded: bool = False
    page_only: bool = False
    strip: str = ""
    key: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns values that `json.dumps` takes."""
        return {
            "title": self.title,
            "text": self.text,
            "columns": [[heading, str(kind)] for heading, kind in self.columns],
            "rows": [[_json(cell.value) for cell in row.cells] for row in self.rows],
            "depths": [row.depth for row in self.rows] if any(r.depth for r in self.rows) else [],
            "more": self.more,
        }


@dataclass(frozen=True)
class Note:
    """A sentence, or a remark with a title.

    Attributes:
      tone: "error", "warning", "ok" or "dim"; empty for none.
      remedy: what to do about it.
      code: a command to copy, which the text introduces.
    """

    text: str
    title: str = ""
    tone: str = ""
    remedy: str = ""
    code: str = ""

    def __str__(self) -> str:
        text = f"{self.title}: {self.text}" if self.title else self.text
        remedy = f"\nRemedy: {self.remedy}" if self.remedy else ""
        return f"{text}{remedy}" + (f":\n  {self.code}" if self.code else "")


@dataclass(frozen=True)
class Headline:
    """A figure that stands out, with remarks; the figure may be empty."""

    label: str
    figure: str
    remarks: tuple[Note, ...] = ()

    def __str__(self) -> str:
        told = filter(None, (self.figure, *map(str, self.remarks)))
        return f"{self.label[:1].upper()}{self.label[1:]}: {'; '.join(told)}"


@dataclass(frozen=True)
class Section:
    """Facts, tables and notes with a title, in that order; or parts, which are sections.

    Attributes:
      title: the title, e.g. the pass as spelled in a spec; empty where the document's is enough.
      anchor: its anchor in a page.
      summary: a line of text; empty for none.
      figures: pictures, each a `plots.Figure`, which only a page shows.
      empty: whether the pass did nothing.
      quiet: whether a page leaves the title to those who do not see the section.
      pointer: what a page calls it where it lists the parts; the title where it is empty.
      page_only: whether a terminal leaves it out.
    """

    title: str
    anchor: str = ""
    summary: str = ""
    facts: tuple[Fact, ...] = ()
    tables: tuple[TableView, ...] = ()
    notes: tuple[Note, ...] = ()
    headlines: tuple[Headline, ...] = ()
    figures: tuple[Any, ...] = ()
    parts: tuple[Section, ...] = ()
    empty: bool = False
    quiet: bool = False
    pointer: str = ""
    page_only: bool = False

    @property
    def name(self) -> str:
        """Returns the title without options."""
        return self.title.partition("{")[0]

    def to_json(self) -> dict[str, Any]:
        """Returns values that `json.dumps` takes."""
        return {
            "title": self.title,
            "summary": self.summary,
            "headlines": list(map(str, self.headlines)),
            "facts": written(self.facts),
            "tables": [table.to_json() for table in self.tables],
            "notes": list(map(str, self.notes)),
            "sections": [part.to_json() for part in self.parts],
        }


@dataclass(frozen=True)
class Document:
    """Sections with a title, and facts about the whole: a name, and an entry."""

    title: str
    sections: tuple[Section, ...]
    facts: tuple[tuple[str, Entry], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns values that `json.dumps` takes."""
        return {
            "title": self.title,
            "facts": {name: str(entry) for name, entry in self.facts},
            "sections": [section.to_json() for section in self.sections],
        }


def rows_of(
    columns: Columns, rows: Iterable[Sequence[Value]], sources: Sources = NO_SOURCES
) -> tuple[RowView, ...]:
    """Returns rows of typed cells, one for each column."""
    return tuple(
        RowView(
            tuple(
                CellView(heading, kind, tuple(_entries(value, kind, sources)), value)
                for value, (heading, kind) in zip(row, columns, strict=True)
            )
        )
        for row in rows
    )


def table_of(
    title: str,
    columns: Columns,
    rows: Iterable[Sequence[Value]],
    *,
    text: str = "",
    sources: Sources = NO_SOURCES,
    **looks: Any,
) -> TableView:
    """Returns a table of typed cells; `looks` are further attributes of a `TableView`."""
    return TableView(title, text, columns, rows_of(columns, rows, sources), **looks)


def one_table(
    title: str, columns: Columns, rows: Iterable[Sequence[Value]], notes: Iterable[str] = ()
) -> Document:
    """Returns a document of a table with all of its rows, and remarks below it; empty ones are left
    out."""
    table = table_of("", columns, rows, most=0)
    remarks = tuple(Note(note) for note in notes if note)
    return Document(title, (Section("", tables=(table,), notes=remarks),))


def table_view(table: Table, sources: Sources) -> TableView:
    """Returns a table of a plan; rows of one line are together."""
    columns = tuple(table.columns.items())
    depths = table.depths or (0,) * len(table.rows)
    rows = tuple(
        replace(row, depth=min(depth, _DEEPEST))
        for row, depth in zip(rows_of(columns, table.rows, sources), depths, strict=True)
    )
    if not any(depths):
        rows = together(rows)
    most = 24 if any(depths) else 8
    return TableView(table.title, table.text, columns, rows, table.more, most)


def together(rows: Sequence[RowView]) -> tuple[RowView, ...]:
    """Returns rows so that those of one line are together."""
    return tuple(replace(row, continues=on) for row, on in by_line(rows, lambda row: row.line))


def plan_section(
    plan: Mapping[str, Any],
    spec: str,
    summary: str,
    sources: Sources = NO_SOURCES,
    *,
    empty: bool = False,
    anchor: str = "",
) -> Section:
    """Returns the section of a plan, of its `to_json`.

    Raises KeyError, TypeError or ValueError where that is damaged.
    """
    stated = Statement.of(plan)
    tables = tuple(table_view(each, sources) for each in stated.tables)
    return Section(spec, anchor, summary, stated.facts, tables, empty=empty)


def _entries(value: Value, kind: Kind, sources: Sources) -> Iterator[Entry]:
    listed = value if isinstance(value, tuple | list) else () if value in (None, "") else (value,)
    for each in listed:
        if isinstance(each, Described):
            yield sources.described(each)
        else:
            text = each if isinstance(each, Named | PageLink) else shown(each, kind)
            # What is to be copied stays whole.
            yield in_short(text) if isinstance(text, str) and kind is Kind.TEXT else text


_LINE = re.compile(r"(?<![\w/.])/(?:[^\s():,/]+/)+[^\s():,/]+\.py:\d+")


def in_short(text: str) -> str:
    """Returns a text whose source lines are without uninformative folders."""
    return _LINE.sub(lambda found: short_line(found[0]), text)


def _json(value: Value) -> Any:
    if isinstance(value, Described | Named):
        return written(value)
    if isinstance(value, tuple | list):
        return [_json(each) for each in value]
    return str(value) if isinstance(value, PageLink) else value
