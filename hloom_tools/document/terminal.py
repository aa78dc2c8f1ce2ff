"""Renders a document for the terminal, by rich."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from hloom.passes.framework.tables import Kind
from hloom.show.terminal import PlainConsole, folded
from hloom.show.visible import visible
from hloom_tools.document.content import Document, Entry, Note, RowView, Section, TableView
from hloom_tools.document.sources import Named

_MOST_LINES = 8
"""The most lines of a cell."""

_SHORT = 32
"""The length up to which a spec in a table stays on one line."""

_NARROWEST = 80

_STYLES = {"error": "bold red", "warning": "bold yellow", "ok": "green", "dim": "dim"}


def show(document: Document, console: PlainConsole | None = None) -> None:
    """Prints a document in 80 columns, or as many as the terminal has."""
    (console or PlainConsole()).print(rendered(document), soft_wrap=True)


def as_text(document: Document, width: int) -> str:
    """Returns a document as plain text."""
    with io.StringIO() as file:
        show(document, PlainConsole(file=file, width=width, color_system=None))
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def rendered(document: Document) -> RenderableType:
    """Returns a document for a console of rich."""
    facts = [_Sentence(f"{name}: {entry}") for name, entry in document.facts]
    sections = (part for each in document.sections for part in _section(each, document.title))
    return Group(
        *[_Sentence(document.title, style="bold")][: bool(document.title)], *facts, *sections
    )


def section(what: Section) -> RenderableType:
    """Returns a section by itself."""
    return Group(*list(_section(what))[bool(what.title) :])


def _section(what: Section, known: str = "") -> Iterator[RenderableType]:
    """Yields a section; its title is left out where it is `known`."""
    if what.page_only:
        return
    if what.title not in ("", known):
        head = Text(visible(what.title), style="dim" if what.empty else "bold")
        yield from (Text(), _Sentence(head, f": {what.summary}" if what.summary else ""))
    elif what.summary:
        yield _Sentence(what.summary)
    facts = ", ".join(map(str, what.facts))
    if facts not in ("", what.summary) and not what.empty:
        yield _Sentence(facts)
    yield from (_Sentence(str(each)) for each in what.headlines)
    for table in what.tables:
        if not table.page_only:
            yield from _table(table, named=table.title not in ("", what.title))
    yield from map(_note, what.notes)
    for part in what.parts:
        yield from _section(part)


def _note(note: Note) -> RenderableType:
    style = _STYLES.get(note.tone, "")
    if note.code:
        command = Text(f"  {visible(note.code)}", style="cyan", no_wrap=True, overflow="ignore")
        return Group(_Sentence(f"{note.text}:"), command)
    if note.title:
        title = Text(f"{visible(note.title)}: ", style=style or "bold")
        return _Sentence(title, str(Note(note.text, remedy=note.remedy)))
    return _Sentence(str(note), style=style)


def _table(table: TableView, *, named: bool) -> Iterator[RenderableType]:
    if named:
        yield from (Text(), _Sentence(table.title, style="bold"))
    if table.text:
        yield _Sentence(table.text)
    rows = table.rows[: table.most or None]
    if rows:
        yield _Wide(_grid(table, rows))
    if more := len(table.rows) + table.more - len(rows):
        yield Text(f"and {more} more", style="dim")


def _grid(table: TableView, rows: Iterable[RowView]) -> Table:
    cells = [_cells(row) for row in rows]
    found = Table(box=None, pad_edge=False, header_style="dim")
    headings = [(heading, kind) for heading, kind in table.columns]
    at = 0
    for heading, kind in headings:
        whole = kind.is_number or kind is Kind.DRAWING
        longest = max((cell_len(line) for row in cells for line in row[at].split("\n")), default=0)
        found.add_column(
            heading,
            justify="right" if kind.is_number else "left",
            no_wrap=whole,
            overflow="ellipsis" if whole else "fold",
            min_width=longest if kind is Kind.CODE and longest <= _SHORT else None,
        )
        at += 1
        if kind is Kind.VALUE:
            found.add_column("line", overflow="fold")
            at += 1
    for row, given in zip(cells, rows, strict=True):
        found.add_row(*map(Breakable, row), style="dim" if given.idle else "")
    return found


def _cells(row: RowView) -> list[str]:
    """Returns a cell's text for each column; for values the name, then the line."""
    found: list[str] = []
    for cell in row.cells:
        entries = cell.entries[:_MOST_LINES]
        more = [f"and {len(cell.entries) - len(entries)} more"] * (len(cell.entries) > _MOST_LINES)
        if cell.kind is Kind.VALUE:
            lines = (str(one.place) if isinstance(one, Named) else "" for one in entries)
            found += ["\n".join([*map(_entry, entries), *more]), "\n".join(lines)]
        else:
            texts = (
                f"{_entry(one)} {one.place}".rstrip() if isinstance(one, Named) else str(one)
                for one in entries
            )
            found.append("\n".join([*texts, *more]))
    return ["  " * row.depth + found[0], *found[1:]]


def _entry(entry: Entry) -> str:
    if not isinstance(entry, Named):
        return str(entry)
    return (f"{entry.times} x " if entry.times > 1 else "") + entry.described


class _Sentence:
    """Texts after each other, in lines of whole words; a word longer than a line stays whole."""

    def __init__(self, *texts: str | Text, style: str = "") -> None:
        self._text = Text.assemble(*(visible(t) if isinstance(t, str) else t for t in texts))
        self._text.stylize(style)

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        text = self._text.copy()
        text.plain = folded(text.plain, options.max_width)
        text.no_wrap, text.overflow = True, "ignore"
        yield text


class _Wide:
    """A table in 80 columns or more: a narrower terminal wraps its lines and loses nothing."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(options.max_width, _NARROWEST)
        yield from console.render(self._table, options.update(width=width))


class Breakable:
    """A path, a name or a source line, which wraps after its separators where it must."""

    def __init__(self, text: str, style: str = "") -> None:
        self._text, self._style = visible(text), style

    def __rich_measure__(self, _console: Console, options: ConsoleOptions) -> Measurement:
        longest = max((cell_len(piece) for piece in _SEPARATORS[-1].split(self._text)), default=0)
        whole = max(map(cell_len, self._text.splitlines()), default=0)
        return Measurement(min(longest, options.max_width), min(whole, options.max_width))

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [
            line.rstrip()
            for each in self._text.splitlines()
            for line in _packed(each, options.max_width, _SEPARATORS)
        ]
        yield Text("\n".join(lines), style=self._style)


_SEPARATORS = [re.compile(each) for each in (r"(?<= )", r"(?<=/)", r"(?<=[ /._])|(?=\{)")]
"""The separators after which a name may wrap; each is used only where the earlier ones leave too
long parts."""


def _packed(text: str, width: int, separators: Sequence[re.Pattern[str]]) -> list[str]:
    """Returns the text as lines of at most `width`, unless a part is longer."""
    lines: list[str] = []
    for piece in separators[0].split(text) if separators else [text]:
        if lines and cell_len(lines[-1] + piece.rstrip()) <= width:
            lines[-1] += piece
        elif separators and cell_len(piece.rstrip()) > width:
            lines += _packed(piece, width, separators[1:])
        else:
            lines.append(piece)
    return lines
