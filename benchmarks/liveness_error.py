"""How far the liveness model is from XLA: predicted and real temporary memory on an H100.

    python -m benchmarks.liveness_error    (needs the extra cuda13; no GPU; compiles 100 modules, 20
                                            where `benchmarks.frontier` was run before)

Every program of the frontier, as it is and with every policy of `jax.checkpoint`, and layers of one
activation each, of which XLA keeps or repeats some. The model reads
the module that goes to XLA, its calls inlined; XLA's figures of modules are kept where the frontier
keeps them. `--predict` does the predictions alone anew: XLA's figures of a program are the same for
one version of JAX. Writes benchmarks/results/liveness_error.json, which keeps one entry for each
version of JAX it was run with, and liveness_error.md, the same as tables.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import jaxlib
from jax.extend.mlir import ir

from benchmarks.common.measure import Benchmark, Columns, figure, mebi, section, text
from benchmarks.common.subjects import POLICIES
from benchmarks.frontier.compiles import Compiles, known_figures
from benchmarks.frontier.yardsticks import H100
from benchmarks.programs import activations
from hloom.passes.analysis.memory_model.memory_rules import XLA_GPU
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.spec import parse_spec
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from hloom.targets import deviceless

PREPARATION = "inline,cse,free-constants"
OFF = "off"
SMALL_CHANGE = 0.01
"""Share of a program's memory below which a difference is no difference."""


def main() -> None:
    """Measures with the JAX that runs this, and writes both files."""
    deviceless.prepare()
    sharding = H100.placement()
    compiles = Compiles(sharding, known_figures(H100, jaxlib.__version__))
    known = _known() if "--predict" in sys.argv else {}
    programs = []
    for subject in H100.programs.values():
        forms = []
        for policy in (None, *POLICIES):
            print(f"measuring: {subject.title}, {policy or OFF}", flush=True)
            module = subject.lower(policy, sharding).compiler_ir()
            by_xla = known.get((subject.title, policy or OFF))
            temp_bytes = by_xla or compiles.figures(module).temp_size_in_bytes
            forms.append({"form": policy or OFF, "temp_bytes": temp_bytes} | _predicted(module))
        programs.append({"title": subject.title, "forms": forms})
    alone = []
    for title, lowered in activations.lowered(sharding):
        print(f"measuring: {title}", flush=True)
        module = lowered.compiler_ir()
        temp_bytes = known.get((title, "")) or compiles.figures(module).temp_size_in_bytes
        alone.append({"title": title, "temp_bytes": temp_bytes} | _predicted(module))
    print(BENCHMARK.write(programs=programs, activations=alone))


def _known() -> dict[tuple[str, str], int]:
    """XLA's temporaries that were measured before, by program and form; of activations by title."""
    before = BENCHMARK.before()
    return {
        (program["title"], form["form"]): form["temp_bytes"]
        for program in before.get("programs", ())
        for form in program["forms"]
    } | {(each["title"], ""): each["temp_bytes"] for each in before.get("activations", ())}


def _predicted(module: ir.Module) -> dict[str, Any]:
    """The model's figures."""
    read = clone_module(module)
    passes = parse_spec(PREPARATION, source="benchmark")
    Pipeline(passes).run(read, target=Target("cuda", "cuda"))
    start_s = time.process_time()
    with read.context:
        predicted = predict(read, rules=XLA_GPU)
    predict_s = time.process_time() - start_s
    return {"predicted_temp_bytes": predicted.temp_bytes, "predict_s": predict_s}


def _error(form: dict[str, Any]) -> float:
    """How far a prediction is off, relative to XLA's figure."""
    return form["predicted_temp_bytes"] / form["temp_bytes"] - 1


def _change_error(form: dict[str, Any], off: dict[str, Any]) -> float | None:
    """How far the predicted difference to the program as it is is off; None where it is small."""
    real = off["temp_bytes"] - form["temp_bytes"]
    predicted = off["predicted_temp_bytes"] - form["predicted_temp_bytes"]
    return predicted / real - 1 if abs(real) > SMALL_CHANGE * off["temp_bytes"] else None


_ALONE: Columns = {
    "activation": text("title"),
    "XLA": mebi("temp_bytes"),
    "predicted": mebi("predicted_temp_bytes"),
    "error": figure("error", "+.1%"),
}

_COLUMNS: Columns = {
    "program": text("title"),
    "form": text("form"),
    "XLA": mebi("temp_bytes"),
    "predicted": mebi("predicted_temp_bytes"),
    "error": figure("error", "+.1%"),
    "error of the change": figure("change", "+.1%"),
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    rows = [
        form
        | {
            "title": program["title"],
            "error": _error(form),
            "change": _change_error(form, program["forms"][0]),
        }
        for program in entry["programs"]
        for form in program["forms"]
    ]
    yield from section(f"## jax {version}, Python {entry['python']}", _COLUMNS, rows, names=2)
    errors = [abs(row["error"]) for row in rows]
    changes = [abs(row["change"]) for row in rows if row["change"] is not None]
    yield ""
    yield (
        f"Median error {statistics.median(errors):.1%}, mean {statistics.mean(errors):.1%}, of the "
        f"change {statistics.median(changes):.1%} in the median; largest {max(errors):.1%}. A "
        f"prediction takes {max(row['predict_s'] for row in rows):.2f} CPU s at most."
    )
    alone = [each | {"error": _error(each)} for each in entry.get("activations", ())]
    title = f"## Activations of {activations.LAYERS} layers, jax {version}"
    yield from section(title, _ALONE, alone)


BENCHMARK = Benchmark(
    "liveness_error",
    "liveness_error",
    "The liveness model beside XLA",
    "Temporary memory in MiB of programs compiled for an H100, by XLA and as predicted from "
    "the StableHLO. The last column is the error of the difference to the program as it is, "
    "which is what a planner chooses by.",
    _tables,
)


if __name__ == "__main__":
    main()
