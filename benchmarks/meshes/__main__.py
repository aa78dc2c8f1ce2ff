"""One training step on a mesh of automatic axes, and on one of explicit axes.

    python -m benchmarks.meshes          (needs the extra cuda13; no GPU; about 5 minutes)

Compiled for H100s: XLA's temporaries of one device, and how often a step does each kind of
collective. Writes benchmarks/results/meshes_h100.json, which keeps one entry for each version of
JAX it was run with, and meshes_h100.md, the same as a table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from jax.sharding import AxisType, Mesh

from benchmarks.common.collectives import collectives, collectives_by_kind
from benchmarks.common.h100 import TARGET, compile_recorded
from benchmarks.common.measure import Benchmark, Cell, code, mebi, section, text, without_cache
from benchmarks.meshes.programs import AXIS, MODEL, decoder, head, perceptron, sharded_twice
from hloom._jax.executables import memory_figures
from hloom.targets import deviceless

KINDS = (AxisType.Auto, AxisType.Explicit)
SPECS = ("off", "remat", "fit", "fit{budget=50%}", "accumulate{microbatches=4}")
PROGRAMS = {
    "residual layers, 2 devices": (perceptron, (2,), SPECS),
    "decoder by FSDP, 8 devices": (decoder, (8,), SPECS),
    "decoder by FSDP and heads, 2x4 devices": (sharded_twice, (2, 4), (*SPECS, "fit{budget=min}")),
    "words over 4 of 8 devices": (head, (2, 4), ("off", "chunk", "fit{budget=50%}")),
}


def main() -> None:
    """Measures with the JAX that runs this, and writes the files."""
    deviceless.prepare()
    without_cache()
    rows: list[dict[str, Any]] = []
    for title, (lower, shape, specs) in PROGRAMS.items():
        devices = np.asarray(deviceless.mesh(TARGET, math.prod(shape)).devices).reshape(shape)
        for spec in specs:
            row: dict[str, Any] = {"program": title, "spec": spec}
            for kind in KINDS:
                axes = (AXIS, MODEL)[: len(shape)]
                lowered = lower(Mesh(devices, axes, axis_types=(kind,) * len(shape)))
                row[kind.name] = measured(lowered, spec)
            rows.append(row)
            print(row, flush=True)
    print(BENCHMARK.write(rows=rows))


def measured(lowered: Any, spec: str) -> dict[str, Any]:
    """The figures of a program with a spec."""
    compiled, _ = compile_recorded(lowered, spec)
    text = compiled.as_text()
    return {
        "temp_bytes": memory_figures(compiled.runtime_executable()).temp_bytes,
        "collectives": collectives_by_kind(text),
        "in_loops": collectives(text).inside,
    }


_SHORT = {
    "all-gather": "AG",
    "all-reduce": "AR",
    "all-to-all": "A2A",
    "collective-permute": "CP",
    "reduce-scatter": "RS",
}


def _collectives(name: str, row: dict[str, Any]) -> str:
    figures = row[name]
    counts = [f"{count} {_SHORT[kind]}" for kind, count in figures["collectives"].items()]
    return f"{', '.join(counts)} ({figures['in_loops']})"


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    columns: dict[str, Cell] = {"program": text("program"), "spec": code("spec")}
    names = [kind.name for kind in KINDS]
    for name in names:
        columns[f"{name.lower()}, MiB"] = mebi((name, "temp_bytes"), 1)
    for name in names:
        columns[f"{name.lower()}, collectives"] = partial(_collectives, name)
    return section(f"## jax {version}", columns, entry["rows"], names=2)


BENCHMARK = Benchmark(
    "meshes_h100",
    "meshes",
    "Automatic and explicit axes",
    "A training step compiled for H100s on a mesh of automatic axes and on one of explicit "
    "axes, behind each operation of which JAX writes a sharding constraint. XLA's temporaries "
    "of one device in MiB; collectives as often as a step runs them, in brackets those in "
    "loops: AG all-gather, AR all-reduce, A2A all-to-all, RS reduce-scatter.",
    _tables,
)


if __name__ == "__main__":
    main()
