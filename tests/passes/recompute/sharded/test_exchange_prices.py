"""What devices exchange again where an operation is repeated: part of its price. What a backward
body computes again is read where it lies alike; sizes on a device are those of Shardy.

Explicit axes, behind each operation of which JAX writes a sharding constraint: no plan differs from
that on automatic axes by what these constraints hide.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from support.devices.meshes import each_kind_of_axes, mesh_of, shaped
from support.modules import module_after

from benchmarks.meshes.programs import AXIS, sharded_twice
from benchmarks.meshes.programs import MODEL as MESH_MODEL
from benchmarks.programs.sharded import DATA, MESHES, MODEL, ShardedDecoder
from hloom import targets
from hloom.passes.analysis.autodiff import has_remat_name
from hloom.passes.analysis.device import DeviceView
from hloom.passes.analysis.loops.pairs import loop_pairs
from hloom.passes.analysis.memory_model.tpu import XLA_TPU
from hloom.passes.analysis.pricing import NEVER, Pricing, Rates
from hloom.passes.analysis.program import Program
from hloom.passes.analysis.shardings.exchanged import Exchanged
from hloom.passes.analysis.shardings.exchanges import exchanges_of
from hloom.passes.analysis.shardings.shardings import Shardings
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import CPU_SPEED, Speed
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.shardings import CONSTRAINT
from hloom.passes.ir.types import tensor_bytes
from hloom.passes.ir.while_rewriter import Replacements
from hloom.passes.recompute.scan.groups import computed_again, numbers_around
from hloom.passes.recompute.scan.plan import BlockScans
from hloom.passes.recompute.scan.rewrite import apply_scan, finish_scans
from hloom_tools.opt.job import dry_run

H100 = targets.load("h100_sxm")


def priced(function: Any, *arguments: jax.ShapeDtypeStruct) -> tuple[dict[str, float], float]:
    """By name of an operation what exchanges add to its price; and what the exchanges take."""
    module = module_after(jax.jit(function).lower(*arguments), "inline,cse", H100)
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
    lowered = jax.jit(lambda x: x.max(1)).lower(shaped(mesh, (None, "a"), 16, 64))
    module = clone_module(lowered.compiler_ir())
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


ROWS, COLUMNS = PartitionSpec("a", None), PartitionSpec(None, "b")


def layers(there: PartitionSpec, again: PartitionSpec) -> ir.Module:
    """A step whose layers make a product once more for their gradients, held to a sharding in each
    of the passes."""
    mesh = mesh_of(AxisType.Auto, a=2, b=4)

    def hidden(x: Any, w: Any, axes: PartitionSpec) -> Any:
        return with_sharding_constraint(x @ w, NamedSharding(mesh, axes))

    @jax.custom_vjp
    def layer(x: Any, w: Any) -> Any:
        return forward(x, w)[0]

    def forward(x: Any, w: Any) -> Any:
        made = jnp.tanh(hidden(x, w, there)) @ w
        return jnp.sin(made), (x, w, made)

    def backward(saved: Any, given: Any) -> Any:
        x, w, made = saved
        slope = jnp.cos(hidden(x, w, again)) * (given @ w.T)
        return slope * jnp.cos(made) * given, x.T @ slope

    layer.defvjp(forward, backward)

    def loss(ws: Any, x: Any) -> Any:
        return jnp.sum(jax.lax.scan(lambda c, w: (layer(c, w), None), x, ws)[0])

    shape = functools.partial(jax.ShapeDtypeStruct, dtype="float32")
    whole = NamedSharding(mesh, PartitionSpec())
    arguments = shape((6, 64, 64), sharding=whole), shape((64, 64), sharding=whole)
    return module_after(
        jax.jit(jax.grad(loss, (0, 1))).lower(*arguments), "inline,cse", targets.load("h100_sxm")
    )


@pytest.mark.parametrize("again", [ROWS, COLUMNS])
def test_what_lies_elsewhere_is_not_read(again: PartitionSpec) -> None:
    module = layers(ROWS, again)
    [pair] = loop_pairs(walk.entry_function(module).regions[0].blocks[0])
    known = computed_again(
        pair, Program(pair.forward.body, DeviceView.of(module)), numbers_around()
    )
    without = computed_again(pair, Program(pair.forward.body), numbers_around())
    assert len(without) == 2  # the product and what its constraint hands on
    assert known == (without if again == ROWS else {})


LARGE = 2**16
"""Bytes: what is smaller is no part of a figure."""


def decoder(kind: str) -> ShardedDecoder:
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(MESHES[kind]), (DATA, MODEL))
    return ShardedDecoder(mesh, layers=2)


@pytest.mark.parametrize("kind", MESHES)
def test_what_a_rewrite_makes_has_the_share_that_shardy_gives_it(kind: str) -> None:
    module = module_after(decoder(kind).lower(), "inline,cse")
    shards, replaced = Shardings.of(module), Replacements()
    pricing = Pricing(CPU_SPEED, Rates(0.0, 0.0))
    with module.context, ir.Location.unknown():
        blocks = list(walk.code_blocks(module.operation))
        for plan in [plan for block in blocks for plan in BlockScans(block, 0).plan(pricing)]:
            apply_scan(plan, replaced)
        finish_scans(replaced)
    after, again = shards.with_made(replaced.like), Shardings.of(module)
    cloned = [op for op in walk.operations(module.operation) if has_remat_name(op)]
    values = [
        value for op in cloned for value in op.results if (tensor_bytes(value.type) or 0) > LARGE
    ]
    assert values
    assert [after.share(value) for value in values] == [again.share(value) for value in values]


def test_sizes_of_what_was_made_are_by_the_rules_of_the_target() -> None:
    module = decoder("both").lower().compiler_ir()
    device = DeviceView.of(module, XLA_TPU)
    known = next(
        value
        for op in walk.operations(module.operation)
        for value in op.results
        if device.shardings.share(value) < 1 and (tensor_bytes(value.type) or 0) > LARGE
    )
    with module.context, ir.Location.unknown():
        made = ir.Operation.create("test.made", [known.type]).results[0]
    after = device.with_made({made: known})
    whole = XLA_TPU.bytes_of(known.type)
    assert whole is not None
    assert after.rules is XLA_TPU
    assert after.bytes_of(made) == math.ceil(whole * device.shardings.share(known))
    assert after.bytes_of(known) == device.bytes_of(known) < whole


SIZES = {"width": 256, "heads": 4, "batch": 8, "length": 256}


def module_on(kind: AxisType) -> ir.Module:
    lowered = sharded_twice(mesh_of(kind, **{AXIS: 2, MESH_MODEL: 2}), **SIZES)
    return lowered.compiler_ir()


def facts_of_fit(kind: AxisType) -> dict[str, Any]:
    module = clone_module(module_on(kind))
    result = Pipeline.parse("fit").run(module, target=targets.load("h100_sxm"))
    return {fact["title"]: fact["value"] for fact in result.runs[-1].plan["facts"]}


def test_as_much_is_recomputed_in_loops() -> None:
    """Not only as much as the dearest price of cheap work: there a constraint, which makes bytes in
    no time, must not count."""
    automatic, explicit = map(facts_of_fit, (AxisType.Auto, AxisType.Explicit))
    assert automatic["residuals not kept"] > 0
    for name in ("residuals not kept", "kept in their place"):
        assert explicit[name] == pytest.approx(automatic[name], rel=0.02), name


def test_masks_are_made_in_the_loops() -> None:
    module = clone_module(module_on(AxisType.Explicit))
    result = Pipeline.parse("free-constants").run(module, target=targets.load("h100_sxm"))
    assert result.runs[-1].effect == "3 constants taken out of 2 loops"


def constraints_that_gather(exchanged: Exchanged, module: ir.Module) -> int:
    constraints = [op for op in walk.operations(module.operation) if op.name == CONSTRAINT]
    gathers = {n for n, each in enumerate(exchanged.exchanges) if each.kind == "all-gather"}
    return sum(bool(gathers & {*exchanged.repeated_by(op)}) for op in constraints)


def test_the_last_constraint_of_a_row_gathers() -> None:
    found = []
    for kind in (AxisType.Auto, AxisType.Explicit):
        module = module_after(
            module_on(kind), "inline,drop-constraints,cse", targets.load("h100_sxm")
        )
        found.append(constraints_that_gather(DeviceView.of(module).exchanged, module))
    assert found[1] == found[0] >= 7
