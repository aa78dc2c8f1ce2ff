"""A report for the terminal."""

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
from hloom.tools.report.chunks import ChunkedRow, ChunksView
from hloom.tools.report.folder import Times
from hloom.tools.report.gather import ModuleReport, Report
from hloom.tools.report.memory import Bound, MemoryView, PeakOwners
from hloom.tools.report.moves import MovesView, price
from hloom.tools.report.plan_views import (
    HOW_PREDICTED,
    AttemptRow,
    BarriersView,
    Graphs,
    Recomputation,
)
from hloom.tools.report.plans import Entry, PlanView, RowView, TableView
from hloom.tools.report.sources import Named
from hloom.tools.report.totals import Total

_MOST_ROWS = 8
"""Of a long table, how many rows a terminal gets; the page has all."""

_MOST_PLACES = 24
"""Of the places where devices meet."""

_MOST_NESTED = 24
"""Of a table whose rows are nested."""


def text(report: Report) -> RenderableType:
    """The report as tables of rich; the largest modules in full, of the others a line."""
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
    yield from _memory(module.memory)
    for each in module.plans:
        yield from plan_text(each)
    if module.moves is not None:
        yield from moves(module.moves)
    if module.recomputation is not None:
        yield from recomputation(module.recomputation, module.memory.bound)
    if module.chunks is not None:
        yield from in_chunks(module.chunks)
    if module.barriers is not None:
        yield from barriers(module.barriers)
    if module.graphs is not None:
        yield from _graphs(module.graphs)
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


def plan_text(plan: PlanView) -> Iterator[RenderableType]:
    """A pass with its summary, then what it decided."""
    yield Text()
    style = "dim" if plan.empty else "bold"
    yield Text.assemble((plan.spec, style), f": {plan.summary}" if plan.summary else "")
    if plan.facts:
        yield Text(", ".join(map(str, plan.facts)))
    if plan.note and not plan.empty:
        yield Text(plan.note, style="dim")
    for each in plan.tables:
        yield heading(each.title)
        if each.text:
            yield Text(each.text)
        most = _MOST_NESTED if any(row.depth for row in each.rows) else _MOST_ROWS
        if each.rows:
            yield table(_headings(each), map(_cells, each.rows[:most]))
        yield from _more(len(each.rows) + each.more, min(most, len(each.rows)))


def _headings(of: TableView) -> Iterator[str]:
    for heading, kind in of.columns.items():
        yield f"{heading}>" if kind.is_number else heading
        if kind is Kind.VALUE:
            yield "line"


def _cells(row: RowView) -> Sequence[str]:
    """A cell's text for each column; of values their names, and then their lines."""
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


def moves(what: MovesView) -> Iterator[RenderableType]:
    yield heading("What was done, and what it costs")
    rows: list[Sequence[str | Text]] = []
    for row in what.rows[:_MOST_ROWS]:
        for number, move in enumerate(row.moves, start=1):
            details = (f"{one.text} {one.value.place}" for one in move.details[:_MOST_ROWS])
            told = "\n".join(filter(None, (move.summary, *details)))
            style = "dim" if move.prepares else ""
            figures = (row.gain, row.price) if number == len(row.moves) else ("", "")
            rows.append((Text(move.spec, style=style), Text(told, style=style), *figures))
    yield table(("move", "what it did", "temporaries>", "adds>"), rows)
    yield from _more(len(what.rows))
    if what.gain and what.seconds is not None:
        yield Text(f"{what.gain} at the peak, by the model; added to a step: {price(what.seconds)}")


def recomputation(what: Recomputation, bound: Bound | None) -> Iterator[RenderableType]:
    yield heading("Recomputed rather than kept")
    if what.empty:
        yield Text("nothing")
    else:
        flops = what.added_flops or 0
        than = "more" if flops > 0 else "less"
        cost = f", {units.flops(abs(flops))} {than} work" if flops else ""
        yield Text(
            f"{pluralize(what.operations, 'operation')} once more, "
            f"{units.size(what.freed_bytes)} not kept, {units.size(what.added_bytes)} kept in "
            f"their place{cost}"
        )
        rows = []
        for row in what.values[:_MOST_ROWS]:
            readers = [f"{one.called} {one.place}" for one, _ in row.readers[:2]]
            more = len(row.readers) - len(readers)
            readers += [f"and {more} more"] if more else []
            value = row.value.described
            place = str(row.value.place)
            rows.append((units.size(row.size_bytes), value, place, "\n".join(readers)))
        yield table(("not kept>", "value", "line", "computed again for"), rows)
        yield from _more(len(what.values))
    if what.attempts:
        yield heading("Attempts")
        yield Text(HOW_PREDICTED, style="dim")
        columns = ("", "predicted>", "XLA's figure>", "off by>", "added work>", "")
        yield table(columns, _attempts(what.attempts, bound))


def _attempts(attempts: Sequence[AttemptRow], bound: Bound | None) -> Iterator[Sequence[str]]:
    limit = None if bound is None or bound.of_temp else bound.bytes
    for number, attempt in enumerate(attempts, start=1):
        measured, error = attempt.measured_bytes, attempt.error
        status = [attempt.refusal] if attempt.refusal else []
        if not status and measured is not None and limit is not None and measured > limit:
            status = ["over the budget"]
        yield (
            str(number),
            "" if attempt.predicted_bytes is None else units.size(attempt.predicted_bytes),
            "" if measured is None else units.size(measured),
            "" if error is None else f"{error * 100:+.1f} %",
            units.flops(attempt.added_flops or 0),
            ", ".join(status + ["used"] * attempt.used),
        )


def in_chunks(what: ChunksView) -> Iterator[RenderableType]:
    yield heading("What runs in chunks, and why")
    if what.refusal:
        yield Text(f"not the whole step: {what.refusal}")
    if what.rows:
        columns = ("whole>", "now>", "largest value", "line", "chunks")
        yield table(columns, map(_chunked, what.rows[:_MOST_ROWS]))
        yield from _more(len(what.rows))
        for row in what.rows[:_MOST_ROWS]:
            ends = [text for loop in row.loops for text in loop.ends]
            yield from (Text(f"a loop of {row.by} ends: {text}") for text in ends[:_MOST_ROWS])
    elif not what.refusal and not what.labels:
        yield Text("nothing")
    if what.labels:
        rows = [
            (units.size(row.value.size_bytes), row.what, row.value.described, str(row.value.place))
            for row in what.labels[:_MOST_ROWS]
        ]
        yield table(("rows>", "one element a row", "access", "line"), rows)
        yield from _more(len(what.labels))
    if what.whole:
        left = [
            (
                units.size(row.value.size_bytes),
                row.value.described,
                str(row.value.place),
                "\n".join(row.reasons[:2]),
            )
            for row in what.whole[:_MOST_ROWS]
        ]
        yield table(("takes>", "left as it is", "line", "why"), left)
        yield from _more(len(what.whole))


def _chunked(row: ChunkedRow) -> Sequence[str]:
    sizes = [
        "" if size_bytes is None else units.size(size_bytes)
        for size_bytes in (row.before_bytes, row.after_bytes)
    ]
    named = row.value
    value = ("all of the step", "") if named is None else (named.described, str(named.place))
    return *sizes, *value, f"{row.cut}: {row.dimension}"


def barriers(what: BarriersView) -> Iterator[RenderableType]:
    yield heading(f"Where devices meet, in order: {pluralize(what.count, 'barrier')}")
    for each in what.order[:_MOST_PLACES]:
        details = ", ".join(filter(None, (each.groups, str(each.operation.place))))
        style = {"barrier": "bold", "around": "dim"}.get(each.kind, "")
        yield Text.assemble("  " * each.depth, (each.title, style), f"  {details}")
    yield from _more(len(what.order), _MOST_PLACES)


def _graphs(what: Graphs) -> Iterator[RenderableType]:
    yield heading("CUDA graphs")
    if what.share is None or what.thunks is None or what.graphs is None:
        yield Text("not known")
    else:
        graphs = pluralize(what.graphs, "graph")
        thunks = f"{what.captured} of {pluralize(what.thunks, 'thunk')}"
        yield Text(f"{thunks} in {graphs}, {units.percent(what.share)}")
    if what.left_out:
        rows = (
            (
                str(each.count),
                f"{each.kind} {each.operation.called}",
                str(each.operation.place),
                each.reason,
            )
            for each in what.left_out[:_MOST_ROWS]
        )
        yield table(("thunks>", "operation", "line", "why not captured"), rows)
        yield from _more(len(what.left_out))
    yield from (Text(f"Note: {note}") for note in what.notes)


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


def _more(count: int, most: int = _MOST_ROWS) -> Iterator[RenderableType]:
    if count > most:
        yield Text(f"and {count - most} more", style="dim")


def heading(title: str) -> RenderableType:
    """A line above a table."""
    return Padding(Text(title, style="bold"), (1, 0, 0, 0))


def table(columns: Iterable[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """A table without lines; ">" at the end of a column's name puts its numbers to the right.

    Names are broken behind their separators.
    """
    found = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        right = column.endswith(">")
        found.add_column(
            column.removesuffix(">"),
            justify="right" if right else "left",
            no_wrap=right,
            overflow="ellipsis" if right else "fold",
        )
    for row in rows:
        found.add_row(*(Breakable(cell) if isinstance(cell, str) else cell for cell in row))
    return found
