"""What tuned numbers are worth: predictions and plans with a number halved, doubled or switched.

    python -m benchmarks.ablation --count    (how many numbers there are, by folder; a second)
    python -m benchmarks.ablation            (needs the extra cuda13; no GPU; compiles nothing)
    python -m benchmarks.ablation search     (or another of the tables; then names of numbers)

The memory model's rules and numbers: predictions beside XLA's figures that `liveness_error` keeps.
The planner's and the passes': what is planned for budgets with a stand-in for XLA, program by
program, until one changes. Families of candidates and rules of the search are switched off. A
number next to 1 has its distance from 1 halved and doubled. Writes benchmarks/results/ablation.json
after each row, with one entry for each version of JAX it was run with, and ablation.md, the same as
tables.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax.extend.mlir import ir

from benchmarks.ablation import plans
from benchmarks.ablation.numbers import RULES, Number, counts, tuned
from benchmarks.common.measure import Benchmark, Columns, section, text
from benchmarks.common.tables import RESULTS
from benchmarks.frontier.yardsticks import H100
from benchmarks.liveness_error import OFF, PREPARATION
from benchmarks.programs import activations
from hloom import targets
from hloom.passes.analysis.memory_model.memory_rules import XLA_GPU, GpuRules
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir.clone import clone_module
from hloom.targets import deviceless

FORMS = (OFF, "dots_with_no_batch_dims_saveable")
"""The forms of each program that are predicted."""

OFF_BY = 0.05
"""The error from which a prediction counts as off."""

Cases = list[Callable[[], Any]]

NOT_SHOWN = re.compile(
    r"\.(exchanged|latency_hiding|tpu|tiles)\.|hides_latency|makes_zeros_early"
    r"|candidates\.(_PRICES_PER_DOUBLING|_LOWEST|_HIGHEST|_LAST|STEPS|PARTS)$"
)
"""Numbers of meshes and TPUs, which no program here is for, and numbers from which others are
computed on import, which a change at run time does not reach."""


@dataclass(frozen=True)
class Part:
    """A table.

    Attributes:
      title: what it shows.
      files: those whose numbers are changed.
      programs: by program, what is computed with a number of a file, the quickest first: a row ends
        with the first program in which something changes.
      compared: the figures of a row.
    """

    title: str
    files: re.Pattern[str]
    programs: Callable[[str], Mapping[str, Cases]]
    compared: Callable[[list[Any]], dict[str, Any]]


@dataclass(frozen=True)
class Change:
    """A change to the product, in a context.

    Attributes:
      name: the number, or the rule.
      what: what is done with it.
      file: of the number; empty for a rule.
      made: makes the change, and takes it back.
    """

    name: str
    what: str
    file: str
    made: Callable[[], contextlib.AbstractContextManager[None]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Counts, or measures with the JAX that runs this and writes both files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablation")
    parser.add_argument("part", nargs="?", choices=list(PARTS), help="one table; all without")
    parser.add_argument("names", nargs="*", help="parts of numbers' names; all numbers without")
    parser.add_argument("--count", action="store_true", help="print how many numbers there are")
    chosen = parser.parse_args(arguments)
    if chosen.count:
        print(*_count_lines(counts()), sep="\n")
        return
    deviceless.prepare()
    for part in [chosen.part] if chosen.part else PARTS:
        for row in _measured(PARTS[part], part, chosen.names):
            print(row, flush=True)
            before = BENCHMARK.before()
            kept = [each for each in before.get(part, []) if not _is_of(each, row)]
            BENCHMARK.write(**before | {part: [*kept, row], "numbers": counts()})


def _is_of(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(row["name"] == other["name"] and row["what"] == other["what"])


def changes(part: Part, names: Sequence[str] = ()) -> Iterator[Change]:
    """What the tuned numbers of a part are changed to, one at a time, and the rules of the search
    that are switched off."""
    if part is PARTS["families"]:
        for name, made in plans.families():
            if not names or any(each in name for each in names):
                yield Change(name, "off", "", made)
        return
    for number in tuned():
        if not part.files.search(number.file) or NOT_SHOWN.search(number.key):
            continue
        if names and not any(name in number.key for name in names):
            continue
        value = _value(number)
        values: dict[str, Any] = {"off" if value else "on": not value}
        if not isinstance(value, bool):
            values = {"half": _times(value, 0.5), "twice": _times(value, 2.0)}
        for what, other in values.items():
            yield Change(number.key, what, number.file, partial(_made, number, other))


def _measured(part: Part, key: str, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    base: dict[str, list[Any]] = {}
    for change in changes(part, names):
        row: dict[str, Any] = {"name": change.name, "what": change.what, "changed": 0, "of": 0}
        for program, cases in part.programs(change.file).items():
            mark = f"{change.file if key == 'passes' else ''}{program}"
            if mark not in base:
                base[mark] = [case() for case in cases]
            with change.made():
                try:
                    found = [case() for case in cases]
                except Exception as error:  # a number that must not be so
                    row |= {"changed": len(cases), "of": len(cases), "program": program}
                    row |= {"fails": type(error).__name__}
                    break
            row["of"] += len(cases)
            row["changed"] = sum(n != b for n, b in zip(found, base[mark], strict=True))
            if row["changed"]:
                row |= {"of": len(cases), "program": program}
                row |= {"before": part.compared(base[mark]), "after": part.compared(found)}
                break
        yield row


@contextlib.contextmanager
def _made(number: Number, value: Any) -> Iterator[None]:
    """Changes a number wherever it was imported, and changes it back; what the functions of its
    module remember is of the other number."""
    holders = list(_holders(number))
    remembering = [
        each for each in vars(_module_of(number)).values() if hasattr(each, "cache_clear")
    ]
    for holder, name, _ in holders:
        setattr(holder, name, value)
    for each in remembering:
        each.cache_clear()
    try:
        yield
    finally:
        for holder, name, before in holders:
            setattr(holder, name, before)
        for each in remembering:
            each.cache_clear()


@functools.cache
def _model_cases() -> list[Callable[[], Any]]:
    """Predictions, as ratios to XLA's memory."""
    report = json.loads((RESULTS / "liveness_error.json").read_text("utf-8"))[jax.__version__]
    known = {
        (program["title"], form["form"]): form["temp_bytes"]
        for program in report["programs"]
        for form in program["forms"]
    }
    alone = {each["title"]: each["temp_bytes"] for each in report["activations"]}
    sharding, target = H100.placement(), targets.load("h100_sxm")
    cases = []
    for subject in H100.programs.values():
        for form in FORMS:
            lowered = subject.lower(None if form == OFF else form, sharding)
            module = clone_module(lowered.compiler_ir())
            Pipeline.parse(PREPARATION).run(module, target=target)
            cases.append(_prediction(module, known[subject.title, form]))
    for title, lowered in activations.lowered(sharding):
        module = clone_module(lowered.compiler_ir())
        Pipeline.parse(PREPARATION).run(module, target=target)
        cases.append(_prediction(module, alone[title]))
    return cases


def _prediction(module: ir.Module, real_bytes: int) -> Callable[[], float]:
    def case() -> float:
        with module.context:
            return predict(module, rules=XLA_GPU).temp_bytes / real_bytes

    return case


def _errors(ratios: list[float]) -> dict[str, Any]:
    errors = [abs(ratio - 1) for ratio in ratios]
    return {
        "mean": statistics.mean(errors),
        "median": statistics.median(errors),
        "off": sum(error > OFF_BY for error in errors),
    }


def _planned(_: str) -> dict[str, Cases]:
    return {name: plans.plan_cases(name, fresh=False) for name in plans.PLANNED}


def _planned_afresh(_: str) -> dict[str, Cases]:
    return {name: plans.plan_cases(name, fresh=True) for name in plans.PLANNED}


def _of_passes(file: str) -> dict[str, Cases]:
    folder = file.split("/")[1].removesuffix(".py")
    return plans.pass_cases(folder)


PARTS: dict[str, Part] = {
    "model": Part(
        "the memory model",
        re.compile("^passes/analysis/memory_model"),
        lambda _: {"all": _model_cases()},
        _errors,
    ),
    "families": Part(
        "families of candidates and rules of the search",
        re.compile("$^"),
        _planned,
        plans.figures,
    ),
    "search": Part(
        "the search",
        re.compile(
            r"^passes/(planner/(__init__|aim|comparison|loop|price_search|search|moves|plan|model"
            r"|uniform)|budgeted|framework/feedback)\.py"
        ),
        _planned,
        plans.figures,
    ),
    "estimates": Part(
        "what estimates and plans are computed from",
        re.compile(
            r"^passes/(planner/machine/|analysis/(budgeted_cut|constants|cost|kernels|pricing"
            r"|program|loops/)|recompute/)"
        ),
        _planned_afresh,
        plans.figures,
    ),
    "passes": Part(
        "the passes",
        re.compile(f"^passes/({'|'.join(plans.SPECS)})[./]"),
        _of_passes,
        lambda _: {},
    ),
}
"""By name, the tables."""


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


def _figures(row: Any) -> str:
    if "fails" in row:
        return str(row["fails"])
    before, after = row.get("before", {}), row.get("after", {})
    return ", ".join(
        f"{_FIGURES[name].format(before[name])} → {_FIGURES[name].format(now)}"
        for name, now in after.items()
        if now != before[name]
    )


_FIGURES = {
    "mean": "mean error {:.2%}",
    "median": "median {:.2%}",
    "off": "off {}",
    "held": "held {}",
    "added": "added {:.2%}",
    "compiles": "compiles {}",
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    columns: Columns = {
        "number": text("name"),
        "changed to": text("what"),
        "changes": lambda row: f"{row['changed']} of {row['of']}",
        "in": lambda row: row.get("program", ""),
        "figures": _figures,
    }
    for key, part in PARTS.items():
        if key in entry:
            yield from section(f"## jax {version}: {part.title}", columns, entry[key], names=5)
    yield ""
    yield "Numbers: " + "; ".join(_count_lines(entry["numbers"])) + "."


BENCHMARK = Benchmark(
    "ablation",
    "ablation",
    "What tuned numbers are worth",
    "Predictions of temporary memory for an H100 beside XLA's, plans of `fit` for budgets, and "
    "what passes make of programs, with one number halved or doubled, or one rule switched. For "
    "XLA stands the model, or the model times errors that the frontier's compiles had, or times "
    "1.8 where something is recomputed. A row ends with the first program in which something "
    "changes, and has its figures before and after: budgets held, added time, compiles. Rows of "
    "three cases are older: three programs at 30 %. In a row where nothing changes these "
    "programs do not need the number; that is no proof that no program does. Numbers that were "
    "not measured stand in benchmarks/ablation/without_row.txt.",
    _tables,
)


if __name__ == "__main__":
    main()
