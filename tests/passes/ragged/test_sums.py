"""Gradients of weights that are added to sums: loops begin with the sum, and nothing is rounded."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.lax import ragged_dot
from support.ragged.runs import PLATFORMS, Array, own_groups, runs, shape_of, wide
from support.results import assert_allclose

from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import rows_of
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module

STEPS, ROWS, WIDTH, OUT, GROUPS = 3, 48, 6, 10, 4
LOOPS = "ragged{loops=all rows=8}"
GPU = Target(platform="cuda")


def weight_gradient(x: Any, gradient: Any, sizes: Any) -> Any:
    w = jnp.zeros((GROUPS, x.shape[-1], gradient.shape[-1]), x.dtype)
    [to_w] = jax.vjp(lambda w: ragged_dot(x, w, sizes), w)[1](gradient)
    return to_w


def scanned(total: Any, x: Any, gradient: Any, sizes: Any) -> Any:
    """Gradients of microbatches, added up in a scan."""

    def body(total: Any, step: Any) -> Any:
        return total + weight_gradient(*step).astype(total.dtype), None

    return jax.lax.scan(body, total, (x, gradient, sizes))[0]


def unrolled(total: Any, x: Any, gradient: Any, sizes: Any) -> Any:
    for step in zip(x, gradient, sizes, strict=True):
        total = weight_gradient(*step).astype(total.dtype) + total
    return total


def reference(total: Array, x: Array, gradient: Array, sizes: Array) -> Array:
    """By definition, in float64."""
    own = own_groups(sizes, ROWS)
    return total + np.einsum("smk,smn,smg->gkn", wide(x), wide(gradient), own)


def arrays(dtype: Any, *, integers: bool = False) -> list[Array]:
    draw = np.random.default_rng(0)
    shapes = (GROUPS, WIDTH, OUT), (STEPS, ROWS, WIDTH), (STEPS, ROWS, OUT)
    total, x, gradient = (
        draw.integers(-15, 16, shape) if integers else draw.normal(size=shape) for shape in shapes
    )
    sizes = np.array([[48, 0, 0, 0], [0, 17, 8, 9], [11, 11, 11, 15]], np.int32)
    return [total.astype(np.float32), x.astype(dtype), gradient.astype(dtype), sizes]


def rewritten(program: Any, arguments: Any, spec: str, platform: str = "cuda") -> ir.Module:
    traced = jax.jit(program).trace(*map(shape_of, arguments))
    module = clone_module(traced.lower(lowering_platforms=(platform,)).compiler_ir())
    Pipeline.parse(spec).run(module, target=GPU)
    assert module.operation.verify()
    return module


def additions(module: ir.Module, type_: str) -> int:
    """How many additions give a type."""
    return sum(
        op.name == "stablehlo.add" and str(op.results[0].type) == type_
        for op in walk.operations(module.operation)
    )


WHOLE = f"tensor<{GROUPS}x{WIDTH}x{OUT}xf32>"


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("program", [scanned, unrolled])
@pytest.mark.parametrize("integers", [False, True], ids=["normal", "integers"])
def test_loops_begin_with_the_sum(program: Any, platform: str, integers: bool) -> None:
    arguments = arrays(np.float32, integers=integers)
    module = rewritten(program, arguments, LOOPS, platform)
    assert additions(module, WHOLE) == 0
    [got] = runs(module)(*arguments)
    wanted = reference(*arguments)
    tolerance = 0 if integers else 1e-5
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("program", [scanned, unrolled])
def test_sums_of_bfloat16_gradients_are_not_rounded(program: Any) -> None:
    """`accumulate-in-place` has the product give float32, and the loop adds that to the sum."""
    arguments = arrays(jnp.bfloat16)
    wanted = reference(*arguments)
    rounded = rewritten(program, arguments, LOOPS)
    exact = rewritten(program, arguments, f"accumulate-in-place,{LOOPS}")
    assert additions(rounded, WHOLE) == (1 if program is scanned else STEPS)
    assert additions(exact, WHOLE) == 0
    [was], [got] = runs(rounded)(*arguments), runs(exact)(*arguments)
    assert got.dtype == np.float32
    assert np.linalg.norm(got - wanted) < 1e-6 * np.linalg.norm(wanted)
    assert np.linalg.norm(got - wanted) < 1e-2 * np.linalg.norm(was - wanted)


@pytest.mark.parametrize("program", [scanned, unrolled])
def test_integers_in_bfloat16_are_exact(program: Any) -> None:
    arguments = arrays(jnp.bfloat16, integers=True)
    module = rewritten(program, arguments, f"accumulate-in-place,{LOOPS}")
    [got] = runs(module)(*arguments)
    np.testing.assert_array_equal(got, reference(*arguments))


def batch(total: Any, x: Any, gradient: Any, sizes: Any) -> Any:
    """JAX makes the gradient with the groups before the batch, and transposes it."""
    w = jnp.zeros(total.shape, x.dtype)
    [to_w] = jax.vjp(lambda w: jax.vmap(ragged_dot)(x, w, sizes), w)[1](gradient)
    return total + to_w.astype(total.dtype)


def transposes(module: ir.Module) -> int:
    return sum(op.name == "stablehlo.transpose" for op in walk.operations(module.operation))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float32])
@pytest.mark.parametrize("spec", [LOOPS, f"accumulate-in-place,{LOOPS}"])
def test_gradients_of_a_batch_are_made_where_they_belong(dtype: Any, spec: str) -> None:
    _, x, gradient, sizes = arrays(dtype)
    total = np.random.default_rng(1).normal(size=(STEPS, GROUPS, WIDTH, OUT)).astype(np.float32)
    arguments = [total, x, gradient, sizes]
    module = rewritten(batch, arguments, spec)
    is_rounded = dtype == jnp.bfloat16 and spec == LOOPS
    assert additions(module, f"tensor<{STEPS}x{GROUPS}x{WIDTH}x{OUT}xf32>") == is_rounded
    assert transposes(module) == 0
    [got] = runs(module)(*arguments)
    tolerance = 1e-2 if is_rounded else 1e-6
    for place in range(STEPS):
        one = slice(place, place + 1)
        wanted = reference(total[place], x[one], gradient[one], sizes[one])
        difference = np.linalg.norm(got[place] - wanted)
        assert difference < tolerance * np.linalg.norm(wanted)


def test_one_gradient_is_the_sum_that_another_begins_with() -> None:
    """As of a weight that two products read."""

    def program(x: Any, gradient: Any, sizes: Any) -> Any:
        first, second = (weight_gradient(x[step], gradient[step], sizes[step]) for step in (0, 1))
        both = first + second
        return weight_gradient(x[2], gradient[2], sizes[2]) + both

    _, *arguments = arrays(np.float32)
    module = rewritten(program, arguments, LOOPS)
    assert additions(module, WHOLE) == 0
    [got] = runs(module)(*arguments)
    wanted = reference(np.zeros((GROUPS, WIDTH, OUT)), *arguments)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def read_twice(total: Any, x: Any, gradient: Any, sizes: Any) -> Any:
    made = weight_gradient(x[0], gradient[0], sizes[0])
    return total + made, made


def added_to_what_is_made_later(total: Any, x: Any, gradient: Any, sizes: Any) -> Any:
    made = weight_gradient(x[0], gradient[0], sizes[0])
    return made + total * made.shape[0]


def doubled(total: Any, x: Any, gradient: Any, sizes: Any) -> Any:
    made = weight_gradient(x[0], gradient[0], sizes[0])
    return total * 0 + (made + made)


@pytest.mark.parametrize("program", [read_twice, added_to_what_is_made_later, doubled])
def test_additions_that_stay(program: Any) -> None:
    arguments = arrays(np.float32)
    module = rewritten(program, arguments, LOOPS)
    assert additions(module, WHOLE) > 0
    wanted = jax.tree.leaves(jax.jit(program)(*arguments))
    assert_allclose(runs(module)(*arguments), wanted, rtol=1e-5, atol=1e-5)


DYNAMIC = """
func.func public @main(%sum: tensor<?x8x16xf32>, %x: tensor<64x8xf32>, %y: tensor<64x16xf32>, \
%sizes: tensor<4xi32>) -> tensor<?x8x16xf32> {
  %0 = "chlo.ragged_dot"(%x, %y, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<\
lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0], lhs_ragged_dimensions = [0]>}> \
: (tensor<64x8xf32>, tensor<64x16xf32>, tensor<4xi32>) -> tensor<4x8x16xf32>
  %1 = stablehlo.add %0, %sum : (tensor<4x8x16xf32>, tensor<?x8x16xf32>) -> tensor<?x8x16xf32>
  return %1 : tensor<?x8x16xf32>
}
"""
NAMED = DYNAMIC.replace("?x8", "4x8").replace("%0, %sum :", '%0, %sum {mhlo.sharding = ""} :')


@pytest.mark.parametrize("text", [DYNAMIC, NAMED], ids=["of another type", "with attributes"])
def test_additions_that_are_more_than_that_stay(text: str) -> None:
    with jax.jit(lambda x: x).lower(1.0).compiler_ir().context:
        module = ir.Module.parse(text)
    run = Pipeline.parse(LOOPS).run(module, target=GPU).runs[-1]
    assert len(rows_of(run.plan, "Ragged products in loops")) == 1
    assert module.operation.verify()
    [loop] = [op for op in walk.operations(module.operation) if op.name == "stablehlo.while"]
    [reader] = [use.owner.name for use in loop.results[1].uses]
    assert reader == "stablehlo.add"
