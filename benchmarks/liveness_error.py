"""How far the liveness model is from XLA: predicted and real temporary memory on an H100.

    python -m benchmarks.liveness_error         (needs the extra cuda13; no GPU; about 10 minutes)
    python -m benchmarks.liveness_error --predict    (XLA's figures of modules that no pass rewrites
                                                      stay as they are)

Every program is compiled as it is, through `remat`, and with every policy of `jax.checkpoint`. The
model reads the module that goes to XLA, its calls inlined. Writes
benchmarks/results/liveness_error.json, which keeps one entry for each version of JAX it was run
with, and liveness_error.md, the same as tables.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.common.h100 import measure, placement
from benchmarks.common.measure import Benchmark, Columns, figure, mebi, section, text
from benchmarks.common.subjects import POLICIES, SUBJECTS
from hloom.passes.analysis.memory_model.memory_rules import XLA_GPU
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.spec import parse_spec
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module

PREPARATION = "inline,cse,free-constants"
OFF, REMAT = "off", "remat"
SMALL_CHANGE = 0.01
"""Share of a program's memory below which a difference is no difference."""


def main() -> None:
    """Measures with the JAX that runs this, and writes both files."""
    sharding = placement()
    known: dict[tuple[str, str], int] = {}
    if "--predict" in sys.argv[1:]:
        before = BENCHMARK.before()["programs"]
        known = {
            (program["title"], form["form"]): form["temp_bytes"]
            for program in before
            for form in program["forms"]
            if form["form"] != REMAT
        }
    forms = (OFF, None, OFF), (REMAT, None, REMAT), *((each, each, OFF) for each in POLICIES)
    programs = [
        {
            "title": subject.title,
            "forms": [
                _measure(
                    subject.title,
                    subject.lower(policy, sharding),
                    label,
                    spec,
                    known.get((subject.title, label)),
                )
                for label, policy, spec in forms
            ],
        }
        for subject in SUBJECTS.values()
    ]
    print(BENCHMARK.write(programs=programs))


def _measure(
    title: str, lowered: Any, label: str, spec: str, temp_bytes: int | None
) -> dict[str, Any]:
    """A form's figures, XLA's among them where they are not known."""
    print(f"measuring: {title}, {label}", flush=True)
    module = clone_module(lowered.compiler_ir())
    prepared = PREPARATION if spec == OFF else f"{PREPARATION},{spec}"
    passes = parse_spec(prepared, source="benchmark")
    Pipeline(passes).run(module, target=Target("cuda", "cuda"))
    start_s = time.process_time()
    with module.context:
        predicted = predict(module, rules=XLA_GPU)
    predict_s = time.process_time() - start_s
    return {
        "form": label,
        "temp_bytes": measure(lowered, spec).temp_bytes if temp_bytes is None else temp_bytes,
        "predicted_temp_bytes": predicted.temp_bytes,
        "predict_s": predict_s,
    }


def _error(form: dict[str, Any]) -> float:
    """How far a prediction is off, relative to XLA's figure."""
    return form["predicted_temp_bytes"] / form["temp_bytes"] - 1


def _change_error(form: dict[str, Any], off: dict[str, Any]) -> float | None:
    """How far the predicted difference to the program as it is is off; None where it is small."""
    real = off["temp_bytes"] - form["temp_bytes"]
    predicted = off["predicted_temp_bytes"] - form["predicted_temp_bytes"]
    return predicted / real - 1 if abs(real) > SMALL_CHANGE * off["temp_bytes"] else None


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
        f"Median error {statistics.median(errors):.1%}, of the change "
        f"{statistics.median(changes):.1%}; largest {max(errors):.1%}. A prediction "
        f"takes {max(row['predict_s'] for row in rows):.2f} CPU s at most."
    )


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
