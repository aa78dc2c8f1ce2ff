"""What a backward body computes again by itself is read where it lies alike on the devices."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support.devices.meshes import mesh_of

from hloom import targets
from hloom.passes.analysis.device import DeviceView
from hloom.passes.analysis.loops.pairs import loop_pairs
from hloom.passes.analysis.program import Program
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.recompute.scan.again import computed_again, numbers_around

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
    module = clone_module(jax.jit(jax.grad(loss, (0, 1))).lower(*arguments).compiler_ir())
    Pipeline.parse("inline,cse").run(module, target=targets.load("h100_sxm"))
    return module


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
