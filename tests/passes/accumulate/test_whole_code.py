"""Code that works on whole values beside a batch is done once, outside of the loops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from support.flows.runs import compiled, lowered
from support.flows.steps import FlowStep
from support.flows.whole_code import WHOLE_CODE, a_scan_that_carries_the_key
from support.modules import module_after
from support.results import assert_allclose

import hloom
from hloom import targets
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom_tools import opt

pytestmark = pytest.mark.long

Make = Callable[[], FlowStep]

FOUR = "accumulate{microbatches=4 phases=16}"
UNEVEN = "accumulate{microbatches=3 phases=16}"

FIT = "fit{budget=min moves=recompute+accumulate min_bytes=0}"

SPECS = ["accumulate{budget=90%}", "accumulate{budget=min}", FIT, "chunk{min_bytes=1 chunks=3}"]

ONE_LOOP = {name: make for name, make in WHOLE_CODE.items() if make().phases == 1}

every_program = pytest.mark.parametrize("make", WHOLE_CODE.values(), ids=WHOLE_CODE)
every_one_loop = pytest.mark.parametrize("make", ONE_LOOP.values(), ids=ONE_LOOP)


def assert_close(got: Any, wanted: Any) -> None:
    assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@every_program
def test_the_same_in_microbatches(make: Make) -> None:
    step = make()
    program = jax.jit(step.step).lower(*step.arguments)
    wanted = program.compile(compiler_options={"hloom": "off"})(*step.arguments)
    for spec in (FOUR, UNEVEN):
        got = program.compile(compiler_options={"hloom": spec})(*step.arguments)
        assert_close(got, wanted)
        [record] = [run for run in hloom.records()[-1].runs if run.name == "accumulate"]
        assert f"{step.phases} loop" in record.summary


@every_one_loop
def test_nothing_whole_is_done_with_each_microbatch(make: Make) -> None:
    """But for what the user's own loop over layers has in its body."""
    step = make()
    jax.jit(step.step, compiler_options={"hloom": FOUR})(*step.arguments)
    added = hloom.records()[-1].added_work
    assert added < 0.04, f"{added:.1%} more FLOPs"


@pytest.mark.parametrize("spec", SPECS)
@every_one_loop
def test_other_passes_and_budgets(make: Make, spec: str) -> None:
    step = make()
    program = jax.jit(step.step).lower(*step.arguments)
    wanted = program.compile(compiler_options={"hloom": "off"})(*step.arguments)
    assert_close(program.compile(compiler_options={"hloom": spec})(*step.arguments), wanted)


@every_program
def test_planned_for_an_h100(make: Make) -> None:
    """As a CPU lowers it, which it then runs, and as an H100 does."""
    step = make()
    module = lowered(step.step, *step.arguments)
    wanted, h100 = compiled(module, step.leaves), targets.load("h100_sxm")
    for spec in (FOUR, FIT):
        planned = module_after(module, spec, h100)
        assert_close(compiled(planned, step.leaves), wanted)
    traced = jax.jit(step.step).trace(*step.arguments)
    own = clone_module(traced.lower(lowering_platforms=("cuda",)).compiler_ir())
    assert Pipeline.parse(FOUR).run(own, target=h100).changed


@every_one_loop
def test_from_inside_of_a_shard_map(make: Make) -> None:
    step = make()
    mesh = Mesh(np.asarray(jax.devices()), ("d",))
    others = len(step.arguments) - step.batches
    given = (*[PartitionSpec()] * others, *[PartitionSpec("d")] * step.batches)

    def summed(gradients: Callable[..., Any]) -> Callable[..., Any]:
        def on_a_device(*arguments: Any) -> Any:
            return jax.lax.psum(gradients(*arguments), "d")

        return jax.shard_map(
            on_a_device, mesh=mesh, in_specs=given, out_specs=PartitionSpec(), check_vma=False
        )

    program = jax.jit(partial(step.step, through=summed)).lower(*step.arguments)
    wanted = program.compile(compiler_options={"hloom": "off"})(*step.arguments)
    for spec in ("accumulate{microbatches=4}", FIT):
        assert_close(program.compile(compiler_options={"hloom": spec})(*step.arguments), wanted)


@pytest.mark.filterwarnings("ignore:os.fork", "ignore:.*use of fork")
def test_a_module_by_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    step = a_scan_that_carries_the_key()
    file = tmp_path / "step.mlir"
    module = jax.jit(step.step).lower(*step.arguments).compiler_ir()
    file.write_text(module.operation.get_asm(enable_debug_info=True))
    assert opt.main([str(file), "-p", FOUR]) == 0
    assert "stablehlo.while" in capfd.readouterr().out


def test_what_a_scan_carries_beside_the_data_is_computed_before() -> None:
    """The key and the counter alone."""
    step = a_scan_that_carries_the_key()
    module = lowered(step.step, *step.arguments)
    Pipeline.parse(FOUR).run(module, target=targets.load("cpu"))
    body = walk.entry_function(module).regions[0].blocks[0]
    loops = [view.operation for view in body.operations if view.operation.name.endswith("while")]
    types = [[str(result.type) for result in loop.results] for loop in loops]
    assert types[0] == ["tensor<i32>", "tensor<2xui32>"]
    assert not any("256x8" in type_ for type_ in types[0])
