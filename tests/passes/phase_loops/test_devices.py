"""Loops over a dimension that is sharded: each device runs its own where nothing else is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from support.flows.cuts import best_cut
from support.flows.runs import compiled, lowered
from support.results import assert_allclose

from hloom.passes.phase_loops.plan import LoopsPlan, plan_loops
from hloom.passes.phase_loops.write import apply_loops

DEVICES, ROWS, WIDTH = 4, 24, 8
DRAWN = np.random.default_rng(3)
X = DRAWN.normal(size=(ROWS, 3, WIDTH)).astype(np.float32)
LABELS = DRAWN.integers(0, WIDTH, (ROWS, 3))
W = {name: DRAWN.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 3 for name in ("in", "out")}

Loss = Callable[..., Any]


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:DEVICES]), ("data",))


def losses(w: Any, x: Any, labels: Any) -> Any:
    def layer(h: Any, scale: Any) -> tuple[Any, None]:
        return jnp.tanh(h @ w["in"]) * scale, None

    h, _ = jax.lax.scan(layer, x, jnp.arange(1.0, 3.0))
    # A mask over the rows, and one that is made of their numbers: parts of what every device has.
    h = h * (jnp.arange(ROWS) % 5 > 0)[:, None, None] + jnp.sin(jnp.arange(ROWS))[:, None, None]
    logits = jax.nn.log_softmax(h.reshape(-1, WIDTH) @ w["out"])
    return -jnp.take_along_axis(logits, labels.reshape(-1, 1), 1)


def mean(w: Any, x: Any, labels: Any) -> Any:
    return losses(w, x, labels).mean()


def step(w: Any, x: Any, labels: Any) -> Any:
    value, gradient = jax.value_and_grad(mean)(w, x, labels)
    return value, gradient, jnp.tanh(x @ w["in"]), jnp.max(x @ w["in"], (0, 1))


def planned(module: ir.Module, chunks: int) -> LoopsPlan:
    return plan_loops(best_cut(module)[1], chunks)


def placed(mesh: Mesh, *specs: P) -> list[Any]:
    values = (W, X, LABELS)
    return [
        jax.tree.map(
            lambda leaf, spec=spec: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec)
            ),
            value,
        )
        for value, spec in zip(values, specs, strict=True)
    ]


def written(module: ir.Module, plan: LoopsPlan) -> str:
    with module.context, ir.Location.unknown():
        apply_loops(plan, "loops")
    assert module.operation.verify()
    return str(module)


@pytest.mark.parametrize("chunks", [2, 4])
def test_each_device_runs_its_own_loop(mesh: Mesh, chunks: int) -> None:
    """Six rows a device in four chunks: the last two are one row longer than there are."""
    module = lowered(step, *placed(mesh, P(), P("data"), P("data")))
    leaves = jax.tree.leaves((W, X, LABELS))
    wanted = compiled(module, leaves)
    plan = planned(module, chunks)
    assert plan.parts.count == DEVICES
    text = written(module, plan)
    assert "sdy.manual_computation" in text
    assert "stablehlo.all_reduce" not in body_of_loop(text)
    # The loss, two gradients, the maximum.
    assert len(re.findall("stablehlo.all_reduce", text)) == 4
    assert_allclose(compiled(module, leaves), wanted, rtol=2e-5, atol=1e-6)


def body_of_loop(text: str) -> str:
    start = text.index("stablehlo.while")
    return text[start : text.index("stablehlo.return %", text.index("} do {", start))]


@pytest.mark.parametrize(
    ("weights", "batch"),
    [(P("data"), P("data")), (P(), P(None, None, "data")), (P(), P())],
    ids=["weights too", "another axis", "nothing"],
)
def test_what_a_device_has_not_is_left_to_the_partitioner(mesh: Mesh, weights: P, batch: P) -> None:
    labels = batch if len(batch) < 3 else P()
    module = lowered(step, *placed(mesh, weights, batch, labels))
    leaves = jax.tree.leaves((W, X, LABELS))
    wanted = compiled(module, leaves)
    plan = planned(module, 2)
    assert plan.parts is None
    assert "sdy.manual_computation" not in written(module, plan)
    assert_allclose(compiled(module, leaves), wanted, rtol=2e-5, atol=1e-6)


def test_a_constraint_along_the_batch_is_true_on_each_device(mesh: Mesh) -> None:
    def constrained(w: Any, x: Any, labels: Any) -> Any:
        x = jax.lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P("data")))
        return jax.value_and_grad(mean)(w, x, labels)

    module = lowered(constrained, *placed(mesh, P(), P("data"), P("data")))
    leaves = jax.tree.leaves((W, X, LABELS))
    wanted = compiled(module, leaves)
    plan = planned(module, 3)
    assert plan.parts is not None
    written(module, plan)
    assert_allclose(compiled(module, leaves), wanted, rtol=2e-5, atol=1e-6)


def test_a_constraint_along_another_axis_is_left_to_the_partitioner(mesh: Mesh) -> None:
    def constrained(w: Any, x: Any, labels: Any) -> Any:
        h = jax.lax.with_sharding_constraint(
            jnp.sin(x @ w["in"]), NamedSharding(mesh, P(None, None, "data"))
        )
        return jax.value_and_grad(mean)(w, h, labels)

    module = lowered(constrained, *placed(mesh, P(), P("data"), P("data")))
    assert planned(module, 2).parts is None
