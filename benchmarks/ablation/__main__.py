"""What tuned numbers are worth: predictions and plans with a number halved, doubled or switched.

    python -m benchmarks.ablation --count    (how many numbers there are, by folder; a second)
    python -m benchmarks.ablation            (needs the extra cuda13; no GPU; compiles nothing)
    python -m benchmarks.ablation model      (or `plans`: one of the two tables)

The memory model's rules and numbers: predictions beside XLA's figures that `liveness_error` keeps.
The planner's: what `fit` plans, with the model in the place of XLA. A number next to 1 has its
distance from 1 halved and doubled. Writes benchmarks/results/ablation.json after each row, with one
entry for each version of JAX it was run with, and ablation.md, the same as tables.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.mlir import ir

from benchmarks.ablation.numbers import RULES, Number, counts, tuned
from benchmarks.common.measure import Benchmark, Columns, figure, section, text
from benchmarks.common.subjects import HARD_SUBJECTS, SUBJECTS
from benchmarks.common.tables import RESULTS
from benchmarks.frontier.yardsticks import H100
from benchmarks.liveness_error import OFF, PREPARATION
from hloom import targets
from hloom.passes.analysis.memory_model.memory_rules import XLA_GPU, GpuRules
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir.clone import clone_module
from hloom.targets import deviceless
from hloom_tools.opt.job import dry_run

FORMS = (OFF, "dots_with_no_batch_dims_saveable")
"""The forms of each program that are predicted."""

OFF_BY = 0.05
"""The error from which a prediction counts as off."""

PLANNED = {
    "two_level_scan": SUBJECTS["two_level_scan"],
    "mixture_of_experts": SUBJECTS["mixture_of_experts"],
    "maml": HARD_SUBJECTS["maml"],
}
"""Programs that are planned in about a second."""

SPECS = ("fit{budget=30%}",)

Figures = list[float]

NOT_SHOWN = re.compile(
    r"\.(exchanged|latency_hiding|tpu|tiles)\.|hides_latency|makes_zeros_early"
    r"|candidates\.(_PRICES_PER_DOUBLING|_LOWEST|_HIGHEST|_LAST|STEPS)$"
)
"""Numbers of meshes and TPUs, which no program here is for, and numbers from which others are
computed on import, which a change at run time does not reach."""


@dataclass(frozen=True)
class Change:
    """A number and what it is changed to."""

    number: Number
    what: str
    value: Any

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """Changes the number wherever it was imported, and changes it back."""
        holders = list(_holders(self.number))
        for holder, name, _ in holders:
            setattr(holder, name, self.value)
        try:
            yield
        finally:
            for holder, name, before in holders:
                setattr(holder, name, before)


def main(arguments: Sequence[str] | None = None) -> None:
    """Counts, or measures with the JAX that runs this and writes both files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablation")
    parser.add_argument("part", nargs="?", choices=list(PARTS), help="one table; both without")
    parser.add_argument("--count", action="store_true", help="print how many numbers there are")
    chosen = parser.parse_args(arguments)
    if chosen.count:
        print(*_count_lines(counts()), sep="\n")
        return
    deviceless.prepare()
    for part in [chosen.part] if chosen.part else PARTS:
        folder, cases, compared = PARTS[part]
        rows = []
        for row in _measured(folder, cases(), compared):
            rows.append(row)
            BENCHMARK.write(**BENCHMARK.before() | {part: rows, "numbers": counts()})


def changes(folder: str) -> Iterator[Change]:
    """What the tuned numbers of a folder are changed to, one at a time."""
    for number in tuned():
        if number.file.startswith(folder) and not NOT_SHOWN.search(number.key):
            value = _value(number)
            if isinstance(value, bool):
                yield Change(number, "off" if value else "on", not value)
                continue
            for what, factor in (("half", 0.5), ("twice", 2.0)):
                yield Change(number, what, _times(value, factor))


def _measured(
    folder: str, cases: list[Callable[[], Any]], compared: Callable[[list[Any]], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    base = [case() for case in cases]
    yield {"name": "as it is", "what": "", "changed": 0, **compared(base)}
    for change in changes(folder):
        row: dict[str, Any] = {"name": change.number.key, "what": change.what}
        with change.made():
            try:
                found = [case() for case in cases]
            except Exception as error:  # a number that must not be so
                row |= {"changed": len(cases), "fails": type(error).__name__}
            else:
                changed = sum(now != before for now, before in zip(found, base, strict=True))
                row |= {"changed": changed, **compared(found)}
        print(row, flush=True)
        yield row


def _model_cases() -> list[Callable[[], Any]]:
    """Predictions, as ratios to XLA's memory."""
    report = json.loads((RESULTS / "liveness_error.json").read_text("utf-8"))
    known = {
        (program["title"], form["form"]): form["temp_bytes"]
        for program in report[jax.__version__]["programs"]
        for form in program["forms"]
    }
    sharding, target = H100.placement(), targets.load("h100_sxm")
    cases = []
    for subject in H100.programs.values():
        for form in FORMS:
            lowered = subject.lower(None if form == OFF else form, sharding)
            module = clone_module(lowered.compiler_ir())
            Pipeline.parse(PREPARATION).run(module, target=target)
            cases.append(_prediction(module, known[subject.title, form]))
    return cases


def _prediction(module: ir.Module, real_bytes: int) -> Callable[[], float]:
    def case() -> float:
        with module.context:
            return predict(module, rules=XLA_GPU).temp_bytes / real_bytes

    return case


def _errors(ratios: Figures) -> dict[str, Any]:
    errors = [abs(ratio - 1) for ratio in ratios]
    return {
        "mean": statistics.mean(errors),
        "median": statistics.median(errors),
        "off": sum(error > OFF_BY for error in errors),
    }


def _plan_cases() -> list[Callable[[], Any]]:
    """Plans: their memory, added seconds and compiles."""
    target = targets.load("h100_sxm")
    modules = [subject.lower(None, None).compiler_ir() for subject in PLANNED.values()]

    def case(module: ir.Module, spec: str) -> Callable[[], Any]:
        pipeline = Pipeline.parse(spec)

        def planned() -> tuple[int, float, int]:
            earlier = dry_run(pipeline, module, target).attempts
            read = clone_module(module)
            runs = pipeline.run(read, target=target, attempts=earlier).runs
            record = next(run.record for run in runs if run.record is not None)
            assert record.prediction is not None
            return record.prediction.temp_bytes, record.cost, len(earlier) + 1

        return planned

    return [case(module, spec) for module in modules for spec in SPECS]


def _planned(found: list[tuple[int, float, int]]) -> dict[str, Any]:
    return {
        "bytes": sum(each[0] for each in found),
        "added_s": sum(each[1] for each in found),
        "compiles": sum(each[2] for each in found),
    }


PARTS: dict[str, tuple[str, Callable[[], list[Callable[[], Any]]], Callable[..., Any]]] = {
    "model": ("passes/analysis/memory_model", _model_cases, _errors),
    "plans": ("passes/planner", _plan_cases, _planned),
}
"""By name, the folder of the numbers, what is computed with each, and the figures of a row."""


def _module_of(number: Number) -> Any:
    path = number.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return importlib.import_module(path if path.startswith("hloom") else f"hloom.{path}")


def _value(number: Number) -> Any:
    if number.file == RULES and "." in number.name:
        return getattr(XLA_GPU, number.name.split(".")[1])
    return getattr(_module_of(number), number.name)


def _holders(number: Number) -> Iterator[tuple[Any, str, Any]]:
    """Where a number is: the rules of GPUs, or its module and those that import it."""
    value = _value(number)
    if "." in number.name:
        yield GpuRules, number.name.split(".")[1], value
        return
    owner = _module_of(number)
    yield owner, number.name, value
    if number.name.startswith("_"):
        return
    for module in list(sys.modules.values()):
        has_it = vars(module).get(number.name) is value and module is not owner
        if has_it and module.__name__.startswith("hloom.") and module.__name__ not in _own(number):
            yield module, number.name, value


def _own(number: Number) -> set[str]:
    """The modules that define a number of that name themselves."""
    return {_module_of(each).__name__ for each in tuned() if each.name == number.name}


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, tuple):
        return tuple(_times(each, factor) for each in value)
    if isinstance(value, float) and 0.5 < value < 2:
        return 1 + (value - 1) * factor
    return type(value)(value * factor)


def _count_lines(by_folder: dict[str, dict[str, int]]) -> Iterator[str]:
    for folder, kinds in by_folder.items():
        yield f"{folder}: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    yield f"tuned in all: {sum(kinds['tuned'] for kinds in by_folder.values())}"


def _optional(key: str, form: str) -> Callable[[Any], str]:
    return lambda row: figure(key, form)(row) if key in row else row.get("fails", "")


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    first: Columns = {"number": text("name"), "changed to": text("what")}
    model = {
        "predictions that change": figure("changed", "d"),
        "mean error": _optional("mean", ".2%"),
        "median": _optional("median", ".2%"),
        f"off by more than {OFF_BY:.0%}": _optional("off", "d"),
    }
    plans = {
        "plans that change": figure("changed", "d"),
        "MiB": lambda row: f"{row['bytes'] / 2**20:.1f}" if "bytes" in row else row["fails"],
        "added ms": lambda row: f"{row['added_s'] * 1e3:.3f}" if "added_s" in row else "",
        "compiles": _optional("compiles", "d"),
    }
    titles = {"model": "the memory model", "plans": "the planner"}
    for part, columns in (("model", model), ("plans", plans)):
        if part in entry:
            title = f"## jax {version}: {titles[part]}"
            yield from section(title, {**first, **columns}, entry[part], names=2)
    yield ""
    yield "Numbers: " + "; ".join(_count_lines(entry["numbers"])) + "."


BENCHMARK = Benchmark(
    "ablation",
    "ablation",
    "What tuned numbers are worth",
    "Predictions of temporary memory for an H100 beside XLA's, and plans of three programs by the "
    "model alone, with one number halved or doubled, or one rule switched. In a row where nothing "
    "changes these programs do not need the number; that is no proof that no program does. A "
    "number without a row was not measured: benchmarks/ablation/without_row.txt.",
    _tables,
)


if __name__ == "__main__":
    main()
