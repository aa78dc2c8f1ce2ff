"""What `accumulate` makes of gradients that are products: added in place where that is no loss."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from support.flows.runs import evaluated

from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module

DEVICES = 4
WIDTH, OUTPUTS, ROWS = 8, 12, 64
SPEC = "accumulate{microbatches=4}"


def step(w: Any, x: Any) -> Any:
    """A step whose gradient JAX writes as a product, a transpose and a conversion."""

    def loss(w: Any) -> Any:
        return (jnp.tanh(x @ w).astype(jnp.float32) ** 2).sum()

    return w - 1e-2 * jax.grad(loss)(w).astype(jnp.float32)


def narrow(w: Any, x: Any) -> Any:
    return step(w.astype(jnp.bfloat16), x.astype(jnp.bfloat16))


def accumulated(
    function: Any, *arguments: Any, platform: str = "cuda", spec: str = SPEC
) -> tuple[ir.Module, list[str]]:
    """The step as `accumulate` writes it, and the types of the gradients' products in the loop."""
    module = clone_module(jax.jit(function).lower(*arguments).compiler_ir())
    run = Pipeline.parse(spec).run(module, target=Target(platform=platform)).runs[-1]
    assert not run.empty
    assert module.operation.verify()
    text = str(module)
    shape = f"(?:{WIDTH}x{OUTPUTS}|{OUTPUTS}x{WIDTH})"
    return module, re.findall(rf"stablehlo\.dot_general .*-> tensor<{shape}x(\w+)>", text)


def shaped(
    w: PartitionSpec | None = None, x: PartitionSpec | None = None
) -> tuple[jax.ShapeDtypeStruct, ...]:
    """A weight and a batch in bfloat16, on devices where their shardings are given."""
    shapes = ((WIDTH, OUTPUTS), (ROWS, WIDTH))
    if w is None or x is None:
        return tuple(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    mesh = Mesh(np.array(jax.devices()[:DEVICES]), ("d",))
    return tuple(
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, (w, x), strict=True)
    )


@pytest.mark.parametrize(
    ("platform", "spec", "types"),
    [
        ("cuda", SPEC, ["f32"]),
        ("tpu", SPEC, ["f32"]),
        ("cuda", "accumulate{microbatches=3}", ["f32", "f32"]),  # the last one is shorter
        ("cpu", SPEC, ["bf16"]),
    ],
)
def test_the_product_is_made_in_the_accumulators_type(
    platform: str, spec: str, types: list[str]
) -> None:
    _, found = accumulated(step, *shaped(), platform=platform, spec=spec)
    assert found == types


def test_in_their_own_type_where_that_is_asked_for() -> None:
    _, found = accumulated(step, *shaped(), spec="accumulate{microbatches=4 dtype=keep}")
    assert found == ["bf16"]


def test_devices_that_add_up_by_themselves() -> None:
    """Each has a loop of its own, and what it sends is sent after it."""
    module, found = accumulated(step, *shaped(PartitionSpec(), PartitionSpec("d")))
    assert "sdy.manual_computation" in str(module)
    assert found == ["f32"]


def test_sums_that_devices_exchange_in_each_microbatch_are_sent_in_bfloat16() -> None:
    module, found = accumulated(step, *shaped(PartitionSpec("d"), PartitionSpec("d")))
    assert "sdy.manual_computation" not in str(module)
    assert found == ["bf16"]


def test_gradients_are_nearer_to_the_exact_ones() -> None:
    draws = np.random.default_rng(5)
    w = draws.normal(size=(WIDTH, OUTPUTS)).astype(jnp.bfloat16).astype(np.float32)
    x = draws.normal(size=(ROWS, WIDTH)).astype(jnp.bfloat16).astype(np.float32)
    w64, x64 = w.astype(np.float64), x.astype(np.float64)
    y = np.tanh(x64 @ w64)
    exact = w64 - 1e-2 * x64.T @ (2 * y * (1 - y * y))
    errors = []
    for platform in ("cuda", "cpu"):
        module, _ = accumulated(narrow, w, x, platform=platform)
        [got] = evaluated(module, (w, x))
        errors.append(np.linalg.norm(got - exact))
    assert errors[0] < errors[1]
