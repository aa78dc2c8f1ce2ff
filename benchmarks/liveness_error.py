"""How far the liveness model is from XLA: predicted and real temporary memory on an H100.

    python -m benchmarks.liveness_error         (needs the extra cuda13; no GPU; about 10 minutes)

Every program is compiled as it is, through `remat`, and with every policy of `jax.checkpoint`. The
model reads the module that goes to XLA, its calls inlined. Writes
benchmarks/results/liveness_error.json, which keeps one entry for each version of JAX it was run
with, and liveness_error.md, the same as tables.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Iterator
from typing import Any

import hloom
from benchmarks.common.h100 import MEBI_BYTES, measure, placement
from benchmarks.common.subjects import POLICIES, SUBJECTS
from benchmarks.common.tables import Report, heading, table, update_report
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
    entry = {
        "hloom": hloom.__version__,
        "python": platform.python_version(),
        "programs": [
            {
                "title": subject.title,
                "forms": [
                    _measure(subject.title, subject.lower(policy, sharding), label, spec)
                    for label, policy, spec in (
                        (OFF, None, OFF),
                        (REMAT, None, REMAT),
                        *((policy, policy, OFF) for policy in POLICIES),
                    )
                ],
            }
            for subject in SUBJECTS.values()
        ],
    }
    print(update_report("liveness_error", entry, _markdown))


def _measure(title: str, lowered: Any, label: str, spec: str) -> dict[str, Any]:
    print(f"measuring: {title}, {label}", flush=True)
    module = clone_module(lowered.compiler_ir())
    prepared = PREPARATION if spec == OFF else f"{PREPARATION},{spec}"
    passes = parse_spec(prepared, source="benchmark")
    Pipeline(passes).run(module, target=Target("cuda", "cuda"))
    start_s = time.perf_counter()
    with module.context:
        predicted = predict(module)
    predict_s = time.perf_counter() - start_s
    return {
        "form": label,
        "temp_bytes": measure(lowered, spec).temp_bytes,
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


def _markdown(report: Report) -> Iterator[str]:
    yield from heading(
        "The liveness model beside XLA",
        "liveness_error",
        "Temporary memory in MiB of programs compiled for an H100, by XLA and as predicted from "
        "the StableHLO. The last column is the error of the difference to the program as it is, "
        "which is what a planner chooses by.",
    )
    for version, entry in report.items():
        yield ""
        yield f"## jax {version}, Python {entry['python']}"
        yield ""
        rows = []
        errors, change_errors = [], []
        for program in entry["programs"]:
            off = program["forms"][0]
            for form in program["forms"]:
                change = _change_error(form, off)
                errors.append(abs(_error(form)))
                change_errors += [] if change is None else [abs(change)]
                rows.append(
                    [
                        program["title"],
                        form["form"],
                        f"{form['temp_bytes'] / MEBI_BYTES:.0f}",
                        f"{form['predicted_temp_bytes'] / MEBI_BYTES:.0f}",
                        f"{_error(form):+.1%}",
                        "" if change is None else f"{change:+.1%}",
                    ]
                )
        columns = ["program", "form", "XLA", "predicted", "error", "error of the change"]
        yield from table(columns, rows, names=2)
        yield ""
        yield (
            f"Median error {statistics.median(errors):.1%}, of the change "
            f"{statistics.median(change_errors):.1%}; largest {max(errors):.1%}. A prediction "
            f"takes {_slowest_s(entry):.2f} s at most."
        )


def _slowest_s(entry: dict[str, Any]) -> float:
    forms = (form for program in entry["programs"] for form in program["forms"])
    return max(form["predict_s"] for form in forms)


if __name__ == "__main__":
    main()
