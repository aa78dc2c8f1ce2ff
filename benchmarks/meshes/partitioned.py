"""What hloom says of a sharded program before XLA partitions it, and what XLA makes of it.

    python -m benchmarks.meshes.partitioned     (needs the extra cuda13; no GPU; about 20 minutes)

Programs of many kinds over 8 H100s without one: the matrix products of a device, the bytes that
it sends its peers in a step, and its temporary memory. Writes benchmarks/results/
partitioned_h100.json, which keeps one entry for each version of JAX it was run with, and
partitioned_h100.md, the same as a table. Words on the command line choose rows, e.g. `"2x4 GPT"`;
other rows stay. `--predict` does hloom's figures alone anew, of rows that are there.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.sharding import AxisType, Mesh

from benchmarks.common.collectives import sent_bytes_by_kind
from benchmarks.common.h100 import TARGET
from benchmarks.common.hlo_products import matrix_products
from benchmarks.common.measure import Benchmark, Cell, mebi, section, text, without_cache
from benchmarks.meshes.annotated import PROGRAMS
from benchmarks.programs.sharded import DATA, MODEL
from hloom._jax.executables import memory_figures
from hloom.passes.analysis.device import DeviceView
from hloom.passes.analysis.loops.counted import runs_of
from hloom.passes.analysis.memory_model.memory_rules import XLA_GPU
from hloom.passes.analysis.memory_model.peak import simulate
from hloom.passes.analysis.memory_model.tracer import trace_block
from hloom.passes.analysis.program import Program
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.spec import parse_spec
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.products import ProductAxes
from hloom.targets import deviceless

PREPARATION = "inline,cse,free-constants"
MESHES = {"2x4": (2, 4), "8": (8,), "4x2": (4, 2)}


def main() -> None:
    """Measures with the JAX that runs this, and writes both files, after each row."""
    deviceless.prepare()
    without_cache()
    devices = np.asarray(deviceless.mesh(TARGET, 8).devices).ravel()
    words = sys.argv[1:]
    predict = "--predict" in words
    chosen = " ".join(word for word in words if word != "--predict")
    rows = {_name(row): row for row in BENCHMARK.before().get("rows", ())}
    for kind in (AxisType.Auto, AxisType.Explicit):
        for mesh_name, shape in MESHES.items():
            mesh = Mesh(devices.reshape(shape), (DATA, MODEL)[: len(shape)], (kind,) * len(shape))
            for title, lower in PROGRAMS.items():
                row: dict[str, Any] = {"program": title, "mesh": mesh_name, "axes": kind.name}
                if chosen not in _name(row) or (predict and _name(row) not in rows):
                    continue
                try:
                    lowered = lower(mesh)
                except Exception as refusal:  # of types that JAX keeps to itself
                    print(f"there is no {_name(row)}: {refusal}", flush=True)
                    continue
                by_xla = rows[_name(row)] if predict else partitioned(lowered)
                rows[_name(row)] = row | by_xla | predicted(lowered)
                print(rows[_name(row)], flush=True)
                BENCHMARK.write(rows=list(rows.values()))


def _name(row: dict[str, Any]) -> str:
    return f"{row['mesh']} {row['program']} {row['axes']}"


def predicted(lowered: Any) -> dict[str, Any]:
    """The figures of a program by hloom."""
    module = clone_module(lowered.compiler_ir())
    Pipeline(parse_spec(PREPARATION, source="benchmark")).run(module, target=Target("cuda", "cuda"))
    view = DeviceView.of(module, XLA_GPU)
    sent: Counter[str] = Counter()
    for each in view.exchanged.exchanges:
        sent[each.kind] += each.sent_bytes
    products = products_of_device(module, view)
    return {
        "products": [[*product, runs] for product, runs in sorted(products.items())],
        "sent_bytes": dict(sorted(sent.items())),
        "temp_bytes": _temp_bytes(module, view),
        "temp_bytes_without_exchanges": _temp_bytes(module, DeviceView(view.shardings, XLA_GPU)),
    }


def partitioned(lowered: Any) -> dict[str, Any]:
    """The figures of a program by XLA."""
    with tempfile.TemporaryDirectory(prefix="hloom-benchmark-") as folder:
        options = {
            "hloom": "off",
            "xla_dump_to": folder,
            "xla_dump_hlo_as_text": True,
            "xla_dump_hlo_pass_re": "spmd-partitioning",
        }
        compiled = lowered.compile(compiler_options=options)
        [dumped] = Path(folder).glob("*after_spmd-partitioning*.txt")
        products = matrix_products(dumped.read_text("utf-8"))
    return {
        "xla_products": [[*product, runs] for product, runs in sorted(products.items())],
        "xla_sent_bytes": sent_bytes_by_kind(compiled.as_text()),
        "xla_temp_bytes": memory_figures(compiled.runtime_executable()).temp_bytes,
    }


def _temp_bytes(module: ir.Module, view: DeviceView) -> int:
    return simulate(trace_block(Program.of(module, view))).bytes


def products_of_device(module: ir.Module, view: DeviceView) -> Counter[tuple[int, int]]:
    """How often a device does products of so many elements, each a sum of so many.

    XLA makes a multiplication of what sums nothing.
    """
    found: Counter[tuple[int, int]] = Counter()
    for op in walk.operations(module.operation):
        if op.name == "stablehlo.dot_general" and ProductAxes.of(op).left.contracted:
            left, result = (ir.RankedTensorType(v.type) for v in (op.operands[0], op.results[0]))
            summed = math.prod(left.shape[axis] for axis in ProductAxes.of(op).left.contracted)
            parts = math.prod(axis.size for axis in view.sizes.summed_axes(op))
            work = math.prod(result.shape) * summed * view.sizes.product_share(op)
            found[round(work * parts / summed), summed // parts] += runs_of(op.block)
    return found


def _alike(row: dict[str, Any]) -> str:
    """How many products have the same sizes, of how many there are at most."""
    predicted, real = (
        Counter({(elements, summed): runs for elements, summed, runs in row[key]})
        for key in ("products", "xla_products")
    )
    most = max(predicted.total(), real.total())
    return f"{(predicted & real).total()} of {most}" if most else ""


def _total(key: str) -> Cell:
    return lambda row: f"{sum(row[key].values()) / 2**20:.1f}"


def _off(key: str, xla: str) -> Cell:
    """How far a figure is from XLA's."""

    def cell(row: dict[str, Any]) -> str:
        figures = (row[key], row[xla])
        predicted, real = (sum(f.values()) if isinstance(f, dict) else f for f in figures)
        return f"{predicted / real - 1:+.1%}" if real else ""

    return cell


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    columns: dict[str, Cell] = {
        "program": text("program"),
        "mesh": text("mesh"),
        "axes": lambda row: row["axes"].lower(),
        "products alike": _alike,
        "sent, MiB": _total("sent_bytes"),
        "by XLA": _total("xla_sent_bytes"),
        "off": _off("sent_bytes", "xla_sent_bytes"),
        "temporaries, MiB": mebi("temp_bytes", 1),
        "without exchanges": mebi("temp_bytes_without_exchanges", 1),
        "XLA's": mebi("xla_temp_bytes", 1),
        "off ": _off("temp_bytes", "xla_temp_bytes"),
    }
    rows = sorted(entry["rows"], key=lambda row: list(PROGRAMS).index(row["program"]))
    return section(f"## jax {version}", columns, rows, names=3)


BENCHMARK = Benchmark(
    "partitioned_h100",
    "meshes.partitioned",
    "Sharded programs: hloom's prediction and XLA's partitioner",
    "Steps of programs over 8 H100s, compiled without one. Of matrix products the number that "
    "XLA's partitioner gives a device with the same sizes; bytes that a device sends in a step, "
    "along rings; temporary memory of a device by hloom's model, by the model without what is "
    "exchanged, and by XLA. XLA packs some buffers with gaps, which the model of live bytes does "
    "not foresee: by its dumps, at the peak, 14 MiB of the 72 of the small decoder, and 14 of the "
    "154 of the checkpointed one over 2x4 (25 of 168 on jax 0.12). Of explicit axes there are the "
    "rows of programs that JAX takes so.",
    _tables,
)


if __name__ == "__main__":
    main()
