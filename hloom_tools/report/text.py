"""Renders a report for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hloom.dumps.read.dump import Missing
from hloom.passes.framework.tables import Kind
from hloom.passes.framework.text import pluralize
from hloom.show import units
from hloom.show.terminal import Breakable
from hloom_tools.report.folder import Times
from hloom_tools.report.gather import ModuleReport, Report
from hloom_tools.report.memory import MemoryView, PeakOwners
from hloom_tools.report.sections import Entry, RowView, Section, TableView
from hloom_tools.report.sources import Named
from hloom_tools.report.totals import Total

_MOST_ROWS = 8
"""The most rows of a table on a terminal; the page has all."""

_MOST_NESTED = 24
"""The most rows of a table with nested rows."""


def text(report: Report) -> RenderableType:
    """Returns the report as tables of rich; the largest modules in full, the others in a line."""
    parts: list[RenderableType] = [Text(f"{report.title}  {report.path}", style="bold")]
    if report.missing:
        parts += [heading("Missing from this dump"), *_missing(report.missing)]
    if len(report.modules) > 1:
        large = [module for module in report.modules if module.in_full]
        shown = report.modules[: len(large) + _MOST_ROWS]
        columns = ("module", "step>", "by the passes>", "compile>", "passes")
        parts += [heading("Modules"), table(columns, map(_summary, shown))]
        parts += _more(len(report.modules), len(shown))
    for module in report.modules:
        if module.in_full:
            parts += _module(module)
    return Group(*parts)


def _module(module: ModuleReport) -> Iterator[RenderableType]:
    yield Text()
    about = [module.spec or "", module.device]
    yield Text.assemble((module.name, "bold"), f"  {'  '.join(filter(None, about))}")
    for notice in module.notices:
        style = "bold red" if notice.severity == "error" else "bold yellow"
        yield Text.assemble((f"{notice.title}: ", style), notice.text)
    if module.cost is not None and module.cost.figure:
        yield Text.assemble(
            "Cost of a step: ", (module.cost.figure, "bold"), f" {module.cost.remark}"
        )
    if module.cost is not None and module.cost.effects:
        yield Text(f"Done: {', '.join(module.cost.effects)}")
    yield from _memory(module.memory)
    for each in module.sections:
        yield from (Text(), *section(each))
    if module.times.known:
        yield heading("Passes and compile")
        yield table(("pass", "what it did", "time>"), _times(module.times))
    if module.missing:
        yield from (heading("Missing"), *_missing(module.missing))
    if module.commands:
        yield heading("Next")
        for what, command in module.commands:
            yield Text.assemble(f"{what}:\n  ", (command, "cyan"))


def _summary(module: ModuleReport) -> Sequence[str]:
    ends, compile_s = module.memory.ends, module.times.compile_s
    told = [notice.title for notice in module.notices]
    told += [f"{pluralize(len(module.missing), 'thing')} missing"] * bool(module.missing)
    return (
        module.name + (f" ({', '.join(told)})" if told and not module.in_full else ""),
        units.size(module.step_bytes) if module.step_bytes else "not known",
        units.change(*ends) if ends else "",
        "" if compile_s is None else units.seconds(compile_s),
        module.spec or "",
    )


def _memory(memory: MemoryView) -> Iterator[RenderableType]:
    yield heading("Memory of a step, on each device")
    if not memory.bars:
        yield Text("not known")
        return
    rows: list[Sequence[str | Text]] = []
    for when, by, figures in memory.bars:
        if figures is None:
            rows.append((f"{when}, by {by}", Text("not compiled", style="dim")))
            continue
        sizes = (figures.argument_bytes, figures.output_bytes, figures.temp_bytes)
        step = Text(units.size(figures.step_bytes), style="bold")
        rows.append((f"{when}, by {by}", step, *map(units.size, sizes)))
    yield table(("", "step>", "arguments>", "results>", "temporaries>"), rows)
    if memory.bound is not None:
        holds = None if memory.xla is None else memory.bound.holds(memory.xla)
        verdict, style = {
            None: ("Budget:", ""),
            True: ("Holds the budget of", "green"),
            False: ("Over the budget of", "bold red"),
        }[holds]
        measured = "" if memory.xla is None else f"; {memory.bound.measured(memory.xla)}, by XLA"
        yield Text(f"{verdict} {memory.bound.text}{measured}.", style=style)
    if memory.arguments:
        whole_bytes = sum(total.size_bytes for total in memory.arguments)
        yield heading(f"Arguments: {units.size(whole_bytes)}")
        columns = ("bytes>", "of the arguments>", "what", "arrays>")
        yield table(columns, _totals(memory.arguments, whole_bytes))
    for owners in memory.owners[:1]:
        if len(owners.totals) > 1:
            yield heading(f"{owners.title}, by layer: {units.size(owners.peak_bytes)}")
            columns = ("bytes>", "of the peak>", "layer", "values>")
            yield table(columns, _totals(owners.totals, owners.peak_bytes))
        if owners.rows:
            yield heading(f"{owners.title}: {units.size(owners.peak_bytes)}")
            yield table(("bytes>", "of the peak>", "value", "line"), _owners(owners))
        if owners.rows and owners.others:
            more = f"and {pluralize(owners.others, 'smaller value')}"
            yield Text(f"{more}, {units.size(owners.others_bytes)}", style="dim")


def _totals(totals: Sequence[Total], whole_bytes: int) -> Iterator[Sequence[str]]:
    for row in totals:
        share = units.percent(row.size_bytes / whole_bytes) if whole_bytes else ""
        yield units.size(row.size_bytes), share, row.name, str(row.count)


def _owners(owners: PeakOwners) -> Iterator[Sequence[str]]:
    for row in owners.rows:
        count = f"{row.count} x " if row.count > 1 else ""
        share = units.percent(row.size_bytes / owners.peak_bytes)
        value = count + row.value.described
        yield units.size(row.size_bytes), share, value, str(row.value.place)


def section(what: Section) -> Iterator[RenderableType]:
    """Yields the title with the summary, then facts and tables."""
    style = "dim" if what.empty else "bold"
    yield Text.assemble((what.title, style), f": {what.summary}" if what.summary else "")
    facts = ", ".join(map(str, what.facts))
    if facts not in ("", what.summary) and not what.empty:
        yield Text(facts)
    yield from tables(what)


def tables(what: Section) -> Iterator[RenderableType]:
    """Yields the tables of a section, the first rows of each."""
    for each in what.tables:
        yield heading(each.title)
        if each.text:
            yield Text(each.text)
        most = _MOST_NESTED if each.is_nested else _MOST_ROWS
        if each.rows:
            yield table(_headings(each), map(_cells, each.rows[:most]))
        yield from _more(len(each.rows) + each.more, min(most, len(each.rows)))


def _headings(of: TableView) -> Iterator[str]:
    for heading, kind in of.columns.items():
        yield f"{heading}>" if kind.is_number else f"{heading}=" * (kind is Kind.DRAWING) or heading
        if kind is Kind.VALUE:
            yield "line"


def _cells(row: RowView) -> Sequence[str]:
    """Returns a cell's text for each column; for values the name, then the line."""
    found: list[str] = []
    for cell in row.cells:
        entries = cell.entries[:_MOST_ROWS]
        more = [f"and {len(cell.entries) - len(entries)} more"][: len(cell.entries) - len(entries)]
        if cell.kind is Kind.VALUE:
            found.append("\n".join([*map(_entry, entries), *more]))
            found.append(
                "\n".join(str(one.place) if isinstance(one, Named) else "" for one in entries)
            )
        else:
            lines = (
                f"{_entry(one)} {one.place}".rstrip() if isinstance(one, Named) else one
                for one in entries
            )
            found.append("\n".join([*lines, *more]))
    return ["  " * row.depth + found[0], *found[1:]]


def _entry(entry: Entry) -> str:
    if isinstance(entry, str):
        return entry
    count = f"{entry.times} x " if entry.times > 1 else ""
    return count + entry.described


def _times(times: Times) -> Iterator[Sequence[str | Text]]:
    for run in times.passes:
        cells = (run.spec, run.summary, units.seconds(run.seconds))
        yield [Text(cell, style="dim" if run.empty else "") for cell in cells]
    if times.compile_s is not None:
        did = "from JAX's persistent cache" if times.cache_hit else "compiled"
        did += f", {times.compiles} times" if times.compiles > 1 else ""
        yield "XLA", did, units.seconds(times.compile_s)


def _missing(entries: Iterable[Missing]) -> Iterator[RenderableType]:
    for each in entries:
        remedy = f"\nRemedy: {each.remedy}" if each.remedy else ""
        yield Text.assemble((each.what, "bold"), f": {each.why}{remedy}")


def _more(count: int, most: int) -> Iterator[RenderableType]:
    if count > most:
        yield Text(f"and {count - most} more", style="dim")


def heading(title: str) -> RenderableType:
    """Returns a heading for a table."""
    return Padding(Text(title, style="bold"), (1, 0, 0, 0))


def table(columns: Iterable[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """Returns a table without rules.

    A ">" at the end of a column's name aligns its numbers right, "=" prevents wrapping. Names wrap
    after their separators.
    """
    found = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        right, whole = column.endswith(">"), column.endswith((">", "="))
        found.add_column(
            column.removesuffix(">").removesuffix("="),
            justify="right" if right else "left",
            no_wrap=whole,
            overflow="ellipsis" if whole else "fold",
        )
    for row in rows:
        found.add_row(*(Breakable(cell) if isinstance(cell, str) else cell for cell in row))
    return found
