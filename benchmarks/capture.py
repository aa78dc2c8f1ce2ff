"""What of a program `capture` puts into CUDA graphs, compiled for an H100, beside XLA alone.

    python -m benchmarks.capture [SUBJECT ...]    (needs the extra cuda13; no GPU; about 10 minutes)

Writes benchmarks/results/capture_h100.json, which keeps one entry for each version of JAX it was
run with, and capture_h100.md, the same as tables. What it says holds for what is captured and for
memory, and says nothing of speed.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax

import hloom
from benchmarks.common.capture_subjects import SUBJECTS, Subject
from benchmarks.common.h100 import MEBI_BYTES, TARGET
from benchmarks.common.measure import Benchmark, Columns, section, text
from hloom.passes.framework.tables import facts_of
from hloom.targets import deviceless
from hloom.xla.coverage import Coverage
from hloom.xla.thunk_dump import thunk_dump

SPEC = "capture{loops=on}"
"""Counted loops as well, so that all that can be in a graph is."""
DEVICES = (1, 8)


@dataclasses.dataclass(frozen=True)
class Figures:
    """What one compile gave.

    Attributes:
      coverage: what runs in graphs.
      peak_bytes: XLA's peak of all memory on a device.
      foreseen_graphs: the regions of the plan; None without hloom.
    """

    coverage: Coverage
    peak_bytes: int
    foreseen_graphs: int | None = None

    def to_json(self) -> dict[str, object]:
        """As values that `json.dumps` takes; what is left out by reason."""
        found = self.coverage
        reasons = Counter(_in_short(each.reason) for each in found.left_out)
        return {
            "captured": found.captured,
            "thunks": found.thunks,
            "graphs": found.graphs,
            "peak_bytes": self.peak_bytes,
            "foreseen_graphs": self.foreseen_graphs,
            "left_out": dict(sorted(reasons.items())),
        }


def main(names: list[str]) -> None:
    """Measures with the JAX that runs this, and writes both files."""
    deviceless.prepare()
    rows = [
        _row(name, SUBJECTS[name], devices) for devices in DEVICES for name in names or SUBJECTS
    ]
    print(BENCHMARK.write(spec=SPEC, programs=rows))


def measure_alone(lowered: Any, spec: str = "off") -> Figures:
    """A compile without `capture`."""
    jax.clear_caches()
    with thunk_dump({}) as dump, hloom.strict():
        compiled = lowered.compile(compiler_options={**dump.options, "hloom": spec})
        found = dump.read()
    return Figures(_known(found), compiled.memory_analysis().peak_memory_in_bytes)


def measure_captured(lowered: Any, spec: str = SPEC) -> Figures:
    """A compile with `capture`. Raises RuntimeError where a pass fails: a benchmark is strict."""
    jax.clear_caches()
    compiled = lowered.compile(compiler_options={"hloom": spec})
    record = hloom.records()[-1]
    if record.fell_back is not None or record.captured is None or record.captured.notes:
        raise RuntimeError(f"{record.fell_back or record.captured}")
    return Figures(
        _known(record.captured.coverage),
        compiled.memory_analysis().peak_memory_in_bytes,
        int(facts_of(record.runs[-1].plan)["graphs"]),
    )


def _in_short(reason: str) -> str:
    return "a loop around one of these" if reason.startswith("in it: ") else reason


def _known(found: Coverage | None) -> Coverage:
    if found is None:
        raise RuntimeError("XLA wrote no thunk sequence: is there a compilation cache?")
    return found


def _row(name: str, subject: Subject, devices: int) -> dict[str, object]:
    print(f"measuring: {subject.title}, devices: {devices}", flush=True)
    lowered = subject.lower(deviceless.mesh(TARGET, devices))
    return {
        "name": name,
        "title": subject.title,
        "devices": devices,
        "host_calls": subject.host_calls,
        "passes": subject.passes,
        "alone": measure_alone(lowered, subject.passes or "off").to_json(),
        "captured": measure_captured(lowered, f"{subject.passes},{SPEC}".strip(",")).to_json(),
    }


def cell(figures: dict[str, Any]) -> str:
    """ "52 / 176 in 6": captured of all, and the graphs."""
    return f"{figures['captured']} / {figures['thunks']} in {figures['graphs']}"


def _peak(row: dict[str, Any]) -> str:
    before, after = row["alone"]["peak_bytes"], row["captured"]["peak_bytes"]
    return f"{after / MEBI_BYTES:.0f} ({after / before - 1:+.1%})"


def _left_out(row: dict[str, Any]) -> str:
    found = row["captured"]["left_out"]
    return "; ".join(f"{count} x {reason}" for reason, count in found.items())


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    columns: Columns = {
        "program": text("title"),
        "devices": text("devices"),
        "XLA alone": lambda row: cell(row["alone"]),
        f"`{entry['spec']}`": lambda row: f"**{cell(row['captured'])}**",
        "peak, MiB": _peak,
        "left out": _left_out,
    }
    title = f"## jax {version}, Python {entry['python']}, `{entry['spec']}`"
    return section(title, columns, entry["programs"])


BENCHMARK = Benchmark(
    "capture_h100",
    "capture",
    "`capture` on programs compiled for an H100",
    "Thunks (kernels, copies, collectives, calls, loops; those in a loop once) that run in "
    "CUDA graphs, of all, and in how many. One device, and eight with the data spread over "
    "them. Peak memory is of one device. Compiled without a GPU: this says what is captured, "
    "and nothing of speed. Ragged exchanges and barriers are hloom's kernels, with the pass "
    "`barriers` in both columns; the kernel between barriers is a stand-in.",
    _tables,
)


if __name__ == "__main__":
    main(sys.argv[1:])
