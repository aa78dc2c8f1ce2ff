"""The size of hloom: lines by package, the names that cross borders, and the tuned numbers.

    python -m benchmarks.house            (some seconds)
    python -m benchmarks.house --before   (what was counted last becomes the column "before")

Lines are those of Python files, docstrings and blank lines included. Writes
benchmarks/results/house.json and house.md; tests/house/test_size.py holds the limits.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from typing import Any

from benchmarks.ablation.numbers import ROOT, tuned
from benchmarks.common.imports import (
    MODULES,
    SATELLITES,
    core,
    holding,
    imported,
    package_of,
    passes_apart,
)
from benchmarks.common.measure import Columns, code, section, text
from benchmarks.common.tables import RESULTS, as_json, heading

Counts = dict[str, int]
"""The size of each part, by what the part is called in the table."""


def counted() -> Counts:
    """Counts the checkout that this file is in."""
    inside, apart = core(), passes_apart()
    plugin = {module for module in MODULES if package_of(module) not in SATELLITES}
    alone = set[str]().union(*apart.values())
    return {
        "plugin: `hloom`, `passes`, `lowering`, `runtime`": _lines_of(plugin),
        "plugin, the core: what a jit with `fit` or `remat` imports": _lines_of(inside),
        "plugin, passes apart from the core": _lines_of(alone),
        "plugin, modules that only these passes, the other packages or users import": _lines_of(
            plugin - inside - alone
        ),
        **{f"`{name}`": _lines_of(m for m in MODULES if package_of(m) == name) for name in _ABOVE},
        **{f"`{name}/`": _lines((ROOT / name).rglob("*.py")) for name in ("tests", "benchmarks")},
        "`lit_tests/`": _lines((ROOT / "lit_tests").rglob("*.mlir")),
        "C++ and CUDA in `runtime/`": sum(
            _lines((ROOT / "runtime").rglob(f"*.{end}")) for end in ("cc", "h", "cu", "cuh")
        ),
        "names in `hloom/api.py`": len(_names_that_cross()),
        "tuned numbers": sum(each.count for each in tuned()),
    }


_ABOVE = sorted(SATELLITES)


def _lines_of(modules: Iterable[str]) -> int:
    return _lines(MODULES[module] for module in modules)


def _lines(files: Iterable[Path]) -> int:
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def _names_that_cross() -> list[str]:
    tree = ast.parse((ROOT / "hloom" / "api.py").read_text(encoding="utf-8"))
    [table] = [node.value for node in tree.body if isinstance(node, ast.AnnAssign)]
    assert table is not None
    listed: dict[str, str] = ast.literal_eval(table)
    return [f"{module}.{name}" for module, names in listed.items() for name in names.split()]


def main() -> None:
    """Writes both files, and prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house")
    parser.add_argument("--before", action="store_true", help="keep the last count for comparison")
    file = RESULTS / "house.json"
    report = json.loads(file.read_text("utf-8")) if file.exists() else {}
    now = counted()
    if parser.parse_args().before:
        report["before"] = report.get("now", now)
    report |= {"now": now, "apart": passes()}
    file.write_text(as_json(report), encoding="utf-8")
    page = "\n".join([*markdown(report), ""])
    file.with_suffix(".md").write_text(page, encoding="utf-8")
    print(page)


def markdown(report: dict[str, Any]) -> Iterator[str]:
    """The tables of the file."""
    yield from heading(
        "The size of hloom",
        "house",
        "Lines of Python unless the row says otherwise, with docstrings and blank lines. The core "
        "is what `hloom`, `hloom.plugin`, `fit` and `remat` import, directly or through others: "
        "nothing in it imports a pass of the second table, whose last column is what "
        "`hloom/api.py` would grow by if the pass moved out of the plugin.",
    )
    before = report.get("before", {})
    columns: Columns = {"part": text("part"), "before": text("before"), "now": text("now")}
    rows = [
        {"part": part, "before": before.get(part, ""), "now": count}
        for part, count in report["now"].items()
    ]
    yield from section("## Parts", columns, rows)
    alone: Columns = {
        "pass": code("room"),
        "lines": text("lines"),
        "names of the plugin that it imports": text("taken"),
        "of these not in `hloom/api.py`": text("new"),
    }
    yield from section("## Passes apart from the core", alone, report["apart"])


def passes() -> list[dict[str, str | int]]:
    """Returns a row for each pass that stands apart from the core."""
    known = set(_names_that_cross())
    return [
        {
            "room": room,
            "lines": _lines_of(modules),
            "taken": len(taken := _names_taken(modules)),
            "new": len(taken - known),
        }
        for room, modules in passes_apart().items()
    ]


def _names_taken(modules: Set[str]) -> set[str]:
    found = set().union(*(imported(MODULES[module]) for module in modules))
    return {name for name in found if package_of(name) and holding(name) not in modules}


if __name__ == "__main__":
    main()
