"""How far the memory model is from XLA:TPU: predicted and real memory of a step on a TPU v5p.

    python -m benchmarks.tpu.memory_model     (needs the extra tpu; no TPU; about half an hour)

Every program is compiled as it is and with every policy of `jax.checkpoint`. The model reads the
module that goes to XLA, its calls inlined, by the rules of XLA:TPU and, to compare, by those of
XLA:GPU. Writes benchmarks/results/memory_model_tpu.json, which keeps one entry for each version of
JAX it was run with, and memory_model_tpu.md, the same as tables. XLA's figures are kept in
build/frontier/v5p/, as `benchmarks.frontier` keeps them. `--predict` does the predictions alone
anew: XLA's figures of a program are the same for one version of JAX.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from typing import Any

import jaxlib
from jax.extend.mlir import ir

from benchmarks.common.measure import Benchmark, Columns, figure, mebi, section, text
from benchmarks.common.subjects import POLICIES, TPU_SUBJECTS
from benchmarks.frontier.compiles import Compiles, known_figures
from benchmarks.frontier.yardsticks import YARDSTICKS
from hloom import targets
from hloom.passes.analysis.memory_model.memory_rules import XLA_GPU, MemoryRules
from hloom.passes.analysis.memory_model.targets import memory_rules
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.spec import parse_spec
from hloom.passes.ir.clone import clone_module
from hloom.targets import deviceless

TARGET = "v5p"
PREPARATION = "inline,cse,free-constants"


def main() -> None:
    """Measures with the JAX that runs this, and writes both files."""
    deviceless.prepare()
    sharding = deviceless.placement(TARGET)
    compiles = Compiles(sharding, known_figures(YARDSTICKS[TARGET], jaxlib.__version__))
    known = _known() if "--predict" in sys.argv else {}
    forms = []
    for program in TPU_SUBJECTS.values():
        for policy in (None, *POLICIES):
            print(f"{program.title}, {policy}", flush=True)
            module = program.lower(policy, sharding).compiler_ir()
            form = policy or "none"
            by_xla = known.get((program.title, form))
            step_bytes = by_xla or compiles.figures(module).point(form).step_bytes
            row = {"program": program.title, "form": form, "step_bytes": step_bytes}
            forms.append(row | _predictions(module))
    print(BENCHMARK.write(forms=forms))


def _known() -> dict[tuple[str, str], int]:
    """XLA's memory of a step that was measured before, by program and form."""
    forms = BENCHMARK.before().get("forms", ())
    return {(form["program"], form["form"]): form["step_bytes"] for form in forms}


def _predictions(module: ir.Module) -> dict[str, int]:
    """Memory of a step, by the rules of XLA:TPU and by those of XLA:GPU."""
    target = targets.load(TARGET)
    prepared = clone_module(module)
    Pipeline(parse_spec(PREPARATION, source="benchmark")).run(prepared, target=target)
    return {
        "predicted_step_bytes": _predicted(prepared, memory_rules(target)),
        "predicted_by_gpu_rules": _predicted(prepared, XLA_GPU),
    }


def _predicted(module: ir.Module, rules: MemoryRules) -> int:
    with module.context:
        return predict(module, rules=rules).step_bytes


_COLUMNS: Columns = {
    "program": text("program"),
    "policy": text("form"),
    "XLA": mebi("step_bytes"),
    "predicted": mebi("predicted_step_bytes"),
    "error": figure("error", "+.1%"),
    "by GPU rules": figure("by_gpu_rules", "+.1%"),
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    rows = [
        form
        | {
            "error": form["predicted_step_bytes"] / form["step_bytes"] - 1,
            "by_gpu_rules": form["predicted_by_gpu_rules"] / form["step_bytes"] - 1,
        }
        for form in entry["forms"]
    ]
    yield from section(f"## jax {version}, Python {entry['python']}", _COLUMNS, rows, names=2)
    found = [[abs(row[by]) for row in rows] for by in ("error", "by_gpu_rules")]
    medians, largest = [statistics.median(each) for each in found], [max(each) for each in found]
    yield ""
    yield (
        f"Median error {medians[0]:.1%}, largest {largest[0]:.1%}; by the rules of XLA:GPU "
        f"{medians[1]:.1%} and {largest[1]:.1%}."
    )


BENCHMARK = Benchmark(
    "memory_model_tpu",
    "tpu.memory_model",
    "The memory model beside XLA:TPU",
    "Memory of a step in MiB, arguments and results included, compiled for a TPU v5p without "
    "one: by XLA, as predicted by the rules of XLA:TPU, and as the rules of XLA:GPU would. "
    "No figure of XLA has corrected a prediction here.",
    _tables,
)


if __name__ == "__main__":
    main()
