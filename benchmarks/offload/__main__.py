"""Memory of device and host with `offload`, and what its copies span, compiled for an H100.

    python -m benchmarks.offload        (needs the extra cuda13; no GPU; about 5 minutes)

Writes benchmarks/results/offload_h100.json, which keeps one entry for each version of JAX it was
run with, and offload_h100.md, the same as tables.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

import hloom
from benchmarks.common.h100 import placement
from benchmarks.common.measure import Benchmark, code, figure, mebi, section, titled
from benchmarks.offload.programs import PROGRAMS
from benchmarks.offload.schedule import host_copies
from hloom.passes.framework.tables import facts_of


def main() -> None:
    """Compiles everything with the JAX that runs this, and writes the files."""
    sharding = placement()
    programs = {}
    for name, (lower, specs) in PROGRAMS.items():
        lowered = lower(sharding)
        programs[name] = {spec: measure(lowered, spec) for spec in specs}
        print(name, programs[name], flush=True)
    print(BENCHMARK.write(programs=programs))


def measure(lowered: Any, spec: str) -> dict[str, Any]:
    """Compiles a program for whatever it was lowered for, and reads memory and schedule."""
    jax.clear_caches()
    with tempfile.TemporaryDirectory(prefix="hloom-benchmark-") as folder, hloom.strict():
        dump = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
        compiled = lowered.compile(compiler_options={"hloom": spec} | dump)
        [file] = Path(folder).glob("*gpu_after_optimizations.txt")
        copies = list(host_copies(file.read_text(encoding="utf-8")))
    figures = compiled.memory_analysis()
    record = None if spec == "off" else hloom.records()[-1]
    return {
        "temp_bytes": figures.temp_size_in_bytes,
        "host_bytes": figures.host_temp_size_in_bytes,
        "stores": [copy.products for copy in copies if not copy.is_load],
        "loads": [copy.products for copy in copies if copy.is_load],
        "exposed_s": None if record is None else _exposed_s(record),
    }


def _exposed_s(record: hloom.CompileRecord) -> Any:
    """Seconds of copies that no work hides, by the plan."""
    plan = next(run.plan for run in record.runs if run.name == "offload")
    return facts_of(plan)["copies that no work hides"]


def _fall(row: dict[str, Any]) -> str:
    fall, host = row["fall_bytes"], row["host_bytes"]
    return f"{fall / host:.2f}" if host and row["spec"] != "off" else ""


_COLUMNS = {
    "spec": code("spec"),
    "device, MiB": mebi("temp_bytes"),
    "host, MiB": mebi("host_bytes"),
    "the device's fall / host": _fall,
    "products that each store spans": lambda row: ", ".join(map(str, row["stores"])),
    "that each load spans": lambda row: ", ".join(map(str, row["loads"])),
    "copies exposed, ms": figure("exposed_s", ".2f", 1e3),
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    yield from ("", f"## jax {version}, Python {entry['python']}")
    for name, by_spec in entry["programs"].items():
        before = by_spec["off"]["temp_bytes"]
        rows = (row | {"fall_bytes": before - row["temp_bytes"]} for row in titled(by_spec, "spec"))
        yield from section(f"### {name[0].upper()}{name[1:]}, jax {version}", _COLUMNS, rows)


_WHAT_IT_IS = """\
Gradients of scans over layers, compiled for one H100. Device and host are XLA's temporaries in
either memory. A copy spans the matrix products that XLA's schedule has between its start and its
end, in one iteration of a loop. Exposed is what by hloom's cost model no work hides, in a step; no
GPU has run these programs."""


BENCHMARK = Benchmark(
    "offload_h100", "offload", "Residuals on the host, H100", _WHAT_IT_IS, _tables
)


if __name__ == "__main__":
    main()
