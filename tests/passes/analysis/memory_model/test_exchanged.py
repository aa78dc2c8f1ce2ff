"""What a device gathers, and what it sums for others, is in the model of its memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from support.devices.meshes import each_kind_of_axes, mesh_of

from hloom.passes.analysis.device import DeviceView
from hloom.passes.analysis.memory_model.memory_rules import PACKED, MemoryRules
from hloom.passes.analysis.memory_model.targets import memory_rules
from hloom.passes.analysis.memory_model.tpu import XLA_TPU
from hloom.passes.analysis.memory_model.tracer import predict, trace_block
from hloom.passes.analysis.program import Program
from hloom.passes.analysis.shardings.exchanged import Exchanged
from hloom.passes.analysis.shardings.shardings import Shardings
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.planner.candidates import TOP
from hloom.passes.planner.model import Model
from hloom.passes.recompute.plan import RematPlan, apply_plan

KIBI = 2**10


def shaped(mesh: Mesh, axes: tuple[str | None, ...], *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(
        shape, "float32", sharding=NamedSharding(mesh, PartitionSpec(*axes))
    )


def held(
    function: Any, *arguments: jax.ShapeDtypeStruct, rules: MemoryRules = PACKED
) -> dict[str, list[int]]:
    """By name the bytes that are held while operations of the main block run."""
    module = jax.jit(function).lower(*arguments).compiler_ir()
    program = Program.of(module, DeviceView.of(module, rules))
    by_name: dict[str, list[int]] = {}
    for op, inner in zip(program.ops, trace_block(program).inner, strict=False):
        by_name.setdefault(op.name.partition(".")[2], []).append(inner)
    return by_name


@pytest.mark.parametrize("rules", [PACKED, XLA_TPU])
def test_weights_are_gathered_together_and_held_to_their_last_readers(rules: MemoryRules) -> None:
    mesh = mesh_of(AxisType.Auto, a=8)
    x = shaped(mesh, ("a", None), 512, 64)
    up, down = shaped(mesh, ("a", None), 64, 128), shaped(mesh, ("a", None), 128, 64)
    layers = held(lambda x, up, down: jnp.tanh(jnp.tanh(x @ up) @ down), x, up, down, rules=rules)
    assert layers["dot_general"] == [64 * KIBI, 32 * KIBI]


@each_kind_of_axes
def test_what_the_program_gathers_itself_is_a_value_of_its_own(axes: AxisType) -> None:
    mesh = mesh_of(axes, a=8)
    whole = NamedSharding(mesh, PartitionSpec())
    move = jax.lax.with_sharding_constraint if axes is AxisType.Auto else jax.reshard
    x, w = shaped(mesh, ("a", None), 512, 64), shaped(mesh, ("a", None), 64, 64)
    found = held(lambda x, w: jnp.tanh(x @ move(w, whole)), x, w)
    assert found["dot_general"] == [0]


def test_gathers_that_depend_on_products_wait() -> None:
    mesh = mesh_of(AxisType.Auto, a=8)
    x, w = shaped(mesh, ("a", None), 512, 64), shaped(mesh, ("a", None), 64, 64)
    found = held(lambda x, w: x @ (w @ w), x, w)
    assert found["dot_general"] == [16 * KIBI, 16 * KIBI]


def test_a_sum_lies_whole_before_it_is_scattered() -> None:
    mesh = mesh_of(AxisType.Auto, a=8)
    x, w = shaped(mesh, ("a", None), 512, 64), shaped(mesh, ("a", None), 64, 64)
    lowered = jax.jit(
        lambda x, w: jnp.tanh(x.T @ x) + w, out_shardings=NamedSharding(mesh, PartitionSpec("a"))
    ).lower(x, w)
    module = lowered.compiler_ir()
    program = Program.of(module, DeviceView.of(module))
    inner = dict(zip(program.names, trace_block(program).inner, strict=False))
    assert inner["stablehlo.dot_general"] == 16 * KIBI


def test_blocks_with_exchanges_are_ordered_once_more() -> None:
    mesh = mesh_of(AxisType.Auto, a=8)
    x, w = shaped(mesh, ("a", None), 512, 64), shaped(mesh, (), 64, 64)

    def is_overlapped(
        function: Any, *arguments: jax.ShapeDtypeStruct, rules: MemoryRules = PACKED
    ) -> list[bool]:
        module = jax.jit(function).lower(*arguments).compiler_ir()
        device = DeviceView.of(module, rules)
        [main] = walk.functions(module)["main"].regions[0].blocks
        bodies = [op.regions[1].blocks[0] for op in main.operations if "while" in op.name]
        return [trace_block(Program(block, device)).is_overlapped for block in (main, *bodies)]

    assert is_overlapped(lambda x, w: x @ w, x, w) == [False]
    assert is_overlapped(lambda x, w: (x.T @ x) @ w, x, w) == [True]
    assert is_overlapped(lambda x, w: (x.T @ x) @ w, x, w, rules=XLA_TPU) == [False]
    looped = is_overlapped(
        lambda x, w: jax.lax.fori_loop(0, 3, lambda _, w: jnp.tanh(x.T @ x @ w), w), x, w
    )
    assert looped == [False, False]


def test_one_device_holds_nothing_of_others() -> None:
    x = jax.ShapeDtypeStruct((64, 64), "float32")
    assert not any(map(sum, held(lambda x: jnp.tanh(x @ x) @ x, x).values()))


def test_clones_read_what_the_original_reads() -> None:
    mesh = mesh_of(AxisType.Auto, a=8)
    x, w = shaped(mesh, ("a", None), 512, 64), shaped(mesh, ("a", None), 64, 64)
    module = jax.jit(lambda x, w: jnp.tanh(x @ w)).lower(x, w).compiler_ir()
    exchanged = Exchanged.of(module)
    [product] = [op for op in walk.operations(module.operation) if "dot_general" in op.name]
    [other] = [op for op in walk.operations(module.operation) if "tanh" in op.name]
    assert exchanged.read_by(product) == (0,)
    with module.context, product.location, ir.InsertionPoint(product):
        clone = product.clone()
        made = exchanged.with_made(
            {clone.results[0]: product.results[0], other.results[0]: product.results[0]}
        )
    assert made.read_by(clone) == (0,)
    assert made.read_by(other) == ()  # it is like the result, and no product


@pytest.mark.parametrize("parts", [2, 8])
def test_a_sum_over_the_axis_that_splits_its_result_counts_once(parts: int) -> None:
    """As a gradient of FSDP: its terms are split by the batch, then the sum itself."""
    mesh = mesh_of(AxisType.Auto, a=parts)
    x = shaped(mesh, ("a", None), 512, 64)
    lowered = jax.jit(
        lambda x: x.T @ x, out_shardings=NamedSharding(mesh, PartitionSpec("a", None))
    ).lower(x)
    module = lowered.compiler_ir()
    [product] = [op for op in walk.operations(module.operation) if "dot_general" in op.name]
    sizes = DeviceView(Shardings.of(module)).sizes
    assert sizes.product_share(product) == 1 / parts
    assert [axis.size for axis in sizes.summed_axes(product)] == [parts]


def test_a_plan_is_estimated_as_its_program_is_read() -> None:
    """What is computed again behind a barrier is gathered and sent again there."""
    mesh, target = mesh_of(AxisType.Auto, a=8), Target("cuda", "cuda")
    x = shaped(mesh, ("a", None), 4096, 64)
    layers = [(shaped(mesh, ("a", None), 64, 256), shaped(mesh, (None, "a"), 256, 64))] * 4

    def loss(layers: Any, x: jax.Array) -> jax.Array:
        for up, down in layers:
            x += jnp.tanh(x @ up) @ (down.T.T * 2)
        return (x**2).mean()

    module = clone_module(jax.jit(jax.grad(loss)).lower(layers, x).compiler_ir())
    Pipeline.parse("inline,cse,free-constants").run(module, target=target)
    held: set[int] = set()
    with module.context, ir.Location.unknown():
        model = Model(module, target, 0)
        for column in model.columns():
            for price in (0, TOP // 3, TOP // 2):
                candidate = dataclasses.replace(column, price=price)
                rewritten = clone_module(module)
                blocks, scans = model.on(rewritten, model.plan(candidate))
                apply_plan(RematPlan(blocks, scans))
                read = predict(rewritten, rules=memory_rules(target))
                assert model.estimate(candidate).temp_bytes == read.temp_bytes
                held.add(read.temp_bytes)
    assert len(held) > 1
