"""Renders several dumps for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from hloom.passes.framework.text import pluralize
from hloom.show import units
from hloom_tools.report.several.index import Index, IndexRow
from hloom_tools.report.several.pair import (
    FigureRow,
    ModulePair,
    OwnerChange,
    PeakChange,
    TwoDumps,
    same_program,
)
from hloom_tools.report.text import heading, table

_MOST_DUMPS = 50
"""The most dumps of an index on a terminal; the page has all."""

_MOST_OWNERS = 8


def index_text(found: Index) -> RenderableType:
    """Returns the dumps as a table, a line for each of their large modules."""
    columns = ("dump", "module", "step>", "by the passes>", "compile>", "passes")
    parts: list[RenderableType] = [Text(str(found.path), style="bold")]
    parts.append(table(columns, (cells for row in found.rows[:_MOST_DUMPS] for cells in _row(row))))
    if (more := len(found.rows) + found.left_out - _MOST_DUMPS) > 0:
        parts.append(Text(f"and {pluralize(more, 'more dump')}", style="dim"))
    parts.append(Text("All of one: hloom report --text, and its folder."))
    return Group(*parts)


def _row(row: IndexRow) -> Iterator[Sequence[str]]:
    if not row.modules:
        yield row.path.name, row.error or "no module", "", "", "", ""
    for number, module in enumerate(row.modules):
        others = f" and {row.others} smaller" if row.others and number == 0 else ""
        yield (
            "" if number else row.path.name + (f" ({row.problems} failed)" * bool(row.problems)),
            module.name + others,
            "not known" if module.xla is None else units.size(module.xla.step_bytes),
            units.change(*module.ends) if module.ends else "",
            "" if module.compile_s is None else units.seconds(module.compile_s),
            module.spec or "",
        )


def compare_text(both: TwoDumps) -> RenderableType:
    """Returns two dumps as tables: the large modules in full, the others in a line."""
    parts: list[RenderableType] = [Text(both.title, style="bold")]
    parts += [Text(f"{side}: {path}") for side, path in zip("AB", both.paths, strict=True)]
    for side, each in both.missing:
        parts.append(Text(f"Missing from {side}: {each}", style="yellow"))
    small = [pair for pair in both.pairs if not pair.in_full]
    for pair in both.pairs:
        if pair.in_full:
            parts += _pair(pair)
    if small:
        columns = ("module", "A>", "B>", "program")
        parts += [heading("Smaller modules"), table(columns, map(_summary, small[:_MOST_DUMPS]))]
        if len(small) > _MOST_DUMPS:
            parts.append(Text(f"and {len(small) - _MOST_DUMPS} more", style="dim"))
    return Group(*parts)


def _summary(pair: ModulePair) -> Sequence[str]:
    sizes = (
        "" if each is None else units.size(each.step_bytes) if each.step_bytes else "not known"
        for each in (pair.first, pair.second)
    )
    return pair.either.name, *sizes, same_program(pair)


def _pair(pair: ModulePair) -> Iterator[RenderableType]:
    yield Text()
    yield Text.assemble((pair.either.name, "bold"), f"  {same_program(pair)}")
    for side, notice in pair.notices:
        style = "bold red" if notice.severity == "error" else "bold yellow"
        yield Text.assemble((f"{side}: {notice.title}: ", style), notice.text)
    if pair.figures:
        yield heading("Memory, decisions and times")
        yield table(("", "A>", "B>", "change>"), _cells(pair.figures))
    if pair.peak is not None:
        yield from _peak(pair.peak)
    if pair.settings:
        yield heading("Settings that differ")
        yield table(("", "A", "B"), ((row.name, row.first, row.second) for row in pair.settings))
    for side, entry in pair.missing:
        yield Text(f"Missing from {side}: {entry}", style="yellow")


def _cells(rows: Iterable[FigureRow]) -> Iterator[Sequence[str]]:
    return ((row.name, row.first, row.second, row.change) for row in rows)


def _peak(peak: PeakChange) -> Iterator[RenderableType]:
    sizes = f"{units.size(peak.first_bytes)} in A, {units.size(peak.second_bytes)} in B"
    yield heading(f"{peak.title}: {sizes}")
    if peak.rows:
        columns = ("", "A>", "B>", "value", "line")
        yield table(columns, map(_owner, peak.rows[:_MOST_OWNERS]))
    more = len(peak.rows) - _MOST_OWNERS
    told = [f"{more} more changed"] * (more > 0)
    told += [f"{pluralize(peak.unchanged, 'line')} the same in both"] * bool(peak.unchanged)
    if told:
        yield Text(", ".join(told), style="dim")


def _owner(row: OwnerChange) -> Sequence[str]:
    sizes = (units.size(each) if each else "" for each in (row.first_bytes, row.second_bytes))
    return row.what, *sizes, row.value.described, str(row.value.place)
