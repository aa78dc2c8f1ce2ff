"""What the log says of memory before and after, beside XLA's figures with hloom off and on.

    python -m benchmarks.log_figures [PATTERN ...]     (a CPU, a quarter of an hour on two cores)

PATTERN names programs, as a shell has it; by default all. A program whose package is not there is
skipped, and said to be. Those that the extra test does not bring:

    pip install --no-deps brax distrax dm-tree 'flowjax<20' jaxopt jraph ml_collections \\
        'mujoco<3.4' 'mujoco-mjx<3.4' numpyro paramax penzai rlax tfp-nightly \\
        transformers==4.50.0 trimesh

and what an ImportError asks for beyond that.

Writes benchmarks/results/log_figures.json, which keeps one entry for each version of JAX it was run
with, and log_figures.md, the same as tables. Ends with status 1 where a line is not true: a figure
that is not about is XLA's, and one that is about is right within a third.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from importlib.metadata import version
from typing import Any

import jax

import hloom
from benchmarks.common.tables import RESULTS, Report, heading, table, update_report
from benchmarks.log_figures.common import Program
from benchmarks.log_figures.programs import PROGRAMS
from hloom.show.units import sizes

SPECS = (
    "default",
    "fit{budget=60%}",
    "remat{budget=60%}",
    "accumulate{microbatches=4}",
    "chunk{min_bytes=256KiB}",
)

_CHECKOUT = f"{RESULTS.resolve().parents[1]}{os.sep}"
"""What the lines' files begin with, here and nowhere else."""

WITHIN = 1 / 3
"""What "about" promises."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures with the JAX that runs this, and writes both files; 1 where a line is not true."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.log_figures")
    parser.add_argument("patterns", nargs="*", default=["*"], help="of names of programs")
    patterns = parser.parse_args(arguments).patterns
    os.environ["HLOOM_LOG"] = "off"
    warnings.simplefilter("ignore", hloom.HloomWarning)  # that a budget does not hold
    rows, skipped = [], []
    for name, (package, make) in PROGRAMS.items():
        if not any(fnmatchcase(name, pattern) for pattern in patterns):
            continue
        try:
            program = make()
        except ImportError as error:
            print(f"SKIPPED: {name}: {error}", file=sys.stderr, flush=True)
            skipped.append(name)
            continue
        title = f"{name} ({package} {version(package)})"
        for row in measured(program):
            rows.append({"program": title} | row)
            print(rows[-1], flush=True)
        jax.clear_caches()
    entry = {
        "hloom": hloom.__version__,
        "python": platform.python_version(),
        "skipped": skipped,
        "rows": rows,
    }
    print(update_report("log_figures", entry, markdown))
    return int(not all(map(is_true, rows)))


def measured(program: Program, specs: Sequence[str] = SPECS) -> Iterator[dict[str, Any]]:
    """What is told of a program under each spec, and XLA's figures: bytes of temporaries."""
    step, shapes = program
    off = _temp_bytes(step, shapes, "off")
    for spec in specs:
        on = _temp_bytes(step, shapes, spec)
        record = hloom.records()[-1]
        yield {
            "spec": spec,
            "line": record.headline.replace(_CHECKOUT, ""),
            "changed": record.changed,
            "told_before": record.temp_bytes_before,
            "told_after": record.temp_bytes,
            "about": not record.before_is_measured,
            "off": off,
            "on": on,
        }


def is_true(row: dict[str, Any]) -> bool:
    """Whether what is told is XLA's figure, or about that where it says so."""
    before, off = row["told_before"], row["off"]
    if row["told_after"] != row["on"]:
        return False
    if before is None or not row["about"]:
        return before in (None, off)
    return abs(before - off) <= WITHIN * off


def _temp_bytes(step: Any, shapes: Any, spec: str) -> int:
    compiled = jax.jit(step).lower(*shapes).compile(compiler_options={"hloom": spec})
    memory: Any = compiled.memory_analysis()
    return int(memory.temp_size_in_bytes)


def markdown(report: Report) -> Iterator[str]:
    """The results as tables."""
    yield from heading("What the log says of memory", "log_figures", _WHAT_IT_IS)
    for jax_version, entry in report.items():
        yield ""
        yield f"## jax {jax_version}, Python {entry['python']}"
        yield ""
        yield _in_all(entry["rows"])
        if entry["skipped"]:
            yield f"Skipped for want of a package: {', '.join(entry['skipped'])}."
        yield ""
        changed = [row for row in entry["rows"] if row["changed"]]
        yield from table(_COLUMNS, map(_cells, changed), names=3)


_WHAT_IT_IS = """\
Training steps of packages that are not hloom's, compiled for a CPU with hloom off and with five
specs. The tables have the programs that hloom changed; of the others the line has one figure, and
that is XLA's. "The line" is what hloom says of temporaries; "XLA" is its own memory analysis of the
program without hloom and of what runs; "off by" is by how much the line's figure before differs
from XLA's, empty where it has none: nobody compiled the program as it is, and hloom's model is not
trusted."""

_COLUMNS = ("program", "spec", "the line", "XLA, off → on", "off by")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    before, off = row["told_before"], row["off"]
    error = 0.0 if before is None else (before - off) / off
    return (
        row["program"],
        f"`{row['spec']}`",
        _line(row),
        sizes(off, row["on"]),
        "" if before is None else f"{error:+.0%}" if error else "0",
    )


def _line(row: dict[str, Any]) -> str:
    """What is said of memory, and the first thing that was done."""
    return ", ".join(row["line"].partition(": ")[2].split(", ")[:2])


def _in_all(rows: Sequence[dict[str, Any]]) -> str:
    kinds = Counter(_kind(row) for row in rows)
    worst = max(
        (abs(r["told_before"] / r["off"] - 1) for r in rows if _kind(r) == "about"), default=0
    )
    return (
        f"{len(rows)} lines, {sum(map(is_true, rows))} of them true: {kinds['unchanged']} of "
        f"programs that stay as they are, {kinds['measured']} with XLA's figure before, "
        f"{kinds['about']} with about, off by {worst:.0%} at most, {kinds['none']} without a "
        "figure before."
    )


def _kind(row: dict[str, Any]) -> str:
    if not row["changed"]:
        return "unchanged"
    if row["told_before"] is None:
        return "none"
    return "about" if row["about"] else "measured"


if __name__ == "__main__":
    sys.exit(main())
