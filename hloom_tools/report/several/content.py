"""Fills the documents of several dumps: an index, and two dumps side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hloom.dumps.read.dump import Missing
from hloom.passes.framework.tables import Kind
from hloom.passes.framework.text import pluralize
from hloom.show import units
from hloom_tools.document.content import Document, Entry, Note, PageLink, Section, Value, table_of
from hloom_tools.report.content import change, moment, on_processes
from hloom_tools.report.plots import figure_of_two
from hloom_tools.report.several.index import Index, IndexRow
from hloom_tools.report.several.pair import (
    FigureRow,
    ModulePair,
    PeakChange,
    TwoDumps,
    same_program,
)

_DUMPS = (
    ("dump", Kind.TEXT),
    ("module", Kind.TEXT),
    ("memory of a step", Kind.BYTES),
    ("by the passes", Kind.CHANGE),
    ("compile", Kind.SECONDS),
    ("passes", Kind.CODE),
)
_FIGURES = (("", Kind.TEXT), ("A", Kind.BYTES), ("B", Kind.BYTES), ("change", Kind.CHANGE))
_SETTINGS = (("", Kind.TEXT), ("A", Kind.CODE), ("B", Kind.CODE))
_PEAK = (("", Kind.TEXT), ("A", Kind.BYTES), ("B", Kind.BYTES), ("value", Kind.VALUE))
_SMALL = (("module", Kind.TEXT), ("A", Kind.BYTES), ("B", Kind.BYTES), ("program", Kind.TEXT))

_MOST_DUMPS = 50
"""The most rows of an index on a terminal, and unfolded on a page."""


def index_document(found: Index, pages: Mapping[Path, Path] | None = None) -> Document:
    """Returns the document of several dumps, given the pages of some of them."""
    pages = {} if pages is None else pages
    text = "Of each the modules that take most memory of a device, by XLA's count."
    if 0 < len(pages) < len(found.rows):
        text += (
            f" {len(pages)} have a report; `hloom report` on the folder of another writes its own"
        )
    rows = [cells for row in found.rows for cells in _row(row, pages)]
    table = table_of("The dumps", _DUMPS, rows, most=_MOST_DUMPS)
    notes = [Note("All of one: hloom report --text, and its folder.")] * (not pages)
    if found.left_out:
        left_out = pluralize(found.left_out, "more dump")
        notes.append(Note(f"and {left_out}, which were not read", tone="dim"))
    section = Section("The dumps", "dumps", text, tables=(table,), notes=tuple(notes))
    count = str(len(found.rows) + found.left_out)
    title = found.path.resolve().name
    return Document(title, (section,), (("dumps", count), ("folder", str(found.path))))


def _row(row: IndexRow, pages: Mapping[Path, Path]) -> Iterator[tuple[Value, ...]]:
    name = row.path.name
    first: list[Entry] = [PageLink(name, pages[row.path]) if row.path in pages else name]
    if row.problems:
        first.append(f"{row.problems} failed")
    if row.started:
        first.append(moment(row.started))
    if row.like != row.path:
        first.append(f"programs as in {row.like.name}")
    if row.missing:
        first.append(f"{pluralize(row.missing, 'thing')} missing")
    if not row.modules:
        yield first, row.error or "no module", None, None, None, None
    for number, module in enumerate(row.modules):
        told = [module.name, *on_processes(module.processes)]
        if row.others and number == 0:
            told.append(f"and {row.others} smaller")
        yield (
            None if number else first,
            told,
            "not known" if module.xla is None else module.xla.step_bytes,
            change(module.ends),
            module.compile_s,
            module.spec,
        )


def compare_document(both: TwoDumps) -> Document:
    """Returns the document of two dumps: the large modules in full, the others in a row each."""
    sections: list[Section] = []
    if missing := tuple(_missing(both.missing)):
        sections.append(Section("Missing from these dumps", "missing-of-all", notes=missing))
    sections += [_pair(pair) for pair in both.pairs if pair.in_full]
    if small := [pair for pair in both.pairs if not pair.in_full]:
        table = table_of("Smaller modules", _SMALL, map(_summary, small), most=_MOST_DUMPS)
        title = pluralize(len(small), "smaller module")
        sections.append(Section(title, "others", tables=(table,)))
    facts = [
        (side, f"{path} {moment(report.started)}".rstrip())
        for side, path, report in zip("AB", both.paths, both.reports, strict=True)
    ]
    return Document(both.title, tuple(sections), tuple(facts))


def _summary(pair: ModulePair) -> tuple[Value, ...]:
    one, other = (
        None if each is None else each.step_bytes or "not known"
        for each in (pair.first, pair.second)
    )
    return pair.either.name, one, other, same_program(pair)


def _pair(pair: ModulePair) -> Section:
    parts = []
    if pair.figures:
        title = "Memory, decisions and times"
        table = table_of(title, _FIGURES, _cells(pair.figures), most=0)
        parts.append(Section(title, "figures", tables=(table,)))
    if pair.first is not None and pair.second is not None:
        figure = figure_of_two(pair.first.memory, pair.second.memory)
        if figure is not None:
            title = "Memory over the program"
            parts.append(Section(title, "curve", figures=(figure,), page_only=True))
    if pair.peak is not None:
        parts.append(_peak(pair.peak))
    if pair.settings:
        title = "Settings that differ"
        rows = [(row.name, row.first, row.second) for row in pair.settings]
        parts.append(Section(title, "settings", tables=(table_of(title, _SETTINGS, rows, most=0),)))
    if missing := tuple(_missing(pair.missing)):
        parts.append(Section("What is missing", "missing", notes=missing))
    notes = tuple(
        Note(notice.text, f"{side}: {notice.title}", notice.severity)
        for side, notice in pair.notices
    )
    name = pair.either.name
    return Section(name, pair.anchor, same_program(pair), notes=notes, parts=tuple(parts))


def _cells(rows: Iterable[FigureRow]) -> Iterator[tuple[Value, ...]]:
    return ((row.name, row.first or "–", row.second or "–", row.change) for row in rows)  # noqa: RUF001


def _peak(peak: PeakChange) -> Section:
    text = (
        f"{peak.title}: {units.size(peak.first_bytes)} in A, {units.size(peak.second_bytes)} in B"
    )
    if peak.unchanged:
        text += f"; {pluralize(peak.unchanged, 'line')} with the same bytes in both"
    rows: list[Sequence[Value]] = []
    for row in peak.rows:
        sign = "+" if row.second_bytes > row.first_bytes else "-"
        what = f"{row.what} {sign}{units.size(abs(row.second_bytes - row.first_bytes))}"
        rows.append((what, row.first_bytes or None, row.second_bytes or None, row.value))
    tables = (table_of("What changed", _PEAK, rows),) if rows else ()
    return Section("Whose the peak is", "owners", text, tables=tables)


def _missing(missing: Iterable[tuple[str, Missing]]) -> Iterator[Note]:
    for side, each in missing:
        yield Note(each.why, f"Missing from {side}: {each.what}", remedy=each.remedy)
