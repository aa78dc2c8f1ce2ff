"""Passes that do nothing on a platform: their plan is empty there, and says why in one line."""

from __future__ import annotations

import dataclasses
import io
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import jax
import numpy as np
import pytest
from jax.extend.mlir import ir
from support import registering
from support import toy_passes as toy
from support.log_streams import shown_on

import hloom
from hloom import policy, targets
from hloom._jax.modules import make_context
from hloom.dumps.read.module import PlanFile
from hloom.passes.framework import registry
from hloom.passes.framework.base import OTHERS
from hloom.passes.framework.feedback import MeasuredPass
from hloom.passes.framework.pipeline import Pipeline, PipelineResult
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from hloom_tools.document.sources import Sources
from hloom_tools.passes_doc import markdown
from hloom_tools.report.sections import plan_sections, without_tables


@dataclasses.dataclass(frozen=True)
class NotThere(toy.ReplaceTwo):
    """Replaces every constant 2.0, on a CPU alone."""

    name: ClassVar[str] = "not-there"
    example: ClassVar[str] = "not-there"
    not_on: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"cpu": "", "tpu": "it has other constants", OTHERS: "it has none"}
    )


_toys = registering(NotThere, toy.ReplaceTwo)


def step(x: jax.Array) -> jax.Array:
    return (x @ x) * 2.0


X = np.ones((4, 4), np.float32)


def run_on(platform: str, spec: str, module: ir.Module | None = None) -> PipelineResult:
    clone = clone_module(module or jax.jit(step).lower(X).compiler_ir())
    before = str(clone)
    result = Pipeline.parse(spec).run(clone, target=Target(platform=platform))
    assert (str(clone) == before) == (not result.changed)
    return result


@pytest.mark.parametrize(
    ("platform", "summary"),
    [
        ("cpu", "1 operations"),
        ("tpu", "does nothing on a TPU: it has other constants"),
        ("cuda", "does nothing on a CUDA GPU: it has none"),
        ("abacus", "does nothing on abacus: it has none"),
    ],
)
def test_the_reason_of_a_platform_is_the_plan(platform: str, summary: str) -> None:
    [run] = run_on(platform, "not-there").runs
    assert run.summary == summary
    assert run.empty == (platform != "cpu")
    assert run.effect == ("" if run.empty else summary)
    assert not run.refusal


def test_no_plan_is_asked_for_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NotThere, "plan", lambda *_: pytest.fail("it was asked"))
    assert not run_on("tpu", "not-there").changed


def test_other_passes_of_the_pipeline_act() -> None:
    result = run_on("tpu", "not-there,replace-two,not-there")
    assert [run.empty for run in result.runs] == [True, False, True]


def _idle_on_cpus() -> list[str]:
    return [
        step.name
        for step in registry.all_passes()
        if issubclass(step, MeasuredPass) and step.nothing_on("cpu")
    ]


@pytest.mark.parametrize("before", ["", "one-hot,", "remat,"])
@pytest.mark.parametrize("name", _idle_on_cpus())
def test_a_measured_pass_compiles_where_it_does_nothing(
    name: str, before: str, new_records: Callable[[], tuple[hloom.CompileRecord, ...]]
) -> None:
    """Nothing is planned, so that there is nothing to measure either, in strict mode too."""
    spec = f"{before}{name}"
    made = jax.jit(lambda x: (x @ x) * 5.0, compiler_options={"hloom": spec})(X)
    assert float(made[0, 0]) == 20.0
    [record] = new_records()
    assert record.runs[-1].summary.startswith("does nothing on a CPU: ")
    assert (record.compiles, record.changed, record.fell_back) == (1, False, None)


def test_what_does_nothing_decides_on_no_attempts() -> None:
    for spec, platform, name in (
        ("remat,uninitialized-stacks", "cuda", "uninitialized-stacks"),
        ("remat,uninitialized-stacks", "cpu", "remat"),
        ("uninitialized-stacks", "tpu", None),
    ):
        found = Pipeline.parse(spec).driver(platform)
        assert (None if found is None else found[1].name) == name


COLLECTIVE_KERNEL = """
module @jit_f attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=4]>
  func.func public @main(%x: tensor<16xf32>) -> tensor<16xf32> {
    %0 = sdy.manual_computation(%x)
        in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
        manual_axes={"x"} (%part: tensor<4xf32>) {
      %r = stablehlo.custom_call @k(%part) {hloom.collective = "entry"}
          : (tensor<4xf32>) -> tensor<4xf32>
      sdy.return %r : tensor<4xf32>
    } : (tensor<16xf32>) -> tensor<16xf32>
    return %0 : tensor<16xf32>
  }
}
"""
CHAIN = """
module @jit_f {
  func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
      : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %1 = stablehlo.tanh %0 : tensor<8x8xf32>
    return %1 : tensor<8x8xf32>
  }
}
"""


@pytest.mark.parametrize(
    ("spec", "text", "acts_on", "not_on"),
    [
        ("barriers", COLLECTIVE_KERNEL, ("cpu", "cuda"), ("tpu",)),
        ("capture{min_ops=1}", CHAIN, ("cuda",), ("cpu", "tpu", "rocm")),
    ],
)
def test_passes_for_other_devices_do_nothing_and_say_so(
    spec: str, text: str, acts_on: tuple[str, ...], not_on: tuple[str, ...]
) -> None:
    module = ir.Module.parse(text, make_context())
    for platform in acts_on:
        assert not run_on(platform, spec, module).runs[-1].empty
    for platform in not_on:
        last = run_on(platform, spec, module).runs[-1]
        assert last.empty
        assert last.summary.startswith("does nothing on ")
        assert "\n" not in last.summary


@pytest.mark.parametrize("platform", ["cpu", "tpu", "rocm"])
def test_stacks_go_to_the_host_of_a_cuda_gpu_alone(platform: str) -> None:
    # Even where the link to the host is known.
    target = dataclasses.replace(targets.load("h100_sxm"), platform=platform)
    module = jax.jit(step).lower(X).compiler_ir()
    *_, run = Pipeline.parse("offload").run(clone_module(module), target=target).runs
    assert run.summary.startswith("does nothing on ")


@pytest.mark.usefixtures("fresh_policy")
def test_the_log_says_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = shown_on(io.StringIO(), monkeypatch)
    monkeypatch.setattr(NotThere, "not_on", {"cpu": "it has other constants"})
    for factor in (3.0, 4.0):
        jax.jit(lambda x, factor=factor: x * factor, compiler_options={"hloom": "not-there"})(X)
    [line] = [line for line in shown.getvalue().splitlines() if "not-there" in line]
    assert line == "hloom: 'not-there' does nothing on a CPU: it has other constants"
    assert hloom.records()[-1].runs[-1].summary in line


@pytest.fixture
def fresh_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_warned", set())


def test_hloom_opt_says_it(tmp_path: Path) -> None:
    file = tmp_path / "module.mlir"
    file.write_text(COLLECTIVE_KERNEL)
    words = ["opt", str(file), "-p", "barriers,capture", "--target", "v5p"]
    script = "import sys; from hloom_tools import opt; sys.exit(opt.main(sys.argv[2:]))"
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, check=True
    )
    assert "hloom.barrier" not in done.stdout
    said = re.findall("remark: (.*)", done.stderr)
    assert [line.split(" on a TPU: ")[0] for line in said] == [
        "barriers: does nothing",
        "capture: does nothing",
    ]


def test_a_report_has_no_plan_of_it_to_show() -> None:
    nothing = NotThere.nothing_on("tpu")
    plans = [PlanFile("not-there", 1, dict(nothing.to_json()))]
    assert plan_sections(plans, (), Sources({})) == ()
    assert without_tables(plans, ()) == []


def test_the_documentation_says_where() -> None:
    text = markdown()
    assert "On a TPU it does nothing: it has other constants." in text
    assert "On anything but a CPU it does nothing: it has none." in text
