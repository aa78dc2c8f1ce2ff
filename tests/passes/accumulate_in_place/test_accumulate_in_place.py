"""`accumulate-in-place` by its definition: a sum of exact products, on random shapes and types.

What `accumulate` makes of gradients that are products: added in place where that is no loss.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as drawn
from hypothesis import strategies as st
from jax.extend.mlir import ir
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from support.flows.runs import compiled, evaluated
from support.modules import module_after

import hloom
from hloom.passes.accumulate_in_place import AccumulateInPlace
from hloom.passes.framework.pipeline import Pipeline, PipelineResult
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module

SPEC = "accumulate-in-place"
GPU = Target(platform="cuda")

WIDER = {
    "float16": ["float32"],
    "bfloat16": ["float32"],
    "float8_e4m3fn": ["float16", "bfloat16", "float32"],
    "float8_e5m2": ["float16", "bfloat16", "float32"],
}
BITS = {"float16": 11, "bfloat16": 8, "float8_e4m3fn": 4, "float8_e5m2": 3, "float32": 24}
"""Of a significand."""

MOST_SUM = {"float16": 2**15, "bfloat16": 2**15, "float8_e4m3fn": 256, "float8_e5m2": 2**15}
"""Sums that are smaller have no infinity in the type."""


@st.composite
def terms(draw: st.DrawFn) -> dict[str, Any]:
    """A sum over microbatches of a product that is transposed, reshaped and converted."""
    narrow = draw(st.sampled_from(sorted(WIDER)))
    batches, kept = (draw(st.lists(st.integers(1, 3), max_size=1)) for _ in range(2))
    left, right = (draw(st.lists(st.integers(0, 4), max_size=2)) for _ in range(2))
    rank = len(batches) + len(left) + len(right)
    return {
        "narrow": narrow,
        "wide": draw(st.sampled_from(WIDER[narrow])),
        "batches": batches,
        "summed": [*kept, draw(st.integers(0, 24))],
        "left": left,
        "right": right,
        "axes": draw(st.permutations(range(rank))),
        "flat": draw(st.booleans()),
        "converts_at": draw(st.integers(0, 2)),
        "trips": draw(st.integers(1, 4)),
        "loops": draw(st.booleans()),
        "term_first": draw(st.booleans()),
    }


def summed(term: dict[str, Any]) -> Callable[[Any, Any], Any]:
    """The sum as a program, from float32 to float32."""
    batches, contracted = len(term["batches"]), len(term["summed"])
    both = tuple(range(batches))
    axes = tuple(range(batches, batches + contracted))

    def added(total: Any, operands: Any) -> tuple[Any, None]:
        x, g = (each.astype(term["narrow"]) for each in operands)
        made = jax.lax.dot_general(
            x, g, ((axes, axes), (both, both)), preferred_element_type=term["narrow"]
        )
        moves = [
            lambda value: value.transpose(term["axes"]),
            lambda value: value.reshape(-1) if term["flat"] else value,
        ]
        moves.insert(term["converts_at"], lambda value: value.astype(term["wide"]))
        for move in moves:
            made = move(made)
        return (made + total if term["term_first"] else total + made), None

    def program(x: Any, g: Any) -> Any:
        shape = jax.eval_shape(lambda x, g: added(jnp.float32(0), (x, g))[0], x[0], g[0]).shape
        total = jnp.zeros(shape, term["wide"])
        if term["loops"]:
            total, _ = jax.lax.scan(added, total, (x, g))
        else:
            for each in zip(x, g, strict=True):
                total, _ = added(total, each)
        return total.astype(jnp.float32)

    return program


def exact(term: dict[str, Any], x: np.ndarray, g: np.ndarray) -> np.ndarray:
    """The same in float64, by the definition of a product, from operands of the narrow type."""
    x, g = (np.asarray(each.astype(term["narrow"]), np.float64) for each in (x, g))
    batch = math.prod(term["batches"])
    trips, count = len(x), math.prod(term["summed"])
    x = x.reshape(trips, batch, count, math.prod(term["left"]))
    g = g.reshape(trips, batch, count, math.prod(term["right"]))
    total = np.einsum("tbkm,tbkn->bmn", x, g)
    shape = (*term["batches"], *term["left"], *term["right"])
    total = total.reshape(shape).transpose(term["axes"])
    return total.reshape(-1) if term["flat"] else total


def operands(term: dict[str, Any], draw: Callable[[tuple[int, ...]], np.ndarray]) -> Any:
    return tuple(
        draw((term["trips"], *term["batches"], *term["summed"], *term[side]))
        for side in ("left", "right")
    )


def results(module: ir.Module, x: np.ndarray, g: np.ndarray) -> np.ndarray:
    """By the interpreter, which rounds as types say, but dies of slices without elements."""
    [result] = (evaluated if x.size and g.size else compiled)(module, (x, g))
    return result


def rewritten(
    function: Callable[..., Any], *arguments: Any
) -> tuple[ir.Module, ir.Module, PipelineResult]:
    """A program before and after the pass, and the run."""
    original = jax.jit(function, keep_unused=True).lower(*arguments).compiler_ir()
    changed = clone_module(original)
    run = Pipeline.parse(SPEC).run(changed, target=GPU)
    assert changed.operation.verify()
    return original, changed, run


def checked(term: dict[str, Any], x: np.ndarray, g: np.ndarray) -> tuple[ir.Module, ir.Module]:
    """Before and after; each product is found, and none a second time."""
    before, after, run = rewritten(summed(term), x, g)
    products = 1 if term["loops"] else term["trips"]
    assert run.runs[-1].summary.startswith(f"{products} product")
    assert Pipeline.parse(SPEC).run(after, target=GPU).runs[-1].empty
    return before, after


THOROUGH = settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


@THOROUGH
@drawn(terms(), st.integers(0, 2**32 - 1))
def test_integers_are_added_up_exactly(term: dict[str, Any], seed: int) -> None:
    """Sums of integers that a wide type has are exact to the bit; the interpreter says so."""
    most = 2 ** BITS[term["wide"]]
    count = max(1, math.prod(term["summed"])) * term["trips"]
    largest = math.isqrt(min(most, MOST_SUM[term["narrow"]]) // count)
    largest = min(largest, 2 ** BITS[term["narrow"]])
    draws = np.random.default_rng(seed)
    x, g = operands(
        term, lambda shape: draws.integers(-largest, largest + 1, shape).astype(np.float32)
    )
    _, after = checked(term, x, g)
    np.testing.assert_array_equal(results(after, x, g), exact(term, x, g))


@THOROUGH
@drawn(terms(), st.integers(0, 2**32 - 1))
def test_sums_are_nearer_to_the_exact_ones(term: dict[str, Any], seed: int) -> None:
    """No sum is farther from the exact one than the wide type's rounding, once a term."""
    draws = np.random.default_rng(seed)
    x, g = operands(term, lambda shape: draws.normal(size=shape).astype(np.float32))
    before, after = checked(term, x, g)
    wanted = exact(term, x, g)
    sizes = exact(term, np.abs(x), np.abs(g))
    rounding = 2.0 ** -BITS[term["wide"]]
    steps = math.prod(term["summed"]) + 2 * term["trips"]
    was, got = results(before, x, g), results(after, x, g)
    errors = np.abs(got - wanted)
    assert (errors <= 2 * steps * rounding * sizes).all()
    norm = np.linalg.norm
    assert norm(errors) <= norm(was - wanted) + norm(2 * steps * rounding * sizes)


@pytest.mark.parametrize("narrow", sorted(WIDER))
def test_xla_says_the_same(narrow: str) -> None:
    term = {
        "narrow": narrow, "wide": "float32", "batches": [2], "summed": [3, 40], "left": [5],
        "right": [2, 3], "axes": (3, 0, 2, 1), "flat": True, "converts_at": 1, "trips": 3,
        "loops": True, "term_first": False,
    }  # fmt: skip
    draws = np.random.default_rng(1)
    x, g = operands(term, lambda shape: draws.normal(size=shape).astype(np.float32))
    before, after = checked(term, x, g)
    wanted = exact(term, x, g)
    # XLA for CPUs leaves the rounding to bfloat16 out: the interpreter does it.
    [was], [got] = evaluated(before, (x, g)), compiled(after, (x, g))
    assert np.linalg.norm(got - wanted) < 1e-6 * np.linalg.norm(wanted)
    assert np.linalg.norm(got - wanted) < 1e-2 * np.linalg.norm(was - wanted)


def microbatches(w: Any, xs: Any) -> Any:
    """Gradients as JAX writes them: with a transpose, of several layers, added up in a scan."""

    def loss(w: Any, x: Any) -> Any:
        for layer in w:
            x = jnp.tanh(x @ layer)
        return (x.astype(jnp.float32) ** 2).sum()

    def body(sums: Any, x: Any) -> tuple[Any, None]:
        gradients = jax.grad(loss)(w, x)
        return [a + b.astype(jnp.float32) for a, b in zip(sums, gradients, strict=True)], None

    return jax.lax.scan(body, [jnp.zeros(layer.shape) for layer in w], xs)[0]


def weights_and_batches() -> tuple[Any, Any]:
    draws = np.random.default_rng(3)
    w = [draws.normal(size=(16, 16)).astype(np.float32) / 4 for _ in range(3)]
    return w, draws.normal(size=(4, 8, 16)).astype(np.float32)


def test_gradients_of_a_step() -> None:
    w, xs = weights_and_batches()

    def narrow(w: Any, xs: Any) -> Any:
        return microbatches(*jax.tree.map(lambda leaf: leaf.astype("bfloat16"), (w, xs)))

    before, after, run = rewritten(narrow, w, xs)
    assert run.runs[-1].summary == "3 products added in place"
    for one, other in zip(evaluated(after, (*w, xs)), evaluated(before, (*w, xs)), strict=True):
        assert one.dtype == other.dtype == np.float32
        assert (one != other).any()
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-2 * np.abs(other).max())


def test_a_cpu_does_that_by_itself() -> None:
    arguments = weights_and_batches()
    with hloom.strict():
        jax.jit(microbatches, compiler_options={"hloom": SPEC})(*arguments)
    [run] = [run for run in hloom.records()[-1].runs if run.name == SPEC]
    assert run.summary.startswith("does nothing on a CPU: XLA adds products of bfloat16 up")


def test_a_decision_can_be_left_out() -> None:
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), weights_and_batches())
    module = module_after(jax.jit(microbatches).lower(*narrow), "inline", GPU)
    own = AccumulateInPlace()
    plan = own.plan(module, GPU)
    first, second, third = plan.decisions()
    assert first.id == "product-0"
    assert "/dot_general : tensor<16x16xbf16> in f32, " in first.description
    assert "test_accumulate_in_place.py:" in first.description
    with module.context, ir.Location.unknown():
        own.apply(plan.restricted_to({first.id, third.id}))
    assert [len(own.plan(module, GPU).decided), second.id] == [1, "product-1"]
    assert plan.restricted_to(set()).empty


def ragged(total: Any, x: Any, w: Any, sizes: Any) -> Any:
    gradient = jax.grad(lambda w: jax.lax.ragged_dot(x, w, sizes).astype(jnp.float32).sum())(w)
    return total + gradient.astype(jnp.float32)


@pytest.mark.parametrize(("platform", "product"), [("cpu", "dot_general"), ("cuda", "ragged_dot")])
def test_the_weight_gradient_of_a_ragged_product(platform: str, product: str) -> None:
    arguments = (
        jax.ShapeDtypeStruct((4, 8, 16), jnp.float32),
        jax.ShapeDtypeStruct((32, 8), jnp.bfloat16),
        jax.ShapeDtypeStruct((4, 8, 16), jnp.bfloat16),
        jax.ShapeDtypeStruct((4,), jnp.int32),
    )
    lowered = jax.jit(ragged).trace(*arguments).lower(lowering_platforms=(platform,))
    module = clone_module(lowered.compiler_ir())
    run = Pipeline.parse(SPEC).run(module, target=GPU).runs[-1]
    assert run.summary == "1 product added in place"
    [line] = [line for line in str(module).splitlines() if f"{product}" in line and " = " in line]
    assert line.split(" loc(")[0].endswith("-> tensor<4x8x16xf32>")


def test_nothing_to_add() -> None:
    x = jax.ShapeDtypeStruct((8, 8), jnp.bfloat16)
    _, _, run = rewritten(lambda x: (x @ x) + x, x)
    assert run.runs[-1].empty
    assert run.runs[-1].summary == "0 products added in place"


DEVICES = 4
WIDTH, OUTPUTS, ROWS = 8, 12, 64
STEP_SPEC = "accumulate{microbatches=4}"


def step(w: Any, x: Any) -> Any:
    """A step whose gradient JAX writes as a product, a transpose and a conversion."""

    def loss(w: Any) -> Any:
        return (jnp.tanh(x @ w).astype(jnp.float32) ** 2).sum()

    return w - 1e-2 * jax.grad(loss)(w).astype(jnp.float32)


def narrow(w: Any, x: Any) -> Any:
    return step(w.astype(jnp.bfloat16), x.astype(jnp.bfloat16))


def accumulated(
    function: Any, *arguments: Any, platform: str = "cuda", spec: str = STEP_SPEC
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
        ("cuda", STEP_SPEC, ["f32"]),
        ("tpu", STEP_SPEC, ["f32"]),
        ("cuda", "accumulate{microbatches=3}", ["f32", "f32"]),  # the last one is shorter
        ("cpu", STEP_SPEC, ["bf16"]),
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
