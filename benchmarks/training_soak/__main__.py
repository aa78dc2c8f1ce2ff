"""Random training programs in child processes: how many end, are wrong, or are refused, and why.

    python -m benchmarks.training_soak [--meshes] [--seeds 5000] [--children 2] [--state FOLDER]

No GPU, and nothing is compiled: the interpreter of StableHLO runs each program before and after.
With --meshes XLA runs each on virtual CPU devices, compiled without hloom and with it. A child does
some seeds, and writes what came of each before it goes on, so that a process that is ended tells by
what; the run goes on behind it, and where it stopped when it is started again with the same folder.
Writes benchmarks/results/training_soak.json, or mesh_soak.json, which keeps one entry for each
version of JAX it was run with, and .md, the same as tables.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

import hloom
from benchmarks.common.tables import Report, heading, table, update_report
from benchmarks.training_soak import mesh_run
from benchmarks.training_soak import run as one_device
from benchmarks.training_soak.run import Found

BATCH = 50
"""Seeds of one child."""

OUTCOMES = ("rewritten", "left alone", "refused", "failed", "wrong", "ended")


@dataclass(frozen=True)
class Soak:
    """A kind of random programs.

    Attributes:
      name: of its results.
      title: of its tables.
      results_of: what came of each spec for a seed.
      specs: their names, in the order of the table.
      text: what the tables say of themselves.
      flags: of XLA, in a child.
    """

    name: str
    title: str
    results_of: Callable[[int, Callable[[str], None]], Iterator[Found]]
    specs: Sequence[str]
    text: str
    flags: str = ""

    def markdown(self, report: Report) -> Iterator[str]:
        """What `summary` found by version of JAX, as tables."""
        yield from heading(self.title, "training_soak", self.text)
        for version, entry in report.items():
            yield from ("", f"## jax {version}, {entry['programs']} programs", "")
            rows = [
                [spec, str(sum(found.values())), *(str(found.get(each, 0)) for each in OUTCOMES)]
                for spec, found in entry["outcomes"].items()
            ]
            yield from table(["spec", "runs", *OUTCOMES], rows)
            for key, found in entry["reasons"].items():
                yield from ("", f"### {key}", "")
                counts = [[_cell(text), str(count)] for text, count in found.items()]
                yield from table(["reason", "programs"], counts)


TRAINING = Soak(
    "training_soak",
    "Random training programs",
    one_device.results_of,
    tuple(one_device.SPECS),
    "Training steps drawn at random (`benchmarks/training_soak/programs.py`): layers in\n"
    "scans, loops, conditionals and checkpoints, with random draws, norms of the batch and\n"
    "barriers. StableHLO's interpreter runs each before and after a spec, in child processes.\n"
    "Ended are processes that did not come back, failed are passes that raised, wrong are\n"
    "results that differ: floats by more than a thousandth of the largest element, integers\n"
    "at all. Runs of before 2026-11-26 compared floats with the words of a key: those tell\n"
    "nothing of what was wrong by less than that.",
)

MESHES = Soak(
    "mesh_soak",
    "Random programs over meshes",
    mesh_run.results_of,
    tuple(mesh_run.SPECS),
    "Steps of small decoders drawn at random (`benchmarks/training_soak/mesh_programs.py`), over\n"
    "4 or 8 virtual CPU devices in meshes of one to three axes, automatic and explicit: batch,\n"
    "positions, parameters, hidden units and words are split or not, heads tied, doubled, biased,\n"
    "layers scanned and checkpointed. XLA runs each compiled without hloom and with a spec. Wrong\n"
    "are results that differ: floats by more than a thousandth of the largest element, 6 % where\n"
    "products are bfloat16, integers at all. The other words are those of `training_soak`.",
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what is left of the seeds, and writes the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training_soak")
    parser.add_argument("--meshes", action="store_true", help="programs over meshes")
    parser.add_argument("--seeds", type=int, default=5000, help="how many (%(default)s)")
    parser.add_argument("--children", type=int, default=2, help="at a time (%(default)s)")
    parser.add_argument("--state", type=Path, help="what is done (a temporary folder)")
    parser.add_argument("--report", action="store_true", help="of what is done, running nothing")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    soak = MESHES if chosen.meshes else TRAINING
    if chosen.state is None:
        chosen.state = Path(tempfile.gettempdir(), f"hloom-{soak.name}-{jax.__version__}")
    chosen.state.mkdir(exist_ok=True)
    if chosen.child is not None:
        work(soak, chosen.child, min(chosen.child + BATCH, chosen.seeds), chosen.state)
        return
    if not chosen.report:
        run(soak, range(0, chosen.seeds, BATCH), chosen)
    print(update_report(soak.name, summary(soak, chosen.state), soak.markdown))


def run(soak: Soak, batches: Sequence[int], chosen: argparse.Namespace) -> None:
    """Keeps so many children at work; one that is ended is started again behind its last seed."""
    waiting = list(reversed(batches))
    running: list[tuple[int, subprocess.Popen[bytes]]] = []
    while waiting or running:
        while waiting and len(running) < chosen.children:
            first = waiting.pop()
            command = [sys.executable, "-m", "benchmarks.training_soak", "--child", str(first)]
            command += ["--seeds", str(chosen.seeds), "--state", str(chosen.state)]
            command += ["--meshes"] if soak is MESHES else []
            environment = os.environ | ENVIRONMENT | {"XLA_FLAGS": soak.flags}
            running.append((first, subprocess.Popen(command, env=environment)))
        for each in list(running):
            first, child = each
            if child.poll() is None:
                continue
            running.remove(each)
            if child.returncode and note_ended(chosen.state, first, child.returncode):
                waiting.append(first)
        time.sleep(0.5)


ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "HLOOM_LOG": "off"}


def work(soak: Soak, first: int, end: int, state: Path) -> None:
    """What a child does: the seeds of a batch that are not done."""
    file = state / f"{first}.jsonl"
    done = {line["seed"] for line in _lines(file) if line["outcome"] == "done"}
    with file.open("a", encoding="utf-8") as out:

        def write(seed: int, **values: Any) -> None:
            out.write(json.dumps({"seed": seed, **values}) + "\n")
            out.flush()

        for seed in range(first, end):
            if seed not in done:
                write(seed, outcome="begun")
                for found in soak.results_of(
                    seed,
                    lambda spec: write(seed, outcome="at", spec=spec),  # noqa: B023
                ):
                    write(seed, **found)
                write(seed, outcome="done")


def note_ended(state: Path, first: int, status: int) -> bool:
    """Notes what ended a child; False where it had not begun, so that another would do the same."""
    file = state / f"{first}.jsonl"
    lines = list(_lines(file))
    if not lines or lines[-1]["outcome"] == "done":
        return False
    last = lines[-1]
    spec = last.get("spec", "before any pass")
    text = f"seed {last['seed']}: status {status}"
    with file.open("a", encoding="utf-8") as out:
        for found in (
            {"spec": spec, "outcome": "ended", "text": text},
            {"outcome": "done"},
        ):
            out.write(json.dumps({"seed": last["seed"], **found}) + "\n")
    return True


def _lines(file: Path) -> Iterator[Found]:
    if file.exists():
        for line in file.read_text("utf-8").splitlines():
            yield json.loads(line)


def summary(soak: Soak, state: Path) -> Any:
    """What came of all seeds that are done."""
    files = sorted(state.glob("*.jsonl"), key=lambda file: int(file.stem))
    lines = [line for file in files for line in _lines(file)]
    done = {line["seed"] for line in lines if line["outcome"] == "done"}
    outcomes: dict[str, collections.Counter[str]] = {}
    reasons: dict[str, collections.Counter[str]] = {}
    seen: set[tuple[int, str]] = set()
    for line in lines:
        spec, outcome = line.get("spec"), line["outcome"]
        key = (line["seed"], str(spec))
        if spec is None or outcome == "at" or line["seed"] not in done or key in seen:
            continue
        seen.add(key)
        outcomes.setdefault(spec, collections.Counter())[outcome] += 1
        if line.get("text"):
            reasons.setdefault(f"{spec}: {outcome}", collections.Counter())[line["text"]] += 1
    return {
        "hloom": hloom.__version__,
        "programs": len(done),
        "outcomes": {
            spec: dict(outcomes[spec]) for spec in (*soak.specs, *outcomes) if spec in outcomes
        },
        "reasons": {key: dict(found.most_common()) for key, found in sorted(reasons.items())},
    }


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
