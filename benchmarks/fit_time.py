"""What `fit` makes of a step that fits as it is: the seconds that XLA's text tells, off and on.

    python -m benchmarks.fit_time [--target h200] [PROGRAM ...]  (half an hour for all; no GPU)
    python -m benchmarks.fit_time --kept  (those of all targets whose texts are kept)

Each program of `benchmarks.frontier` is compiled for a device without it, off and under `fit`,
which has all of the device's memory. For an A100, whose kernels were not timed, kernels are taken
to reach the shares of its rates that those of an H200 reach; `fit` itself has no seconds there, and
compiles once. Nothing was timed: `benchmarks/results/time_error.md` has how
far such seconds were from those that a device took. XLA's texts are kept in build/fit_time, and
read again by `--kept` where the shares that kernels reach were fitted anew; rows of programs whose
texts are not there stay, marked where the shares are earlier ones.

Writes benchmarks/results/fit_time.json and fit_time.md.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

import hloom
from benchmarks.common.measure import Benchmark, Columns, figure, mebi, section, text, without_cache
from benchmarks.common.subjects import HARD_SUBJECTS, SUBJECTS
from hloom import targets
from hloom._jax.executables import memory_figures
from hloom.targets import deviceless
from hloom.xla.step_time import REACHED, step_time

TEXTS = Path(__file__).resolve().parents[1] / "build" / "fit_time"
PROGRAMS = SUBJECTS | HARD_SUBJECTS
TARGETS = ("h200", "h100_sxm", "a100_sxm_80")

NOW = f"{zlib.crc32(repr(REACHED[9, 0]).encode()):08x}"
"""Tells whether the seconds of a row are those that the code of now reads."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Compiles with the JAX that runs this, and writes the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fit_time")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="all where none is named")
    parser.add_argument("--target", choices=TARGETS, default=TARGETS[0])
    parser.add_argument("--kept", action="store_true", help="compile nothing")
    chosen = parser.parse_args(arguments)
    deviceless.prepare()
    without_cache()
    if chosen.kept:
        _write({_of_file(file): _row(file) for file in sorted(_folder().glob("*.json"))})
        return
    for program in chosen.programs or PROGRAMS:
        file = _folder() / f"{chosen.target}.{program}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(_compiled(program, chosen.target)), encoding="utf-8")
        _write({(chosen.target, program): _row(file)})


def _folder() -> Path:
    return TEXTS / jax.__version__


def _of_file(file: Path) -> tuple[str, str]:
    """The target and the program of a kept file."""
    target, program, _ = file.name.split(".")
    return target, program


def _write(measured: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Writes rows by target and program, beside those of before."""
    before = BENCHMARK.before().get("devices", {})
    rows = {
        (target, row["program"]): row for target in TARGETS for row in before.get(target, ())
    } | measured
    in_order = {
        target: [rows[target, each] for each in PROGRAMS if (target, each) in rows]
        for target in TARGETS
    }
    print(BENCHMARK.write(devices={target: found for target, found in in_order.items() if found}))


def _compiled(program: str, target: str) -> dict[str, Any]:
    """XLA's texts of a program off and under `fit`, the temporary bytes, and the compiles."""
    lowered = PROGRAMS[program].lower(None, deviceless.placement(target))
    found: dict[str, Any] = {}
    for spec in ("off", "fit"):
        executable = lowered.compile(compiler_options={"hloom": spec})
        found[spec] = executable.as_text()
        found[f"{spec}_bytes"] = memory_figures(executable.runtime_executable()).temp_bytes
    return found | {"compiles": len(hloom.records()[-1].attempts)}


def _row(file: Path) -> dict[str, Any]:
    """The row of a program on a target, by its kept texts."""
    target, program = _of_file(file)
    found = json.loads(file.read_text("utf-8"))
    off_s, on_s = (
        step_time(found[spec], targets.load(target), REACHED[9, 0]).seconds
        for spec in ("off", "fit")
    )
    return {
        "program": program,
        "off_s": off_s,
        "fit_s": on_s,
        "ratio": on_s / off_s,
        "off_bytes": found["off_bytes"],
        "fit_bytes": found["fit_bytes"],
        "compiles": found["compiles"],
        "reached": NOW,
    }


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    for device, rows in entry["devices"].items():
        yield from ("", f"## {device}, jax {version}")
        told = [row | {"shares": "" if row["reached"] == NOW else "earlier"} for row in rows]
        yield from section("", COLUMNS, told)


COLUMNS: Columns = {
    "program": text("program"),
    "off, ms": figure("off_s", ".2f", 1e3),
    "`fit`, ms": figure("fit_s", ".2f", 1e3),
    "of the step as it is": figure("ratio", ".3f"),
    "temporaries off, MiB": mebi("off_bytes"),
    "`fit`, MiB": mebi("fit_bytes"),
    "compiles": text("compiles"),
    "shares": text("shares"),
}

BENCHMARK = Benchmark(
    "fit_time",
    "fit_time",
    "What `fit` makes of a step that fits as it is",
    "Seconds of a step, foreseen from XLA's text of programs that were compiled for a device "
    "without it: nothing here was timed. `time_error.md` compares such seconds with those that an "
    "H200 took. An A100's are with the shares that an H200's kernels reach of its rates: how far "
    "they are off is not known, and `fit` does not use them. Programs that are not here were not "
    "compiled; where the shares are earlier ones, the program was not compiled since they were "
    "fitted anew.",
    _tables,
)

if __name__ == "__main__":
    main()
