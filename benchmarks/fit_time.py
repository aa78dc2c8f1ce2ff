"""What `fit` makes of a step that fits as it is: the seconds that XLA's text tells, off and on.

    python -m benchmarks.fit_time [--target h200] [PROGRAM ...]  (half an hour for all; no GPU)

Each program of `benchmarks.frontier` is compiled for a device without it, off and under `fit`,
which has all of the device's memory. For an A100, whose kernels were not timed, kernels are taken
to reach the shares of its rates that those of an H200 reach; `fit` itself has no seconds there, and
compiles once. Nothing was timed: `benchmarks/results/time_error.md` has how
far such seconds were from those that a device took. Rows of other programs stay, as long as the
shares that kernels reach are those of now.

Writes benchmarks/results/fit_time.json and fit_time.md.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import hloom
from benchmarks.common.measure import Benchmark, Columns, figure, mebi, section, text, without_cache
from benchmarks.common.subjects import HARD_SUBJECTS, SUBJECTS
from hloom import targets
from hloom._jax.executables import memory_figures
from hloom.targets import deviceless
from hloom.xla.step_time import REACHED, step_time

PROGRAMS = SUBJECTS | HARD_SUBJECTS
TARGETS = ("h200", "h100_sxm", "a100_sxm_80")

NOW = f"{zlib.crc32(repr(REACHED[9, 0]).encode()):08x}"
"""Tells whether the seconds of a row are those that the code of now reads."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Compiles with the JAX that runs this, and writes the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fit_time")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="all where none is named")
    parser.add_argument("--target", choices=TARGETS, default=TARGETS[0])
    chosen = parser.parse_args(arguments)
    deviceless.prepare()
    without_cache()
    for program in chosen.programs or PROGRAMS:
        before = BENCHMARK.before().get("devices", {})
        rows = {
            target: {
                row["program"]: row for row in before.get(target, ()) if row.get("reached") == NOW
            }
            for target in TARGETS
        }
        rows[chosen.target][program] = measured(program, chosen.target)
        in_order = {
            target: [found[each] for each in PROGRAMS if each in found]
            for target, found in rows.items()
            if found
        }
        print(BENCHMARK.write(devices=in_order))


def measured(program: str, target: str) -> dict[str, Any]:
    """The row of a program on a target."""
    lowered = PROGRAMS[program].lower(None, deviceless.placement(target))
    off = lowered.compile(compiler_options={"hloom": "off"})
    off_s = _seconds(off, target)
    on = lowered.compile(compiler_options={"hloom": "fit"})
    record = hloom.records()[-1]
    on_s = _seconds(on, target)
    return {
        "program": program,
        "off_s": off_s,
        "fit_s": on_s,
        "ratio": on_s / off_s,
        "off_bytes": memory_figures(off.runtime_executable()).temp_bytes,
        "fit_bytes": memory_figures(on.runtime_executable()).temp_bytes,
        "compiles": len(record.attempts),
        "reached": NOW,
    }


def _seconds(executable: Any, target: str) -> float:
    return step_time(executable.as_text(), targets.load(target), REACHED[9, 0]).seconds


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    for device, rows in entry["devices"].items():
        yield from ("", f"## {device}, jax {version}")
        yield from section("", COLUMNS, rows)


COLUMNS: Columns = {
    "program": text("program"),
    "off, ms": figure("off_s", ".2f", 1e3),
    "`fit`, ms": figure("fit_s", ".2f", 1e3),
    "of the step as it is": figure("ratio", ".3f"),
    "temporaries off, MiB": mebi("off_bytes"),
    "`fit`, MiB": mebi("fit_bytes"),
    "compiles": text("compiles"),
}

BENCHMARK = Benchmark(
    "fit_time",
    "fit_time",
    "What `fit` makes of a step that fits as it is",
    "Seconds of a step, foreseen from XLA's text of programs that were compiled for a device "
    "without it: nothing here was timed. `time_error.md` compares such seconds with those that an "
    "H200 took. An A100's are with the shares that an H200's kernels reach of its rates: how far "
    "they are off is not known, and `fit` does not use them. Programs that are not here were not "
    "compiled since those shares were fitted anew.",
    _tables,
)

if __name__ == "__main__":
    main()
