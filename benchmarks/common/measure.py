"""The frame of a benchmark whose results are committed: entries by version of JAX, and tables.

A benchmark states a `Benchmark`, measures rows, and calls `write` with them, once or after each row
so that nothing measured is lost. Its tables are made of the JSON alone: a column is a title and a
function from a row to a cell, such as `mebi("temp_bytes")`.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

import hloom
from benchmarks.common.tables import RESULTS, Report, heading, table, update_report
from hloom.passes.framework.feedback import record_in
from hloom.passes.framework.registry import all_passes
from hloom.passes.framework.tables import rows_of
from hloom.passes.planner.record import RematRecord

Row = Mapping[str, Any]
Cell = Callable[[Any], str]
Key = str | tuple[str | int, ...]
"""Of a value in a row, or the way to one that is deeper in it."""

Columns = Mapping[str, Cell]
"""By title, what stands in the column."""


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """Results that are committed as NAME.json and, as tables, NAME.md.

    Attributes:
      name: of the files.
      module: what follows `python -m benchmarks.`.
      title: of the tables.
      text: what they tell.
      tables: the lines for the entry of one version of JAX, which is given first.
    """

    name: str
    module: str
    title: str
    text: str
    tables: Callable[[str, dict[str, Any]], Iterable[str]]

    def before(self, results: Path = RESULTS) -> dict[str, Any]:
        """What was measured before with the JAX that runs this; empty where nothing."""
        file = results / f"{self.name}.json"
        report: Report = json.loads(file.read_text("utf-8")) if file.exists() else {}
        entry: dict[str, Any] = report.get(jax.__version__, {})
        return entry

    def write(self, results: Path = RESULTS, /, **entry: Any) -> str:
        """Writes the entry of the JAX that runs this, and the tables, which it returns."""
        about = {"hloom": hloom.__version__, "python": platform.python_version()}
        return update_report(self.name, about | entry, self.markdown, results)

    def markdown(self, report: Report) -> Iterator[str]:
        """The tables of every version of JAX."""
        yield from heading(self.title, self.module, self.text)
        for version, entry in report.items():
            yield from self.tables(version, entry)


def section(title: str, columns: Columns, rows: Iterable[Any], *, names: int = 1) -> Iterator[str]:
    """A table under its title, or without one where that is empty."""
    if title:
        yield from ("", title)
    yield ""
    yield from table_of(columns, rows, names=names)


def table_of(columns: Columns, rows: Iterable[Any], *, names: int = 1) -> list[str]:
    """A table of rows; its first ``names`` columns are text."""
    return table(
        list(columns), ([cell(row) for cell in columns.values()] for row in rows), names=names
    )


def text(key: Key) -> Cell:
    """A value as it is."""
    return lambda row: str(_value(row, key))


def code(key: Key) -> Cell:
    """A value as code, such as a spec."""
    return lambda row: f"`{_value(row, key)}`"


def figure(key: Key, form: str, times: float = 1) -> Cell:
    """A number, formatted; nothing where it is None."""

    def cell(row: Any) -> str:
        value = _value(row, key)
        return "" if value is None else format(value * times, form)

    return cell


def mebi(key: Key, digits: int = 0) -> Cell:
    """A number of bytes in MiB."""
    return figure(key, f".{digits}f", 2**-20)


def count(*keys: str) -> Cell:
    """A number that is 0 where there is none."""
    return lambda row: str(_value(row, keys[:-1]).get(keys[-1], 0))


def _value(row: Any, key: Key) -> Any:
    for each in (key,) if isinstance(key, str) else key:
        row = row[each]
    return row


def titled(found: Mapping[str, Row], key: str = "title") -> Iterator[dict[str, Any]]:
    """Rows of what is kept by name, each with its name."""
    return ({key: name} | dict(row) for name, row in found.items())


def cpu_seconds() -> float:
    """CPU time of this process and of what it started, such as ptxas."""
    return sum(os.times()[:4])


def tree_bytes(tree: Any) -> int:
    """The bytes of all arrays of a tree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def without_cache() -> None:
    """Every compile is done anew, also one that JAX has on disk."""
    jax.config.update("jax_enable_compilation_cache", False)


def import_planning() -> None:
    """Imports what plans import when they first need it: the passes, and of SciPy what cuts take.

    Without this a process's first plan takes as long again as a small plan, so that a program's
    figure would depend on its place among others.
    """
    all_passes()
    for name in ("scipy.optimize", "scipy.sparse.csgraph"):
        importlib.import_module(name)


def moves_of(plan: Mapping[str, Any]) -> list[str]:
    """What a plan for a budget, as a record has it, is made of; empty of any other."""
    return [str(row["move"]) for row in rows_of(plan, "What was done, and what it costs")]


def added_s_of(plan: Mapping[str, Any]) -> float | None:
    """The seconds that a plan for a budget adds, as they count in prices; None of any other."""
    estimate = record_in(plan, RematRecord).estimate if "record" in plan else None
    return None if estimate is None else estimate.seconds
