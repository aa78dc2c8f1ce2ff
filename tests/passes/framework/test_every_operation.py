"""Every operation of StableHLO through every pass, by `benchmarks.corpora.run`.

The same script takes StableHLO's own tests, which are too many for a suite. Here is also what it
has to find: passes that fail, die, or are wrong.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from support import ROOT

from benchmarks.corpora import module as corpus_module
from benchmarks.corpora import run
from hloom._jax.modules import make_context
from hloom.passes.framework import registry
from hloom.passes.framework.base import Pass
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir import ops, walk
from hloom_tools.opt import source

FOLDER = ROOT / "tests" / "passes" / "operations"

NEED_QUANTIZED_TYPES = {"stablehlo.uniform_dequantize", "stablehlo.uniform_quantize"}
"""jaxlib has no dialect `quant`, without which their types do not parse."""

OPERATIONS: dict[str, type] = {
    each.OPERATION_NAME: each
    for each in vars(stablehlo).values()
    if isinstance(each, type) and hasattr(each, "OPERATION_NAME")
}
"""Every operation of StableHLO that this jaxlib has."""

Entry = dict[str, Any]


@pytest.fixture(scope="module")
def entries(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, int], Entry]:
    """By file and line what became of the modules whose cases were chosen; of all, without any."""
    out = tmp_path_factory.mktemp("corpus") / "results.json"
    ours = (item for item in request.session.items if item.path == request.path)
    chosen = [item.callspec.id for item in ours if item.originalname == "test_every_pass"]
    command = [sys.executable, "-m", "benchmarks.corpora.run", str(FOLDER), "--out", str(out)]
    command += ["--modules", *chosen] if chosen else []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(out.read_text())
    assert report["counts"]["failures"] == {}
    return {(each["file"], each["line"]): each for each in report["modules"]}


def chunks() -> list[source.SourceChunk]:
    files = sorted(FOLDER.glob("*.mlir"))
    return [
        chunk for file in files for chunk in source.split(source.read(str(file)), at_markers=True)
    ]


def is_known(chunk: source.SourceChunk) -> bool:
    """Whether this jaxlib has what the module needs."""
    needs = re.search(rb"^// needs (.*)$", chunk.data, re.MULTILINE)
    return needs is None or needs[1].decode() in OPERATIONS


@pytest.mark.parametrize(
    "chunk",
    [
        pytest.param(each, id=f"{Path(each.source.name).name}:{each.first_line}")
        for each in chunks()
    ],
)
def test_every_pass(entries: dict[tuple[str, int], Entry], chunk: source.SourceChunk) -> None:
    entry = entries[Path(chunk.source.name).name, chunk.first_line]
    if not is_known(chunk):
        assert "unregistered operation" in entry["rejected"]
        return
    assert entry["rejected"] is None
    assert entry["failures"] == []
    assert entry["runs"] > 0
    why = re.search(rb"^// not interpreted: (.*)$", chunk.data, re.MULTILINE)
    if why is None:
        assert entry["interpreter"] == ""
    else:
        assert why[1].decode() in entry["interpreter"]


def test_the_passes_have_something_to_do(entries: dict[tuple[str, int], Entry]) -> None:
    assert sum(entry["changed"] > 0 for entry in entries.values()) > len(entries) / 2
    assert sum(entry["compared"] for entry in entries.values()) > len(entries) / 2


def test_no_operation_is_left_out() -> None:
    found = set()
    for chunk in filter(is_known, chunks()):
        with make_context() as context:
            module = ir.Module.parse(chunk.data, context)
            found |= {op.name for op in walk.operations(module.operation)}
    assert len(OPERATIONS) > 100
    assert OPERATIONS.keys() - NEED_QUANTIZED_TYPES <= found


def test_every_collective_is_known() -> None:
    found = {
        name
        for name, operation in OPERATIONS.items()
        if hasattr(operation, "replica_groups") or "collective" in name
    }
    assert len(found) >= 7
    assert found <= {name for name in ops.names() if ops.facts_of(name).communicates}


# What the script finds

ADDS = b"""\
func.func @adds(%x: tensor<2xf32>) -> tensor<2xf32> {
  %y = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
  %0 = stablehlo.add %x, %y : tensor<2xf32>
  return %0 : tensor<2xf32>
}
"""


@dataclass(frozen=True)
class Faulty(Pass):
    """Does something to the addition of a module."""

    name: ClassVar[str] = "faulty"
    summary: ClassVar[str] = "is wrong in some way"
    example: ClassVar[str] = "faulty"
    on_plan: ClassVar[Callable[[ir.Operation], None]]
    on_apply: ClassVar[Callable[[ir.Operation], None]]

    def plan(self, module: ir.Module, target: Target) -> FaultyPlan:
        [addition] = [op for op in walk.operations(module.operation) if "add" in op.name]
        type(self).on_plan(addition)
        return FaultyPlan(addition, empty=type(self).on_apply is nothing)

    def apply(self, plan: FaultyPlan) -> None:
        type(self).on_apply(plan.addition)


@dataclass(frozen=True)
class FaultyPlan:
    addition: ir.Operation
    empty: bool

    def summary(self) -> str:
        return ""

    def to_json(self) -> dict[str, object]:
        return {}


def nothing(_: ir.Operation) -> None:
    pass


def subtract(addition: ir.Operation) -> None:
    with ir.InsertionPoint(addition):
        found = stablehlo.subtract(*addition.operands)
    addition.results[0].replace_all_uses_with(found)
    addition.erase()


def fail(_: ir.Operation) -> None:
    raise ValueError("no luck")


_numbers = iter(range(1000))


def number(addition: ir.Operation) -> None:
    addition.attributes["hloom.number"] = ir.IntegerAttr.get(
        ir.IntegerType.get_signless(32), next(_numbers)
    )


def call_something(addition: ir.Operation) -> None:
    with ir.InsertionPoint(addition):
        found = stablehlo.CustomCallOp(
            [addition.results[0].type], list(addition.operands), "something"
        )
    addition.results[0].replace_all_uses_with(found.results[0])


@pytest.mark.filterwarnings("ignore:os.fork", "ignore:.*use of fork")
@pytest.mark.parametrize(
    ("on_plan", "on_apply", "kinds"),
    [
        pytest.param(nothing, subtract, {"results"}, id="wrong"),
        pytest.param(nothing, nothing, set(), id="right"),
        pytest.param(fail, nothing, {"plan"}, id="fails to plan"),
        pytest.param(nothing, fail, {"apply"}, id="fails to apply"),
        pytest.param(nothing, number, {"differs"}, id="differs"),
        pytest.param(number, nothing, {"differs", "empty"}, id="edits while it plans"),
        pytest.param(nothing, lambda _: os.abort(), {"died"}, id="dies"),
        pytest.param(nothing, call_something, {"interpreter"}, id="unknown to the interpreter"),
    ],
)
def test_what_is_wrong_is_found(
    monkeypatch: pytest.MonkeyPatch,
    on_plan: Callable[[ir.Operation], None],
    on_apply: Callable[[ir.Operation], None],
    kinds: set[str],
) -> None:
    monkeypatch.setattr(Faulty, "on_plan", on_plan, raising=False)
    monkeypatch.setattr(Faulty, "on_apply", on_apply, raising=False)
    monkeypatch.setattr(run, "specs", lambda: ("faulty",))
    modules = [(f"{n}.mlir", source.SourceChunk(source.Source("", ADDS), ADDS)) for n in range(2)]
    with registry.registered(Faulty):
        found = list(run.run_isolated(modules, lambda _: None))
    assert [entry["file"] for entry in found] == ["0.mlir", "1.mlir"]
    for entry in found:
        assert {failure["kind"] for failure in entry["failures"]} == kinds
        assert {failure["spec"] for failure in entry["failures"]} <= {"faulty", ""}


def test_every_pass_is_among_the_specs() -> None:
    assert {each.name for each in registry.all_passes()} <= {
        step.name for spec in corpus_module.specs() for step in Pipeline.parse(spec).steps()
    }


def test_checks_become_calls() -> None:
    text = b"""\
  check.expect_eq_const %0, dense<[1,
    2]> : tensor<2xi32>
  check.expect_eq %0, %1 : tensor<2xi32>
  check.expect_almost_eq %2#0, %3, tol : tensor<2xf32>, tensor<2xf32>
"""
    assert corpus_module.with_checks_as_calls(text).decode() == (
        "  %hloom_expected_1 = stablehlo.constant dense<[1,\n    2]> : tensor<2xi32>\n"
        "  stablehlo.custom_call @check.expect_eq(%0, %hloom_expected_1) {has_side_effect = true} "
        ": (tensor<2xi32>, tensor<2xi32>) -> ()\n"
        "  stablehlo.custom_call @check.expect_eq(%0, %1) {has_side_effect = true} "
        ": (tensor<2xi32>, tensor<2xi32>) -> ()\n"
        "  stablehlo.custom_call @check.expect_almost_eq(%2#0, %3) {has_side_effect = true} "
        ": (tensor<2xf32>, tensor<2xf32>) -> ()\n"
    )
