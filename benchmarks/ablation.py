"""What each rule and each number of the memory model is worth: predictions with it changed.

    python -m benchmarks.ablation    (needs the extra cuda13; no GPU; compiles nothing; 15 minutes)

A rule is switched off, a number is halved and doubled. XLA's figures are those that
`benchmarks.liveness_error` and `benchmarks.meshes.partitioned` have kept, of the same version of
JAX. Writes benchmarks/results/ablation.json, which keeps one entry for each version of JAX it was
run with, and ablation.md, the same as tables.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import json
import pkgutil
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jax.extend.mlir import ir
from jax.sharding import AxisType, Mesh

from benchmarks.common.h100 import TARGET
from benchmarks.common.measure import Benchmark, Columns, figure, section, text
from benchmarks.common.subjects import POLICIES
from benchmarks.common.tables import RESULTS
from benchmarks.frontier.yardsticks import H100
from benchmarks.liveness_error import OFF, PREPARATION
from benchmarks.meshes.annotated import PROGRAMS
from benchmarks.meshes.partitioned import MESHES
from benchmarks.programs.sharded import DATA, MODEL
from hloom.passes.analysis import memory_model
from hloom.passes.analysis.device import DeviceView
from hloom.passes.analysis.memory_model import peak
from hloom.passes.analysis.memory_model.memory_rules import XLA_GPU, GpuRules, MemoryRules
from hloom.passes.analysis.memory_model.peak import simulate
from hloom.passes.analysis.memory_model.tracer import trace_block
from hloom.passes.analysis.program import Program
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.spec import parse_spec
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from hloom.targets import deviceless

ROOT = RESULTS.parents[1]
PRODUCT = ("hloom", "hloom_steps", "hloom_tools", "lowering", "passes", "runtime")

_EVERY = 7
"""Of the programs over a mesh every seventh is predicted: each takes Shardy's propagation."""

OF_OTHERS = {"tiles", "tpu", "peak_text", "scheduled"}
"""Modules of the memory model that are not of GPUs, or predict nothing."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A program whose temporary memory XLA has told: prepared for the model."""

    name: str
    module: ir.Module
    temp_bytes: int
    is_sharded: bool


@dataclasses.dataclass(frozen=True)
class Change:
    """A rule or a number, and the model without it."""

    name: str
    what: str
    rules: MemoryRules = XLA_GPU
    made: Callable[[], AbstractContextManager[Any]] = nullcontext


def main() -> None:
    """Measures with the JAX that runs this, and writes both files."""
    deviceless.prepare()
    cases = [*_on_one_device(), *_over_a_mesh()]
    print(f"{len(cases)} programs", flush=True)
    as_it_is = predicted(cases, Change("as it is", ""))
    rows = [_row(cases, as_it_is, Change("as it is", ""), as_it_is)]
    for change in changes():
        found = predicted(cases, change)
        rows.append(_row(cases, as_it_is, change, found))
        print(rows[-1], flush=True)
    print(BENCHMARK.write(rows=rows, numbers=tuned_numbers()))


def changes() -> Iterator[Change]:
    """Every rule of GPUs switched off, every number of the memory model halved and doubled."""
    for name, value in vars(MemoryRules).items():
        now = getattr(XLA_GPU, name)
        if isinstance(value, bool):
            yield Change(name, "on" if not now else "off", _rules(name, not now))
        elif isinstance(value, int):
            yield Change(name, "half", _rules(name, now // 2))
            yield Change(name, "twice", _rules(name, now * 2))
    yield Change("peak._ORDERS", "the first alone", made=_set(peak, "_ORDERS", peak._ORDERS[:1]))
    for found in pkgutil.iter_modules(memory_model.__path__):
        if found.name in OF_OTHERS:
            continue
        module = importlib.import_module(f"{memory_model.__name__}.{found.name}")
        for name, value in list(vars(module).items()):
            if name.isupper() and _is_tuned(value):
                for what, factor in (("half", 0.5), ("twice", 2.0)):
                    yield Change(
                        f"{found.name}.{name}",
                        what,
                        made=_set(module, name, type(value)(value * factor)),
                    )


def predicted(cases: list[Case], change: Change) -> list[int]:
    """The temporary memory of each by the changed model."""
    with change.made():
        return [_temp_bytes(case.module, change.rules) for case in cases]


def tuned_numbers() -> dict[str, int]:
    """By folder at the top, the numbers that stand at the top level of its modules."""
    return {
        folder: sum(
            len(_numbers(ast.parse(file.read_text("utf-8"))))
            for file in (ROOT / folder).rglob("*.py")
            if file.resolve() == file
        )
        for folder in PRODUCT
    }


def _numbers(tree: ast.Module) -> list[ast.expr]:
    """Constants in assignments to names in capitals: 3, -1, 2 ** 20, 16 * 1024, 1 << 62."""
    found: list[ast.expr] = []
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        found += [each for each in values if _is_number(each)]
    return found


def _is_number(value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp):
        return _is_number(value.left) and _is_number(value.right)
    if isinstance(value, ast.UnaryOp):
        return _is_number(value.operand)
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def _is_tuned(value: object) -> bool:
    return type(value) in (int, float) and value not in (0, 1, -1, -2, -3, 1 << 62)


def _rules(name: str, value: object) -> MemoryRules:
    rules: MemoryRules = type("Changed", (GpuRules,), {name: value})()
    return rules


def _set(module: ModuleType, name: str, value: object) -> Callable[[], AbstractContextManager[Any]]:
    @contextmanager
    def made() -> Iterator[None]:
        before = getattr(module, name)
        setattr(module, name, value)
        try:
            yield
        finally:
            setattr(module, name, before)

    return made


def _on_one_device() -> Iterator[Case]:
    entry = _stored("liveness_error")
    known = {
        (program["title"], form["form"]): form["temp_bytes"]
        for program in entry["programs"]
        for form in program["forms"]
    }
    sharding = H100.placement()
    for subject in H100.programs.values():
        for policy in (None, *POLICIES):
            name = subject.title, policy or OFF
            if name in known:
                module = subject.lower(policy, sharding).compiler_ir()
                yield Case(", ".join(name), _prepared(module), known[name], False)


def _over_a_mesh() -> Iterator[Case]:
    known = {
        (row["mesh"], row["program"], row["axes"]): row["xla_temp_bytes"]
        for row in _stored("partitioned_h100")["rows"]
    }
    devices = np.asarray(deviceless.mesh(TARGET, 8).devices).ravel()
    for (mesh_name, title, axes), temp_bytes in list(known.items())[::_EVERY]:
        shape = MESHES[mesh_name]
        types = (getattr(AxisType, axes),) * len(shape)
        mesh = Mesh(devices.reshape(shape), (DATA, MODEL)[: len(shape)], types)
        module = PROGRAMS[title](mesh).compiler_ir()
        yield Case(f"{mesh_name} {title} {axes}", _prepared(module), temp_bytes, True)


def _stored(name: str) -> dict[str, Any]:
    report = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    entry: dict[str, Any] = report[jax.__version__]
    return entry


def _prepared(module: ir.Module) -> ir.Module:
    read = clone_module(module)
    Pipeline(parse_spec(PREPARATION, source="benchmark")).run(read, target=Target("cuda", "cuda"))
    return read


def _temp_bytes(module: ir.Module, rules: MemoryRules) -> int:
    with module.context:
        return simulate(trace_block(Program.of(module, DeviceView.of(module, rules)))).bytes


def _row(cases: list[Case], base: list[int], change: Change, found: list[int]) -> dict[str, Any]:
    row: dict[str, Any] = {"name": change.name, "what": change.what}
    for kind, is_sharded in (("one", False), ("mesh", True)):
        errors = [
            (abs(now / case.temp_bytes - 1), abs(before / case.temp_bytes - 1))
            for case, before, now in zip(cases, base, found, strict=True)
            if case.is_sharded == is_sharded
        ]
        row[kind] = {
            "changed": sum(now != before for now, before in errors),
            "worse": sum(now > before for now, before in errors),
            "median": statistics.median(now for now, _ in errors),
            "mean": statistics.mean(now for now, _ in errors),
        }
    return row


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    columns: Columns = {"rule or number": text("name"), "changed to": text("what")}
    for kind, title in (("one", "one device"), ("mesh", "8 devices")):
        columns = {
            **columns,
            f"{title}: other, of them worse": lambda row, kind=kind: (  # type: ignore[misc]
                f"{row[kind]['changed']} / {row[kind]['worse']}"
            ),
            f"{title}: median error": figure((kind, "median"), ".1%"),
            f"{title}: mean": figure((kind, "mean"), ".1%"),
        }
    yield from section(f"## jax {version}, Python {entry['python']}", columns, entry["rows"])
    numbers = entry["numbers"]
    yield ""
    yield (
        f"Numbers at the top level of modules, tuned or read off: {sum(numbers.values())} ("
        + ", ".join(f"{folder} {count}" for folder, count in numbers.items())
        + ")."
    )


BENCHMARK = Benchmark(
    "ablation",
    "ablation",
    "What each rule of the memory model is worth",
    "Predictions of temporary memory for an H100 beside XLA's figures, with one rule switched off "
    "(or on), or one number halved or doubled: how many predictions change, how many of them for "
    "the worse, and the error of all. A row in which nothing changes is of a rule that these "
    "programs do not need.",
    _tables,
)


if __name__ == "__main__":
    main()
