"""One training step on a mesh of automatic axes, and on one of explicit axes.

    python -m benchmarks.meshes          (needs the extra cuda13; no GPU; about 5 minutes)

Compiled for H100s: XLA's temporaries of one device, and how often a step does each kind of
collective. Writes benchmarks/results/meshes_h100.json, which keeps one entry for each version of
JAX it was run with, and meshes_h100.md, the same as a table.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

import hloom
from benchmarks.common.collectives import collectives, collectives_by_kind
from benchmarks.common.h100 import MEBI_BYTES, TARGET, compile_recorded
from benchmarks.common.tables import Report, heading, table, update_report
from benchmarks.meshes.programs import AXIS, decoder, perceptron
from hloom._jax.executables import memory_figures
from hloom.targets import deviceless

NAME = "meshes_h100"
KINDS = (AxisType.Auto, AxisType.Explicit)
SPECS = ("off", "remat", "fit{budget=50%}", "accumulate{microbatches=4}")
PROGRAMS = {
    "residual layers, 2 devices": (perceptron, 2),
    "decoder by FSDP, 8 devices": (decoder, 8),
}


def main() -> None:
    """Measures with the JAX that runs this, and writes the files."""
    deviceless.prepare()
    jax.config.update("jax_enable_compilation_cache", False)
    rows: list[dict[str, Any]] = []
    entry = {"hloom": hloom.__version__, "python": platform.python_version(), "rows": rows}
    for title, (lower, count) in PROGRAMS.items():
        devices = np.asarray(deviceless.mesh(TARGET, count).devices).ravel()
        for spec in SPECS:
            row: dict[str, Any] = {"program": title, "spec": spec}
            for kind in KINDS:
                lowered = lower(Mesh(devices, (AXIS,), axis_types=(kind,)))
                row[kind.name] = measured(lowered, spec)
            rows.append(row)
            print(row, flush=True)
    print(update_report(NAME, entry, markdown))


def measured(lowered: Any, spec: str) -> dict[str, Any]:
    """The figures of a program with a spec."""
    compiled, _ = compile_recorded(lowered, spec)
    text = compiled.as_text()
    return {
        "temp_bytes": memory_figures(compiled.runtime_executable()).temp_bytes,
        "collectives": collectives_by_kind(text),
        "in_loops": collectives(text).inside,
    }


def markdown(report: Report) -> Iterator[str]:
    """The results as tables."""
    yield from heading(
        "Automatic and explicit axes",
        "meshes",
        "A training step compiled for H100s on a mesh of automatic axes and on one of explicit "
        "axes, behind each operation of which JAX writes a sharding constraint. XLA's temporaries "
        "of one device in MiB; collectives as often as a step runs them, in brackets those in "
        "loops: AG all-gather, AR all-reduce, A2A all-to-all, RS reduce-scatter.",
    )
    for version, entry in report.items():
        yield from ["", f"## jax {version}", ""]
        columns = ["program", "spec", *(f"{kind.name.lower()}, MiB" for kind in KINDS)]
        columns += [f"{kind.name.lower()}, collectives" for kind in KINDS]
        yield from table(columns, map(_cells, entry["rows"]), names=2)


def _cells(row: dict[str, Any]) -> list[str]:
    found = [row[kind.name] for kind in KINDS]
    sizes = [f"{each['temp_bytes'] / MEBI_BYTES:.1f}" for each in found]
    return [row["program"], f"`{row['spec']}`", *sizes, *map(_collectives, found)]


_SHORT = {
    "all-gather": "AG",
    "all-reduce": "AR",
    "all-to-all": "A2A",
    "collective-permute": "CP",
    "reduce-scatter": "RS",
}


def _collectives(figures: dict[str, Any]) -> str:
    counts = [f"{count} {_SHORT[kind]}" for kind, count in figures["collectives"].items()]
    return f"{', '.join(counts)} ({figures['in_loops']})"


if __name__ == "__main__":
    main()
