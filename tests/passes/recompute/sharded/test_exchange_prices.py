"""What devices exchange again where an operation is repeated: part of its price."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from support.devices.meshes import each_kind_of_axes, mesh_of

from hloom import targets
from hloom.passes.analysis.device import DeviceView
from hloom.passes.analysis.pricing import NEVER, Pricing, Rates
from hloom.passes.analysis.shardings.exchanges import exchanges_of
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Speed
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom_tools.opt.job import dry_run

H100 = targets.load("h100_sxm")


def shaped(mesh: Mesh, axes: Sequence[str | None], *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(
        shape, "float32", sharding=NamedSharding(mesh, PartitionSpec(*axes))
    )


def priced(function: Any, *arguments: jax.ShapeDtypeStruct) -> tuple[dict[str, float], float]:
    """By name of an operation what exchanges add to its price; and what the exchanges take."""
    module = clone_module(jax.jit(function).lower(*arguments).compiler_ir())
    Pipeline.parse("inline,cse").run(module, target=H100)
    device, speed = DeviceView.of(module), H100.speed
    with_them = Pricing(speed, sizes=device.sizes, exchanged=device.exchanged)
    alone = Pricing(speed, sizes=device.sizes)
    added = {
        op.name: with_them.repeat_seconds(op) - alone.repeat_seconds(op)
        for op in walk.operations(module.operation)
        if op.results and with_them.repeat_seconds(op) != alone.repeat_seconds(op)
    }
    [each] = device.exchanged.exchanges
    return added, (each.seconds(speed) or 0.0) / each.runs


@each_kind_of_axes
def test_a_product_whose_terms_devices_sum_costs_the_sum(axes: AxisType) -> None:
    mesh = mesh_of(axes, a=2, b=4)
    x, w = shaped(mesh, (None, "b"), 8, 64), shaped(mesh, ("b", None), 64, 16)
    out = NamedSharding(mesh, PartitionSpec(None, None))

    def function(x: Any, w: Any) -> Any:
        if axes is AxisType.Explicit:
            return jnp.tanh(jnp.einsum("ab,bc->ac", x, w, out_sharding=out))
        return jnp.tanh(x @ w)

    added, exchange_s = priced(function, x, w)
    name = "sdy.sharding_constraint" if axes is AxisType.Explicit else "stablehlo.dot_general"
    assert added == {name: pytest.approx(exchange_s)}
    assert exchange_s > 0


def test_who_reads_what_is_gathered_costs_the_gather() -> None:
    mesh = mesh_of(AxisType.Auto, a=4)
    x, w = shaped(mesh, ("a", None), 512, 64), shaped(mesh, ("a", None), 64, 64)
    added, exchange_s = priced(lambda x, w: jnp.tanh(x @ w), x, w)
    assert added == {"stablehlo.dot_general": pytest.approx(exchange_s)}


def test_a_layers_weight_costs_its_gather_where_a_constraint_gathers_it() -> None:
    mesh = mesh_of(AxisType.Auto, a=8)
    x, ws = shaped(mesh, ("a", None), 8, 64), shaped(mesh, (None, "a", None), 5, 64, 64)

    def layer(x: Any, w: Any) -> Any:
        whole = NamedSharding(mesh, PartitionSpec())
        return jnp.tanh(x @ jax.lax.with_sharding_constraint(w, whole)), None

    added, exchange_s = priced(lambda x, ws: jax.lax.scan(layer, x, ws)[0], x, ws)
    assert added == {"sdy.sharding_constraint": pytest.approx(exchange_s)}


def test_a_reduction_over_devices_is_not_cheap() -> None:
    mesh = mesh_of(AxisType.Auto, a=8)
    module = clone_module(
        jax.jit(lambda x: x.max(1)).lower(shaped(mesh, (None, "a"), 16, 64)).compiler_ir()
    )
    [reduction] = [op for op in walk.operations(module.operation) if op.name == "stablehlo.reduce"]
    device, rates = DeviceView.of(module), Rates(expensive=math.inf, cheap=0.0)
    pricing = Pricing(Speed(), rates, sizes=device.sizes)
    assert pricing.of(reduction) == 0
    pricing = Pricing(Speed(), rates, sizes=device.sizes, exchanged=device.exchanged)
    assert pricing.of(reduction) == NEVER


def sent_bytes(module: ir.Module) -> int:
    return sum(each.exchange.sent_bytes for each in exchanges_of(module))


def test_a_budget_with_room_is_held_without_an_exchange_more() -> None:
    """Where constraints do not say what is summed, nothing else keeps the sums from being done
    again."""
    mesh = mesh_of(AxisType.Auto, a=8)
    layers, width, rows = 6, 1024, 4096

    def loss(weights: Any, x: Any) -> Any:
        for up, down in weights:
            x += jnp.tanh(jnp.tanh(x @ up) @ down)
        return jnp.square(x).mean()

    pair = (shaped(mesh, (None, "a"), width, width), shaped(mesh, ("a", None), width, width))
    x = shaped(mesh, (None, None), rows, width)
    given = jax.jit(jax.grad(loss)).lower([pair] * layers, x).compiler_ir()
    sent = []
    for spec in ("inline,cse", "remat{budget=80%}", "remat{budget=min}"):
        module, pipeline = clone_module(given), Pipeline.parse(spec)
        attempts = dry_run(pipeline, module, H100).attempts
        pipeline.run(module, target=H100, attempts=attempts)
        sent.append(sent_bytes(module))
    assert sent[1] == sent[0] < sent[2]
