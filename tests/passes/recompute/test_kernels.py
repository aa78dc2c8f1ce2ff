"""Kernels in plans: done again where a budget needs it, at their price, and never where unknown."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from support.kernel_programs import cudnn_attention, lowered
from support.remat_runs import assert_same

import hloom
from hloom import targets
from hloom.passes.analysis import kernels
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.custom_calls import target_of

SEQUENCES, POSITIONS, HEADS, WIDTH, LAYERS = 2, 512, 4, 64, 4
FEATURES = HEADS * WIDTH

Attention = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def multiplied(estimate: pl.CostEstimate | None) -> Attention:
    """A kernel of Pallas in the place of attention, and another one for its gradient."""

    def call(number: int, *operands: jax.Array) -> Any:
        def kernel(*refs: Any) -> None:
            for out in refs[len(operands) :]:
                out[...] = refs[0][...] * refs[1][...] + refs[2][...]

        shape = jax.ShapeDtypeStruct(operands[0].shape, operands[0].dtype)
        return pl.pallas_call(kernel, out_shape=[shape] * number, cost_estimate=estimate)(*operands)

    @jax.custom_vjp
    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return call(1, q, k, v)[0]

    def forward(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, Any]:
        out = call(1, q, k, v)[0]
        return out, (q, k, v, out)

    def backward(kept: Any, gradient: jax.Array) -> Any:
        return tuple(call(3, *kept, gradient))

    attention.defvjp(forward, backward)
    return attention


def gradient_of(attention: Attention, *, scanned: bool) -> Callable[..., Any]:
    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        heads = SEQUENCES, POSITIONS, HEADS, WIDTH
        q, k, v = (jnp.tanh(x @ each).reshape(heads) for each in w["qkv"])
        return x + attention(q, k, v).reshape(x.shape) @ w["out"], None

    def loss(ws: Any, x: jax.Array) -> jax.Array:
        if scanned:
            x, _ = jax.lax.scan(layer, x, ws)
        else:
            for number in range(LAYERS):
                x, _ = layer(x, jax.tree.map(itemgetter(number), ws))
        return jnp.mean(x.astype("float32") ** 2)

    return jax.grad(loss)


def arguments() -> tuple[Any, Any]:
    def of(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, "bfloat16")

    matrices = of(LAYERS, FEATURES, FEATURES)
    weights = {"qkv": [matrices] * 3, "out": matrices}
    return weights, of(SEQUENCES, POSITIONS, FEATURES)


def calls_after(program: Any, spec: str, target: str | None = None) -> int:
    """The custom calls of a lowered program after a pipeline, for a CPU without a target."""
    module = clone_module(program.compiler_ir())
    Pipeline.parse(spec).run(module, target=targets.load(target) if target else Target())
    return sum(target_of(op) is not None for op in walk.operations(module.operation))


ON_H100 = cudnn_attention, "cuda", "h100_sxm"
CHEAP_ON_TPU = multiplied(pl.CostEstimate(10**6, 0, 10**6)), "tpu", "v5p"
DEAR_ON_TPU = multiplied(pl.CostEstimate(10**14, 0, 10**6)), "tpu", "v5p"


@pytest.mark.parametrize(
    ("case", "scanned"),
    [
        # JAX asks the extra which cuDNN it lowers for.
        pytest.param(ON_H100, True, id="cudnn scanned", marks=pytest.mark.h100),
        pytest.param(ON_H100, False, id="cudnn unrolled", marks=pytest.mark.h100),
        pytest.param(CHEAP_ON_TPU, True, id="pallas scanned"),
    ],
)
def test_attention_is_done_again_where_the_budget_needs_it(
    case: tuple[Attention, str, str], scanned: bool
) -> None:
    attention, platform, target = case
    program = lowered(gradient_of(attention, scanned=scanned), platform, *arguments())
    calls = 2 if scanned else 2 * LAYERS
    frontier = hloom.estimate(program, target=target, budgets=["min"])
    off, floor = frontier.points[0].step_bytes, frontier.points[-1].step_bytes
    assert calls_after(program, f"remat{{budget={off}B}}", target) == calls
    assert calls_after(program, f"remat{{budget={floor}B}}", target) > calls
    assert calls_after(program, "remat", target) == calls  # that repeats cheap work alone


def test_the_dearer_kernel_is_kept() -> None:
    """At the same budget, which the cheap one's program keeps by doing it again."""
    cheap, dear = (
        lowered(gradient_of(attention, scanned=True), platform, *arguments())
        for attention, platform, _ in (CHEAP_ON_TPU, DEAR_ON_TPU)
    )
    points = hloom.estimate(cheap, target="v5p", budgets=["min"]).points
    off, floor = points[0].step_bytes, points[-1].step_bytes
    budget = floor + (off - floor) // 5
    assert calls_after(cheap, f"remat{{budget={budget}B}}", "v5p") == 3
    assert calls_after(dear, f"remat{{budget={budget}B}}", "v5p") == 2


def test_results_stay_where_a_declared_kernel_is_done_again() -> None:
    """A callback to Python counts how often it runs."""
    runs: list[int] = []

    def tanh(x: Any) -> Any:
        runs.append(1)
        return np.tanh(x)

    @jax.custom_vjp
    def kernel(x: jax.Array) -> jax.Array:
        return jax.pure_callback(tanh, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = kernel(x)
        return out, out

    kernel.defvjp(forward, lambda out, gradient: (gradient * (1 - out * out),))

    def loss(ws: jax.Array, x: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(lambda x, w: (kernel(jnp.sin(x @ w) + x), None), x, ws)
        return jnp.sum(x**2)

    ws = jax.random.normal(jax.random.key(0), (3, 64, 64)) / 8
    x = jax.random.normal(jax.random.key(1), (128, 64))
    program = jax.jit(jax.grad(loss)).lower(ws, x)
    wanted = program.compile(compiler_options={"hloom": "off"})(ws, x)
    [target] = {
        target_of(op)
        for op in walk.operations(program.compiler_ir().operation)
        if target_of(op) is not None
    }
    assert target is not None
    assert calls_after(program, "remat{budget=1B min_bytes=0}") == 1
    runs.clear()
    with kernels.declared(target, pure=True, flops=1):
        got = program.compile(compiler_options={"hloom": "remat{budget=min min_bytes=0}"})(ws, x)
    assert_same(got, wanted)
    assert len(runs) == 2 * 3
