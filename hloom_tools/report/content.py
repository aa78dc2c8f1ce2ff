"""Fills the document of a report: a section for each module, with its parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from hloom.dumps.read.dump import Missing
from hloom.passes.framework.tables import Kind
from hloom.passes.framework.text import pluralize
from hloom.show import units
from hloom_tools.document.content import (
    Document,
    Entry,
    Headline,
    Note,
    PageLink,
    RowView,
    Section,
    Strip,
    TableView,
    Value,
    rows_of,
    table_of,
)
from hloom_tools.report.folder import File, Notice, Times
from hloom_tools.report.gather import ModuleReport, Report
from hloom_tools.report.memory import MemoryView, PeakOwners
from hloom_tools.report.plots import figures_of
from hloom_tools.report.totals import Total

_MODULES = (
    ("module", Kind.TEXT),
    ("memory of a step", Kind.BYTES),
    ("by the passes", Kind.CHANGE),
    ("compile", Kind.SECONDS),
    ("passes", Kind.CODE),
)
_BARS = (
    ("", Kind.TEXT),
    ("step", Kind.BYTES),
    ("arguments", Kind.BYTES),
    ("results", Kind.BYTES),
    ("temporaries", Kind.BYTES),
)
_OWNERS = (("bytes", Kind.BYTES), ("of the peak", Kind.SHARE), ("value", Kind.VALUE))
_PASSES = (("pass", Kind.CODE), ("what it did", Kind.TEXT), ("time", Kind.SECONDS))
_FILES = (("file", Kind.TEXT), ("the program", Kind.TEXT), ("size", Kind.BYTES))
_ARRAYS = (("name", Kind.CODE), ("type", Kind.CODE), ("sharding", Kind.CODE), ("", Kind.TEXT))

_PHASES = ("plan", "apply", "verify")


def document_of(report: Report) -> Document:
    """Returns the document of a dump: the large modules in full, the others in a row each."""
    large = [module for module in report.modules if module.in_full]
    small = [module for module in report.modules if not module.in_full]
    sections: list[Section] = []
    if report.missing:
        notes = tuple(missing_notes(report.missing))
        sections.append(Section("Missing from this dump", "missing-of-all", notes=notes))
    if len(large) > 1:
        text = "The largest first, by the memory that they take of a device."
        rows = [_overview(module, PageLink(module.name, f"#{module.anchor}")) for module in large]
        table = table_of("The modules", _MODULES, rows, text=text, most=12)
        sections.append(Section("The modules", "overview", tables=(table,)))
    sections += map(_module, large)
    if small:
        text = (
            "They take little memory and no pass changed them, or many others take more. "
            "`hloom report` on the folder of one tells all of it"
        )
        rows = [_overview(module, module.name) for module in small]
        listed = tuple(
            replace(row, anchor=module.anchor)
            for row, module in zip(rows_of(_MODULES, rows), small, strict=True)
        )
        table = TableView("Smaller modules", "", _MODULES, listed)
        title = pluralize(len(small), "smaller module")
        sections.append(Section(title, "others", text, tables=(table,)))
    # With a single program the title names it, not the dump.
    alone = len(report.modules) == 1
    title = report.modules[0].name if alone else report.title
    return Document(title, tuple(sections), tuple(_facts(report, len(small), alone=alone)))


def _facts(report: Report, small: int, *, alone: bool) -> Iterator[tuple[str, Entry]]:
    if alone:
        yield "dump of", units.lower_first(report.title)
    if report.started:
        yield "started", moment(report.started)
    if len(report.processes) > 1:
        yield "processes", ranges(report.processes)
    if len(report.modules) > 1:
        yield "modules", str(len(report.modules))
        if small:
            yield "and", PageLink(f"of them {small} small", "#others")
    if report.command:
        yield "command", report.command
    yield "dump", str(report.path)


def _overview(module: ModuleReport, name: Entry) -> tuple[Value, ...]:
    told = [f"{each.title}: {each.text}" for each in module.notices if not module.in_full]
    told += [pluralize(len(module.notices), "notice")] * bool(module.notices and module.in_full)
    told += [f"{pluralize(len(module.missing), 'thing')} missing"] * bool(module.missing)
    told += [*on_processes(module.processes), *[module.folder.name][: not module.in_full]]
    return (
        (name, *told),
        module.step_bytes or "not known",
        change(module.memory.ends),
        module.times.compile_s,
        module.spec,
    )


def _module(module: ModuleReport) -> Section:
    passes = "passes not known" if module.spec is None else module.spec or "hloom off"
    same = [f"the same on {each}" for each in on_processes(module.processes)]
    parts = [
        _memory(module),
        _curves(module),
        _owners(module.memory),
        *module.sections,
        module.frontier,
        _times(module.times) if module.times.known else None,
        _missing(module.missing),
        _next(module),
        _files(module),
    ]
    return Section(
        module.name,
        module.anchor,
        " · ".join(filter(None, (passes, module.device, *same))),
        notes=tuple(map(notice_note, module.notices)),
        parts=tuple(part for part in parts if part is not None),
    )


def _memory(module: ModuleReport) -> Section:
    memory = module.memory
    title = "Memory of a step"
    if not memory.bars:
        note = Note("Nothing is known of the memory that it takes")
        return Section(title, "memory", notes=(note,), quiet=True, pointer="Memory")
    tables = [_bars(memory)]
    if memory.arguments:
        whole_bytes = sum(total.size_bytes for total in memory.arguments)
        heading, columns = f"Arguments: {units.size(whole_bytes)}", ("the arguments", "array")
        tables.append(_totals(memory.arguments, whole_bytes, heading, *columns, folded=True))
    return Section(
        title,
        "memory",
        tables=tuple(tables),
        headlines=tuple(_headlines(module)),
        quiet=True,
        pointer="Memory",
    )


def _headlines(module: ModuleReport) -> Iterator[Headline]:
    memory, cost, times = module.memory, module.cost, module.times
    by = "XLA's own count" if memory.xla else "hloom's model"
    remarks = []
    if memory.ends and (changed := units.change(*memory.ends)):
        before, after = map(units.size, memory.ends)
        model = "" if memory.xla_before is not None or not memory.xla else " by hloom's model"
        remarks.append(Note(f"{before} → {after}{model} by the passes, {changed}"))
    if memory.xla is not None and memory.xla_before is not None:
        # The log and a share as a budget are of these.
        both = memory.xla_before.temp_bytes, memory.xla.temp_bytes
        if saved := units.change(*both):
            remarks.append(Note(f"of it temporaries: {units.sizes(*both)}, {saved}", tone="dim"))
    if (bound := memory.bound) is not None:
        holds = None if memory.xla is None else bound.holds(memory.xla)
        if memory.xla is None or holds is None:
            remarks.append(Note(f"budget: {bound.described}", tone="plain"))
        else:
            verdict = "✓ holds" if holds else "✗ over"
            tone = "ok" if holds else "error"
            remarks.append(Note(f"{verdict} the budget of {bound.text}", tone=tone))
            remarks.append(Note(bound.measured(memory.xla), tone="dim"))
    label = f"memory of a step, by {by}"
    yield Headline(label, units.size(module.step_bytes), tuple(remarks))
    if cost is not None and cost.figure:
        yield Headline("added to a step", cost.figure, (Note(cost.remark),))
    if cost is not None and (cost.effects or cost.changed):
        done = [Note(effect) for effect in cost.effects]
        if times.compile_s is not None:
            text = f"{pluralize(times.compiles, 'compile')} in {units.seconds(times.compile_s)}"
            text += "" if times.pass_s is None else f", passes {units.seconds(times.pass_s)}"
            done.append(Note(text, tone="dim"))
        yield Headline("what was done", "", tuple(done))


def _bars(memory: MemoryView) -> TableView:
    """Returns the table of a step's bytes, with bars up to the largest step, or to the budget."""
    edge = max(figures.step_bytes for _, _, figures in memory.bars if figures is not None) or 1
    bound = memory.bound
    limit = None if bound is None or bound.of_temp or not bound.bytes else bound.bytes
    limit = None if limit is None or limit > 2 * edge else limit
    edge = max(edge, limit or 0)
    rows: list[RowView] = []
    for when, by, figures in memory.bars:
        name = f"{when}, by {by}"
        if figures is None:
            rows += rows_of(_BARS, [(name, "not compiled", None, None, None)])
            continue
        sizes = (figures.argument_bytes, figures.output_bytes, figures.temp_bytes)
        color = "before" if when == "before" else "after"
        parts = {f"{color} {kind}": each for kind, each in zip(_KINDS, sizes, strict=True)}
        strip = Strip.stacked(parts, edge, units.percent(figures.step_bytes / edge), limit)
        [row] = rows_of(_BARS, [(name, figures.step_bytes, *sizes)])
        rows.append(replace(row, strip=strip))
    key = [(f"after {kind}", text) for kind, text in _KINDS.items()]
    key += [("bound", "budget")] * (limit is not None)
    title = "Memory of a step"
    return TableView(title, "", _BARS, tuple(rows), most=0, strip="of the largest", key=tuple(key))


_KINDS = {"given": "arguments", "returned": "results", "temporary": "temporaries"}


def _curves(module: ModuleReport) -> Section | None:
    figures = tuple(figures_of(module.memory)) if module.in_full else ()
    if not figures:
        return None
    title, pointer = "Memory over the program", "Over the program"
    return Section(title, "curve", figures=figures, pointer=pointer, page_only=True)


def _owners(memory: MemoryView) -> Section | None:
    if not memory.owners:
        return None
    first = memory.owners[0]
    tables = []
    if len(first.totals) > 1:
        title = f"{first.title}, by layer: {units.size(first.peak_bytes)}"
        tables.append(_totals(first.totals, first.peak_bytes, title, "the peak", "value"))
    listed = [owners for owners in memory.owners if owners.rows]
    tables += [_owners_table(each, folded=number > 0) for number, each in enumerate(listed)]
    text = (
        "The largest values that are alive when most memory is in use: to need less, make these "
        "smaller, shard them, or end them sooner"
    )
    title, pointer = "Whose the peak is", "The peak's owners"
    return Section(title, "owners", text, tables=tuple(tables), pointer=pointer)


def _owners_table(owners: PeakOwners, *, folded: bool) -> TableView:
    values = []
    for row in owners.rows:
        each = f"{units.size(row.value.size_bytes)} each" if row.count > 1 else ""
        note = ", ".join(filter(None, (each, row.note)))
        values.append(replace(row.value, times=row.count, note=note))
    cells = [
        (row.size_bytes, row.size_bytes / owners.peak_bytes, value)
        for row, value in zip(owners.rows, values, strict=True)
    ]
    when = "before" if owners.is_before else "after"
    rows = tuple(
        replace(
            cell,
            continues=row.continues,
            strip=Strip(
                ((f"{when} temporary", row.start, row.end - row.start),),
                f"from {units.percent(row.start)} to {units.percent(row.end)} of the program",
                owners.peak_at,
            ),
        )
        for cell, row in zip(rows_of(_OWNERS, cells), owners.rows, strict=True)
    )
    others = ""
    if owners.others:
        smaller = pluralize(owners.others, "smaller value")
        others = f"Besides these {smaller}, {units.size(owners.others_bytes)} together."
    title = f"{owners.title}: {units.size(owners.peak_bytes)}"
    looks = {"folded": folded, "page_only": folded, "strip": "alive, from start to end"}
    return TableView(title, others, _OWNERS, rows, **looks)  # type: ignore[arg-type]


def _totals(
    totals: Sequence[Total], whole_bytes: int, title: str, whole: str, noun: str, **looks: Any
) -> TableView:
    columns = (
        ("bytes", Kind.BYTES),
        (f"of {whole}", Kind.SHARE),
        ("what", Kind.CODE),
        (f"{noun}s", Kind.COUNT),
    )
    rows = [
        (row.size_bytes, row.size_bytes / whole_bytes if whole_bytes else None, row.name, row.count)
        for row in totals
    ]
    return table_of(title, columns, rows, **looks)


def _times(times: Times) -> Section:
    text = [] if times.pass_s is None else [f"{units.seconds(times.pass_s)} in hloom's passes"]
    cells: list[tuple[Value, ...]] = [(run.spec, run.summary, run.seconds) for run in times.passes]
    if times.compile_s is not None:
        where = "JAX's persistent cache, which had it" if times.cache_hit else "XLA"
        text.append(f"{units.seconds(times.compile_s)} in {where}")
        did = "loaded from JAX's persistent cache" if times.cache_hit else "compiled"
        did += f", {times.compiles} times" if times.compiles > 1 else ""
        cells.append(("XLA", did, times.compile_s))
    if times.compiles > 1:
        text.append(f"over {times.compiles} compiles; the passes' own times are of the last")
    longest = max((run.seconds for run in times.passes), default=0) or 1
    rows = list(rows_of(_PASSES, cells))
    for number, run in enumerate(times.passes):
        parts = {phase: getattr(run, f"{phase}_s") for phase in _PHASES}
        told = ", ".join(f"{phase} {units.seconds(part)}" for phase, part in parts.items())
        strip = Strip.stacked(parts, longest, told)
        rows[number] = replace(rows[number], idle=run.empty, strip=strip)
    title = "Passes and compile"
    key = tuple((phase, phase) for phase in _PHASES)
    heading = ", ".join(_PHASES)
    table = TableView(title, "", _PASSES, tuple(rows), most=0, strip=heading, key=key)
    return Section(title, "times", ", ".join(text), tables=(table,))


def _missing(missing: Sequence[Missing]) -> Section | None:
    if not missing:
        return None
    pointer = f"Missing ({len(missing)})"
    notes = tuple(missing_notes(missing, places=False))
    return Section("What is missing", "missing", notes=notes, pointer=pointer)


def _next(module: ModuleReport) -> Section:
    notes = [Note(what, code=command) for what, command in module.commands]
    notes = notes or [
        Note("The program as JAX handed it over is not in this dump, so it cannot run again")
    ]
    return Section("Replay and bisect", "next", notes=tuple(notes))


def _files(module: ModuleReport) -> Section:
    tables = []
    if module.states:
        tables.append(_file_table("States", module.states))
    if module.files:
        title = f"{pluralize(len(module.files), 'other file')}: plans, XLA's side"
        tables.append(_file_table(title, module.files, folded=True))
    for noun, arrays in (("argument", module.arguments), ("result", module.results)):
        if arrays:
            rows = [
                (each["name"], each["type"], each["sharding"], "donated" if each["donated"] else "")
                for each in arrays
            ]
            title = pluralize(len(arrays), noun)
            tables.append(table_of(title, _ARRAYS, rows, most=200, folded=True))
    for title, facts in module.facts:
        columns = (("", Kind.CODE), ("value", Kind.CODE))
        tables.append(table_of(title, columns, facts, most=0, folded=True))
    title = "States and files"
    return Section(title, "states", tables=tuple(tables), pointer="Files", page_only=True)


def _file_table(title: str, files: Sequence[File], **looks: Any) -> TableView:
    rows = [(PageLink(each.name, each.path), each.label, each.size_bytes) for each in files]
    return table_of(title, _FILES, rows, most=0, **looks)


def missing_notes(missing: Iterable[Missing], *, places: bool = True) -> Iterator[Note]:
    """Yields what a dump lacks as notes."""
    for each in missing:
        where = f" in {each.where}" if each.where and places else ""
        yield Note(each.why, f"{each.what}{where}", remedy=each.remedy)


def notice_note(notice: Notice) -> Note:
    """Returns a notice as a note."""
    return Note(notice.text, notice.title, notice.severity)


def change(ends: tuple[int, int] | None) -> float | None:
    """Returns a change of bytes as a share; None where it is unknown or none."""
    return None if ends is None or not units.change(*ends) else ends[1] / ends[0] - 1


def on_processes(processes: Sequence[int]) -> list[str]:
    """Returns "processes 0-3", where a module ran on several."""
    return [f"processes {ranges(processes)}"] * (len(processes) > 1)


def ranges(numbers: Sequence[int]) -> str:
    """Formats number ranges, "0-7, 9" for 0 to 7 and 9."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def moment(text: str) -> str:
    """Formats an ISO time for reading; any other text is returned unchanged."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{found.day} {found:%B %Y, %H:%M:%S %Z}".strip()
