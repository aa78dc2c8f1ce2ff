"""Builds the section on where the time of a step goes, by XLA's text of the compiled program."""

from __future__ import annotations

from dataclasses import replace

from hloom import targets
from hloom.dumps.read.dump import ModuleDump
from hloom.passes.framework.tables import Fact, Kind, Table
from hloom.show import units
from hloom.xla.step_time import NoStepTimeError, step_time
from hloom_tools.budgets.dumped import target_of
from hloom_tools.document.content import Note, Section, table_view
from hloom_tools.document.sources import Sources

_BY_LINE = {"seconds": Kind.SECONDS, "share": Kind.SHARE, "line": Kind.CODE}
_BY_KIND = {"seconds": Kind.SECONDS, "share": Kind.SHARE, "kernels": Kind.TEXT}


def seconds_section(dump: ModuleDump, sources: Sources) -> Section | None:
    """Returns the section; None where the dump lacks XLA's text, and where no seconds are known of
    the program or its device."""
    text, target = dump.text("xla/optimized_hlo.txt"), target_of(dump)
    if text is None or target is None:
        return None
    if target.name in targets.names():  # a dump has no compute capability
        known = targets.load(target.name)
        target = replace(target, compute_capability=known.compute_capability)
    try:
        found = step_time(text, target)
    except NoStepTimeError:
        return None
    whole_s = found.seconds or 1.0
    facts = [
        Fact("kernels", found.launches),
        Fact("between iterations of loops", found.loops_s, Kind.SECONDS),
    ]
    if found.waits_s:
        facts.append(Fact("waiting for copies to and from the host", found.waits_s, Kind.SECONDS))
    tables = (
        Table(
            "By line of the program",
            _BY_LINE,
            tuple(
                (seconds, seconds / whole_s, line.short or "no source line")
                for line, seconds in found.by_line.items()
            ),
        ),
        Table(
            "By kind of kernel",
            _BY_KIND,
            tuple((seconds, seconds / whole_s, kind) for kind, seconds in found.by_kind.items()),
        ),
    )
    summary = f"a step takes about {units.seconds(found.seconds)}, read off XLA's text"
    views = tuple(table_view(table, sources) for table in tables)
    within = units.percent(found.within)
    error = f"Of the steps that an H200 timed nine of ten were foreseen within {within}."
    return Section("Where the time goes", "time", summary, tuple(facts), views, (Note(error),))
