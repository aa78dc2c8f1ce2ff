"""Stacks of scans on the host: which, at what price, and that results stay the same."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.devices.meshes import mesh_of
from support.flows.runs import compiled
from support.modules import module_after
from support.programs import PROGRAMS
from support.results import assert_allclose
from support.scan_programs import SCANS

from hloom import targets
from hloom.passes.analysis.memory_model.profile import memory_profile
from hloom.passes.analysis.memory_model.scheduled import scheduled_temp_bytes
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.pipeline import Pipeline, PipelineResult
from hloom.passes.framework.tables import facts_of, rows_of
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from hloom.passes.offload.candidates import exposed_s, exposed_seconds, offloadable
from hloom.passes.offload.plan import plan_offload
from hloom.passes.offload.rewrite import apply_offload

H100 = targets.load("h100_sxm")
ALL = "offload{min_bytes=1 exposed=1e9}"
"""Every stack that may go to the host, whatever it costs."""


def passed(
    module: ir.Module, spec: str = ALL, target: Target = H100
) -> tuple[ir.Module, PipelineResult]:
    clone = clone_module(module)
    result = Pipeline.parse(spec).run(clone, target=target)
    assert clone.operation.verify()
    return clone, result


def put_on_host(module: ir.Module, ids: set[str]) -> ir.Module:
    """A clone of an inlined module with these stacks on the host."""
    changed = clone_module(module)
    found = offloadable(changed, H100, 1)
    part = plan_offload(found, found.candidates).restricted_to(ids)
    assert {one.id for one in part.decided} == ids
    with changed.context, ir.Location.unknown():
        apply_offload(part.decided)
    assert changed.operation.verify()
    return changed


def assert_same(changed: ir.Module, module: ir.Module, arguments: Any) -> None:
    leaves = jax.tree.leaves(arguments)
    assert_allclose(compiled(changed, leaves), compiled(module, leaves), rtol=2e-6, atol=1e-7)


def scanned(layers: int = 6, width: int = 16, tokens: int = 8, **scan: Any) -> Any:
    """The gradient of layers in a scan that stack the input, a tanh, and more; and arguments."""

    def layer(x: Any, w: Any) -> tuple[Any, None]:
        y = jnp.tanh(x @ w)
        return jnp.sin(y @ w) * y, None

    def loss(ws: Any, x: Any) -> Any:
        return jax.lax.scan(layer, x, ws, **scan)[0].sum()

    drawn = np.random.default_rng(0)
    ws = drawn.normal(size=(layers, width, width)).astype(np.float32) / width**0.5
    x = drawn.normal(size=(tokens, width)).astype(np.float32)
    return jax.value_and_grad(loss, (0, 1)), (ws, x)


def lowered(function: Any, arguments: Any) -> ir.Module:
    return jax.jit(function, keep_unused=True).lower(*arguments).compiler_ir()


def shaped(layers: int, width: int, tokens: int) -> ir.Module:
    """`scanned` in bfloat16, to be planned for only."""
    function, _ = scanned(2)
    ws = jax.ShapeDtypeStruct((layers, width, width), "bfloat16")
    return lowered(function, (ws, jax.ShapeDtypeStruct((tokens, width), "bfloat16")))


LOOPS = (
    "scanned_mlp",
    "reversed_scan_with_outputs",
    "scan_that_uses_its_counter",
    "two_levels",
    "two_levels_outer_reversed",
    "two_loops_inside",
    "carries_of_many_types",
    "sorting_and_gathering_inside",
    "second_order_through_nested_scans",
    "batched_nested_scans",
)


@pytest.mark.parametrize("name", LOOPS)
def test_results_are_the_same(name: str) -> None:
    function, arguments = {**PROGRAMS, **SCANS}[name]()
    module = lowered(function, arguments)
    changed, result = passed(module)
    assert rows_of(result.runs[-1].plan, "Stacks on the host")
    assert_same(changed, module, arguments)


def test_each_stack_may_go_alone() -> None:
    """As `hloom bisect` tries them."""
    function, arguments = scanned()
    module = module_after(lowered(function, arguments), "inline,cse", H100)
    found = offloadable(module, H100, 1)
    plan = plan_offload(found, found.candidates)
    ids = [decision.id for decision in plan.decisions()]
    assert len(ids) == len(set(ids)) == 5
    for id_ in ids:
        changed = put_on_host(module, {id_})
        assert str(changed).count('_xla_buffer_placement = "pinned_host"') == 1
        assert_same(changed, module, arguments)


def test_a_second_run_finds_them_on_the_host() -> None:
    module = lowered(*scanned())
    changed, _ = passed(module)
    text = str(changed)
    again, result = passed(changed, f"cse,{ALL}")
    assert result.runs[-1].empty
    reasons = {left["why"] for left in rows_of(result.runs[-1].plan, "Left as it is")}
    assert reasons == {"it is on the host already"}
    assert str(again).count("annotate_device_placement") == text.count("annotate_device_placement")


def test_only_what_the_loops_hide_goes() -> None:
    """A product takes 2 T D² FLOPs, a slice 2 T D bytes: from some width on it is hidden."""
    wide, narrow = shaped(12, 16384, 4096), shaped(12, 2048, 4096)
    _, result = passed(wide, "offload")
    stacks = rows_of(result.runs[-1].plan, "Stacks on the host")
    assert facts_of(result.runs[-1].plan)["copies that no work hides"] == 0
    assert 1 <= len(stacks) < 5
    assert f"{len(stacks)} stack" in result.runs[-1].summary
    assert "its copies take longer than the work of its loops" in result.runs[-1].summary
    for stack in stacks:
        assert stack["copy of a slice"] == pytest.approx(2 * 4096 * 16384 / 55e9)
    _, result = passed(narrow, "offload")
    assert result.runs[-1].empty
    _, result = passed(narrow, "offload{exposed=100}")
    plan = result.runs[-1].plan
    assert len(rows_of(plan, "Stacks on the host")) == 5
    assert facts_of(plan)["copies that no work hides"] > 0
    assert facts_of(plan)["pinned memory of the host"] == 5 * 12 * 4096 * 2048 * 2


def test_what_copies_expose() -> None:
    assert exposed_s([]) == 0
    assert exposed_s([(1.0, 2.0)]) == 0
    assert exposed_s([(3.0, 2.0)]) == 1
    assert exposed_s([(1.0, 4.0), (1.0, 1.0)]) == 0
    assert exposed_s([(1.0, 1.0), (1.0, 1.0)]) == 1
    assert exposed_s([(2.0, 3.0), (2.0, 1.0)]) == 1


def test_a_faster_link_exposes_less() -> None:
    module = module_after(shaped(12, 4096, 4096), "inline,cse", H100)

    def exposed(bytes_per_s: float) -> float:
        speed = dataclasses.replace(H100.speed, host_bytes_per_s=bytes_per_s)
        target = dataclasses.replace(H100, speed=speed)
        return exposed_seconds(offloadable(module, target, 1).candidates)

    assert exposed(55e9) > exposed(200e9) > exposed(900e9)


@pytest.mark.parametrize(
    ("target", "summary"),
    [
        (Target(), "does nothing on a CPU: its memory is the host's"),
        (
            Target(platform="cuda", name="unknown"),
            "no stack on the host: the bytes a second between unknown and its host are not known",
        ),
    ],
)
def test_a_target_without_a_known_link_is_left_alone(target: Target, summary: str) -> None:
    module = lowered(*scanned())
    _, result = passed(module, ALL, target)
    assert result.runs[-1].empty
    assert result.runs[-1].summary == summary


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("open_loop_to_a_bound", "its loop has no constant trip count"),
        ("outer_loop_of_length_one", "its loop runs once"),
    ],
)
def test_loops_that_stay(name: str, reason: str) -> None:
    function, arguments = SCANS[name]()
    _, result = passed(lowered(function, arguments))
    assert reason in {left["why"] for left in rows_of(result.runs[-1].plan, "Left as it is")}


def test_a_stack_with_several_readers_stays() -> None:
    def loss(ws: Any, x: Any) -> Any:
        def layer(c: Any, w: Any) -> tuple[Any, Any]:
            return jnp.tanh(c @ w), None

        return jax.lax.scan(layer, x, ws)[0].sum()

    def twice(ws: Any, x: Any) -> Any:
        _, pull = jax.vjp(loss, ws, x)
        return pull(1.0), pull(2.0)

    _, arguments = scanned()
    module = lowered(twice, arguments)
    changed, result = passed(module)
    reasons = {left["why"] for left in rows_of(result.runs[-1].plan, "Left as it is")}
    assert reasons == {"several operations read it"}
    assert_same(changed, module, arguments)


def test_the_memory_model_counts_two_slices_of_a_stack() -> None:
    layers = 24
    module = module_after(shaped(layers, 2048, 4096), "inline,cse", H100)
    before = predict(module).temp_bytes
    changed, result = passed(module)
    stack_bytes = facts_of(result.runs[-1].plan)["pinned memory of the host"]
    slices = 2 * stack_bytes / layers
    after = predict(changed).temp_bytes
    assert before - stack_bytes <= after <= before - stack_bytes + slices
    assert max(point.bytes for point in memory_profile(changed).points) == after
    assert scheduled_temp_bytes(changed) <= after + slices


@pytest.mark.parametrize("remat", ["remat{min_bytes=0}", "remat{budget=14KiB min_bytes=0}"])
def test_remat_recomputes_what_is_left(remat: str) -> None:
    """Here the first of five stacks goes to the host: the input of each layer."""
    function, arguments = scanned()
    module = module_after(lowered(function, arguments), "inline,cse", H100)
    placed = put_on_host(module, {"stack 0"})
    changed, result = passed(placed, remat)
    assert len(rows_of(result.runs[-1].plan, "Recomputed rather than kept")) >= 2
    assert str(changed).count('_xla_buffer_placement = "pinned_host"') == 1
    assert_same(changed, module, arguments)


def test_offload_behind_remat() -> None:
    function, arguments = scanned()
    module = lowered(function, arguments)
    changed, result = passed(module, f"remat{{min_bytes=0}},{ALL}")
    assert rows_of(result.runs[-1].plan, "Stacks on the host")
    assert_same(changed, module, arguments)


def test_capture_leaves_its_loops_out_and_says_so() -> None:
    module = lowered(*scanned())
    _, alone = passed(module, "capture{min_ops=1}")
    assert "a copy between device and host" not in alone.runs[-1].summary
    changed, result = passed(module, f"{ALL},capture{{min_ops=1}}")
    assert "2 x a copy between device and host" in result.runs[-1].summary
    text = str(changed)
    assert text.count("stablehlo.while") == 2
    composites = text.split("func.func private")[1:]
    assert composites
    assert all("stablehlo.while" not in part for part in composites)


@pytest.mark.parametrize(
    ("spec", "axes"),
    [(P("data"), AxisType.Auto), (P("data"), AxisType.Explicit), (P(None, "data"), AxisType.Auto)],
)
def test_sharded_stacks(spec: P, axes: AxisType) -> None:
    """Over several devices nothing is taken to be hidden."""
    mesh = mesh_of(axes, data=8)
    function, (ws, x) = scanned()
    arguments = (
        jax.device_put(ws, NamedSharding(mesh, P())),
        jax.device_put(x, NamedSharding(mesh, spec)),
    )
    module = lowered(function, arguments)
    _, result = passed(module, "offload{min_bytes=1}")
    assert result.runs[-1].empty
    changed, result = passed(module)
    assert facts_of(result.runs[-1].plan)["pinned memory of the host"] == 5 * 6 * 8 * 16 * 4 // 8
    step = jax.jit(function, compiler_options={"hloom": "off"})
    wanted = jax.tree.leaves(step(*arguments))
    assert_allclose(compiled(changed, arguments), wanted, rtol=2e-6, atol=1e-6)
