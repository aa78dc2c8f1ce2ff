"""Prints a table of the compiled programs of a process, on request."""

from __future__ import annotations

import atexit
import functools
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

from hloom.log.settings import has_weight
from hloom.passes.framework.text import pluralize
from hloom.record import CompileRecord, records
from hloom.show import units


def print_summary(file: TextIO | None = None) -> None:
    """Prints a table of the programs that hloom compiled: memory, attempts, time, failures.

    The table has the newest 1024 programs. Those that take less than `HLOOM_LOG_MIN_SIZE` share one
    row. `HLOOM_LOG=summary` prints it at the end of the program.

    Args:
      file: the stream to print to; stderr if None.
    """
    from rich.table import Table

    from hloom.show.terminal import PlainConsole

    found = records()
    heavy = list(filter(has_weight, found))
    light = [each for each in found if not has_weight(each)]
    console = PlainConsole(file=file or sys.stderr)
    if not found:
        console.print("hloom: no program was compiled with passes.")
        return
    table = Table(title="hloom", title_justify="left", box=None, pad_edge=False)
    table.add_column("program", overflow="fold", min_width=16)
    for name in ("temporaries", "compiles", "passes", "XLA"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for each in heavy:
        table.add_row(each.module, _memory(each), *_effort([each]), _remark(each))
    if light:
        table.add_row(pluralize(len(light), "smaller program"), "", *_effort(light), "")
    if len(found) > 1:
        table.add_row("in all", "", *_effort(found), "")
    console.print(table)


@functools.cache
def print_at_exit() -> None:
    """Registers the table to be printed at the end of the program."""
    atexit.register(_print_quietly)


def _print_quietly() -> None:
    with suppress(OSError, ValueError):
        print_summary()


def _memory(record: CompileRecord) -> str:
    if record.temp_bytes is None:
        return "not known"
    if not record.changed or record.temp_bytes_before is None:
        return units.size(record.temp_bytes)
    about = "" if record.before_is_measured else "about "
    return f"{about}{units.sizes(record.temp_bytes_before, record.temp_bytes)}"


def _effort(of: Sequence[CompileRecord]) -> tuple[str, str, str]:
    return (
        str(sum(each.compiles for each in of)),
        units.seconds(sum(each.pass_s for each in of)),
        units.seconds(sum(each.compile_s for each in of)),
    )


def _remark(record: CompileRecord) -> str:
    if record.fell_back:
        return f"as it was: {record.fell_back}"
    if record.shortfall:
        return record.shortfall.replace("the budget does not hold", "budget not held")
    return "" if record.changed else "unchanged"
