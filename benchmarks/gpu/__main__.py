"""Runs everything that needs a CUDA GPU, or all of it but the GPU, and writes what came of it.

    python -m benchmarks.gpu --out DIR                 all parts, at most 9 minutes each
    python -m benchmarks.gpu --out DIR --part 2        one part; again where it was stopped
    python -m benchmarks.gpu --out DIR --dry-run       no GPU: everything but running on it

DIR then holds gpu_<device>.json and the same as tables in gpu_<device>.md. The JSON file is whole
after every item. What is in it is not done again: `--again 'time/*'` forgets items by name. The
exit code is 0 where nothing is left of the chosen parts, however their items ended, 3 where a
part's time was over, and 1 where nothing could run.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from benchmarks.gpu import machine
from benchmarks.gpu.items import OK, ROOT, Item, Part, Settings
from benchmarks.gpu.results import DRY_RUN, Store
from benchmarks.gpu.running import Children, Runner
from benchmarks.gpu.tables import markdown

PARTS = {
    1: "part1_tests",
    2: "part2_steps",
    3: "part3_bits",
    4: "part4_ranks",
    5: "part5_attention",
}
MINUTES = 9.0
_LAUNCH = frozenset({1, 4})
"""Parts that launch kernels by the driver."""

_MOST_JOBS = 4
_LEFT = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the parts that are asked for; gives the exit code."""
    chosen = _parse(arguments)
    work = (chosen.work or ROOT / "build" / "gpu").resolve()
    work.mkdir(parents=True, exist_ok=True)
    try:
        python = machine.python_with_hloom(work, chosen.wheel)
        environment = machine.environment(work, dry_run=chosen.dry_run, given=os.environ)
        children = Children(python, work, environment)
        _end_at_signals(children)
        commit = machine.commit(of_wheel=python != Path(sys.executable))
        settings, store = _begin(chosen, children, work, commit)
    except (machine.MachineError, ValueError, OSError) as error:
        print(f"benchmarks.gpu: {error}", file=sys.stderr)
        return 1
    for pattern in chosen.again or ():
        print(f"forgotten: {', '.join(store.forget(pattern)) or f'nothing matches {pattern}'}")
    cores = os.cpu_count() or 1
    jobs = chosen.jobs or min(_MOST_JOBS, cores if chosen.dry_run else max(1, cores // 4))
    runner = Runner(children, store, minutes=chosen.minutes, jobs=jobs, crowd=chosen.dry_run)
    complete = True
    try:
        for number in chosen.part or PARTS:
            print(f"part {number}: {PARTS[number].partition('_')[2]}", flush=True)
            part = cast(Part, importlib.import_module(f"benchmarks.gpu.parts.{PARTS[number]}"))
            complete &= runner.run_part(number, part, settings, commit)
            _write_tables(store)
    finally:
        children.end()
        _write_tables(store)
    print(f"{store.file}: {'complete' if complete else 'not complete: the same command goes on'}")
    return 0 if complete else _LEFT


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the results")
    parser.add_argument("--part", type=int, choices=list(PARTS), action="append")
    parser.add_argument("--dry-run", action="store_true", help="without a GPU, everything small")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="the most that a part takes")
    parser.add_argument("--again", metavar="PATTERN", action="append", help="forget these items")
    parser.add_argument(
        "--from", dest="seed", type=Path, metavar="FILE", help="earlier results to go on from"
    )
    parser.add_argument("--jobs", type=int, help="items at once, of those that take no times")
    parser.add_argument("--wheel", type=Path, help="hloom's wheel; build/wheels has it otherwise")
    parser.add_argument("--work", type=Path, help="for what is kept between runs; build/gpu")
    return parser.parse_args(arguments)


def _end_at_signals(children: Children) -> None:
    """At Ctrl-C and at SIGTERM ends the children, and with them what waits for them."""

    def end(*_: object) -> None:
        children.end()
        sys.exit(1)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)


def _begin(
    chosen: argparse.Namespace, children: Children, work: Path, commit: str | None
) -> tuple[Settings, Store]:
    """Asks what this runs on. Raises MachineError where JAX finds no such device."""
    entry = children.run(
        Item("facts", "benchmarks.gpu.facts:find", {"dry_run": chosen.dry_run}), 120
    )
    if entry["status"] != OK:
        print(entry.get("tail", ""), file=sys.stderr)
        raise machine.MachineError(
            f"JAX does not start on {'the CPU' if chosen.dry_run else 'a CUDA GPU'} here: "
            f"{entry.get('why')}. Without a GPU there is --dry-run"
        )
    found: dict[str, Any] = machine.facts() | entry["result"] | {"commit": commit}
    found["dry_run"] = chosen.dry_run
    if chosen.dry_run:
        found["device"] = DRY_RUN
    if found["native_library"]["error"]:
        print(f"without hloom's kernels: {found['native_library']['error']}", flush=True)
    store = Store(chosen.out, found, chosen.seed)
    launches = chosen.dry_run and _LAUNCH.intersection(chosen.part or PARTS)
    return Settings(chosen.dry_run, _fake_driver(children, work) if launches else None), store


def _fake_driver(children: Children, work: Path) -> Path | None:
    """The folder of the driver for dry runs; None where it cannot be made."""
    folder = str(work / "fake_driver")
    made = children.run(
        Item("fake driver", "benchmarks.gpu.fake_driver:make", {"folder": folder}), 240
    )
    if made["status"] == OK:
        return Path(made["result"])
    print(f"without the fake driver: {made['why']}", flush=True)
    return None


def _write_tables(store: Store) -> None:
    text = "\n".join([*markdown(store.report), ""])
    store.file.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
