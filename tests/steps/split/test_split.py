"""`split`: the two functions give what the step gives, and cross what the cut says.

`split` in three: each product of the backward pass is in one of the two backward functions.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, seed
from hypothesis import strategies as st
from jax.extend.mlir import ir
from support.examples import drawn
from support.programs import normal, weights
from support.random_programs import ROWS, WIDTH, Step, interpret, programs, run
from support.results import assert_equal

from hloom.passes.analysis.loops.counted import runs_of
from hloom.passes.framework.errors import PassError
from hloom.passes.framework.pipeline import Pipeline, PipelineResult
from hloom.passes.framework.tables import facts_of, rows_of
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.types import tensor_bytes
from hloom_steps.split.boundary import COTANGENT, GRADIENT, WEIGHT_GRADIENT
from hloom_steps.split.plan import DONE_AGAIN, SplitPlan

LAYERS = 3
ARGUMENTS = normal(ROWS, WIDTH), weights(1, WIDTH)[0], normal(ROWS, WIDTH, seed=2)


def joint(program: Any, *arguments: Any) -> ir.Module:
    """A step of (x, w, cotangent) that gives y and the gradients: with arguments of its own that of
    w is one of weights."""

    def step(x: Any, w: Any, ct: Any) -> Any:
        y, pullback = jax.vjp(program, x, w)
        return y, *pullback(ct)

    given = arguments or ARGUMENTS
    module = clone_module(jax.jit(step, keep_unused=True).lower(*given).compiler_ir())
    main = walk.entry_function(module)
    with module.context:
        unit, none = ir.UnitAttr.get(), ir.DictAttr.get({})
        *before, last = walk.attributes(main).get("arg_attrs", [none] * 3)
        known = {entry.name: entry.attr for entry in ir.DictAttr(last)}
        marked = ir.DictAttr.get(known | {COTANGENT: unit})
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([*before, marked])
        if arguments:
            main.attributes["res_attrs"] = ir.ArrayAttr.get(
                [none, ir.DictAttr.get({GRADIENT: unit}), ir.DictAttr.get({WEIGHT_GRADIENT: unit})]
            )
    return module


def layers(x: Any, w: Any) -> Any:
    for _ in range(LAYERS):
        x = jax.numpy.sin(x @ w)
    return x


def split(module: ir.Module, spec: str = "split", target: Target | None = None) -> PipelineResult:
    return Pipeline.parse(spec).run(module, target=target or Target())


def names(module: ir.Module, function: str) -> list[str]:
    return [op.name for op in walk.operations(walk.functions(module)[function])]


@seed(31)
@drawn(24)
@given(programs, st.sampled_from(("split", "remat{min_bytes=0},split", "split{residuals=0}")))
def test_random_programs_give_what_they_gave(program: list[Step], spec: str) -> None:
    module = joint(lambda x, w: run(program, x, w))
    wanted = interpret(module, ARGUMENTS)
    split(module, spec)
    assert_equal(interpret(module, ARGUMENTS), wanted)


def test_the_backward_function_is_what_depends_on_the_cotangent() -> None:
    module = joint(layers)
    before = names(module, "main").count("stablehlo.dot_general")
    result = split(module)
    products = [
        names(module, each).count("stablehlo.dot_general") for each in ("forward", "backward")
    ]
    assert products == [LAYERS, 2 * LAYERS]
    assert sum(products) == before
    facts = facts_of(result.runs[-1].plan)
    # The product of each layer, from which its sine and cosine are made again.
    assert facts["residuals"] == LAYERS
    assert facts["bytes of residuals"] == LAYERS * ROWS * WIDTH * 4
    assert facts["arguments read again"] == 2
    assert facts[DONE_AGAIN] == 0


def test_the_same_module_gives_the_same_bytes() -> None:
    first, second = joint(layers), joint(layers)
    split(first)
    split(second)
    assert str(first) == str(second)


@pytest.mark.parametrize("kept", range(LAYERS + 1))
def test_a_bound_holds_with_as_few_products_again_as_it_takes(kept: int) -> None:
    module = joint(layers)
    result = split(module, f"split{{residuals={kept * ROWS * WIDTH * 4}B}}")
    facts = facts_of(result.runs[-1].plan)
    again = names(module, "backward").count("stablehlo.dot_general") - 2 * LAYERS
    assert facts["bytes of residuals"] == kept * ROWS * WIDTH * 4
    assert again == LAYERS - kept
    assert facts[DONE_AGAIN] == pytest.approx(again / (3 * LAYERS))
    assert len(rows_of(result.runs[-1].plan, "Done again")) == bool(again)


def test_a_bound_holds_in_scans() -> None:
    def scanned(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda c, _: (jax.numpy.sin(c @ w @ w), None), x, None, length=8)[0]

    module = joint(scanned)
    wanted = interpret(module, ARGUMENTS)
    free = clone_module(module)
    whole = facts_of(split(free).runs[-1].plan)["bytes of residuals"]
    # Slices of these are small, and stay stacked as they are.
    result = split(module, f"split{{residuals={int(whole) // 2}B}}")
    assert facts_of(result.runs[-1].plan)["bytes of residuals"] <= whole // 2
    for got, value in zip(interpret(module, ARGUMENTS), wanted, strict=True):
        np.testing.assert_allclose(got, value, rtol=1e-6)


def test_without_a_cotangent_nothing_is_done() -> None:
    module = jax.jit(layers).lower(*ARGUMENTS[:2]).compiler_ir()
    before = str(module)
    result = split(module, "split")
    assert "no argument of the program carries hloom.cotangent" in result.runs[-1].refusal
    assert not result.changed
    assert str(module) == before


def test_a_callback_is_named_with_its_line() -> None:
    def with_print(x: Any, w: Any) -> Any:
        jax.debug.print("{}", x.sum())
        return layers(x, w)

    with pytest.raises(
        PassError, match=r"a callback to Python is in the step: .*test_split\.py:\d+"
    ):
        split(joint(with_print))


STACKS = 4
STACKED = 0.3 * normal(STACKS, WIDTH, WIDTH)
ROW, MATRIX = normal(ROWS, WIDTH), weights(1, WIDTH)[0]


def products(module: ir.Module, function: str) -> int:
    """The matrix products that a function runs, of loops each iteration's."""
    found = walk.operations(walk.functions(module)[function])
    return sum(runs_of(op.block) for op in found if op.name == "stablehlo.dot_general")


def assert_divided(module: ir.Module, arguments: Any, spec: str = "split") -> PipelineResult:
    """Splits in three: the values stay, and no product is run twice."""
    split(module, "inline")
    wanted, before = interpret(module, arguments), products(module, "main")
    result = split(module, spec)
    assert_equal(interpret(module, arguments), wanted)
    parts = [products(module, name) for name in ("forward", "backward_x", "backward_w")]
    assert sum(parts) == before
    return result


@seed(31)
@drawn(24)
@given(programs, st.sampled_from(("split", "remat{min_bytes=0},split")))
def test_random_programs_with_weights_give_what_they_gave(program: list[Step], spec: str) -> None:
    module = joint(lambda x, w: run(program, x, w), ROW, MATRIX, ROW)
    wanted = interpret(module, (ROW, MATRIX, ROW))
    split(module, spec)
    assert_equal(interpret(module, (ROW, MATRIX, ROW)), wanted)


def layer(x: Any, w: Any) -> Any:
    return x + jnp.tanh((x * x) @ w)


def unrolled(x: Any, ws: Any) -> Any:
    for number in range(STACKS):
        x = layer(x, ws[number])
    return x


def scanned(x: Any, ws: Any) -> Any:
    return jax.lax.scan(lambda c, w: (layer(c, w), None), x, ws)[0]


def two_scans(x: Any, ws: Any) -> Any:
    return scanned(jnp.sin(scanned(x, ws[:2])), ws[2:])


def scan_of_a_scan(x: Any, ws: Any) -> Any:
    """Its gradients of weights are sums over the outer loop of stacks of the inner one."""
    return jax.lax.scan(lambda c, _: (scanned(c, ws), None), x, None, length=2)[0]


def scan_of_one_matrix(x: Any, ws: Any) -> Any:
    return jax.lax.scan(lambda c, _: (layer(c, ws[0]), None), x, None, length=3)[0]


@pytest.mark.parametrize("spec", ["split", "remat{min_bytes=0},split"])
@pytest.mark.parametrize(
    "program", [unrolled, scanned, two_scans, scan_of_a_scan, scan_of_one_matrix]
)
def test_each_product_is_in_one_function(program: Any, spec: str) -> None:
    module = joint(program, ROW, STACKED, ROW)
    result = assert_divided(module, (ROW, STACKED, ROW), spec)
    # Of a layer's three products one is of each function.
    forward, of_inputs, of_weights = (
        products(module, name) for name in ("forward", "backward_x", "backward_w")
    )
    assert forward == of_inputs == of_weights > 0
    facts = facts_of(result.runs[-1].plan)
    held = (facts["bytes of residuals for gradients of weights"],
            facts["bytes handed to gradients of weights"])  # fmt: skip
    arguments = walk.functions(module)["backward_w"].regions[0].blocks[0].arguments
    attributes = ir.ArrayAttr(walk.functions(module)["backward_w"].attributes["arg_attrs"])
    read = [
        tensor_bytes(value.type)
        for value, each in zip(arguments, attributes, strict=True)
        if "hloom.residual" in ir.DictAttr(each)
    ]
    assert sum(held) == sum(each or 0 for each in read)
    assert bool(rows_of(result.runs[-1].plan, "Handed to gradients of weights"))


def test_what_the_gradient_of_an_input_needs_stays_in_the_first_function() -> None:
    """A product that both need is of the first one, cheap work is where it takes fewer bytes."""

    def program(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w) @ w

    module = joint(program, ROW, MATRIX, ROW)
    assert_divided(module, (ROW, MATRIX, ROW))
    assert products(module, "backward_x") == 2
    assert products(module, "backward_w") == 2


def test_sums_for_biases_cross_and_not_what_they_are_of() -> None:
    def program(x: Any, b: Any) -> Any:
        return jnp.tanh(jnp.tanh(x @ MATRIX + b) @ MATRIX)

    bias = normal(WIDTH)
    module = joint(program, ROW, bias, ROW)
    result = assert_divided(module, (ROW, bias, ROW))
    facts = facts_of(result.runs[-1].plan)
    assert facts["bytes handed to gradients of weights"] == bias.nbytes
    assert facts["bytes of residuals for gradients of weights"] == 0


def test_a_loop_that_adds_up_biases_alone_stays_whole() -> None:
    def program(x: Any, b: Any) -> Any:
        return jax.lax.scan(lambda c, row: (jnp.tanh(c @ MATRIX + row), None), x, b)[0]

    biases = normal(STACKS, WIDTH)
    module = joint(program, ROW, biases, ROW)
    assert_divided(module, (ROW, biases, ROW))
    found = walk.operations(walk.functions(module)["backward_w"])
    assert "stablehlo.while" not in [op.name for op in found]


def test_a_loop_of_unknown_trip_count_stays_whole() -> None:
    def program(x: Any, ws: Any) -> Any:
        @jax.custom_vjp
        def looped(x: Any, w: Any) -> Any:
            return x * w.sum()

        def backward(kept: Any, ct: Any) -> Any:
            x, w = kept
            trips = jnp.int32(2) + (x.sum() > 1e9)

            def body(carried: Any) -> Any:
                count, gx, gw = carried
                return count + 1, gx @ w, gw + x.T @ gx

            found = jax.lax.while_loop(lambda c: c[0] < trips, body, (0, ct, jnp.zeros_like(w)))
            return found[1:]

        looped.defvjp(lambda x, w: (looped(x, w), (x, w)), backward)
        return looped(x, ws)

    module = joint(program, ROW, MATRIX, ROW)
    wanted = interpret(module, (ROW, MATRIX, ROW))
    split(module)
    assert_equal(interpret(module, (ROW, MATRIX, ROW)), wanted)
    assert products(module, "backward_w") == 0


def test_the_same_module_with_weights_gives_the_same_bytes() -> None:
    first, second = (joint(scan_of_a_scan, ROW, STACKED, ROW) for _ in range(2))
    split(first)
    split(second)
    assert str(first) == str(second)


def test_a_bound_holds() -> None:
    module = joint(unrolled, ROW, STACKED, ROW)
    bound = 2 * ROW.nbytes
    wanted = interpret(module, (ROW, STACKED, ROW))
    result = split(module, f"split{{residuals={bound}B}}")
    plan = result.runs[-1].plan
    assert facts_of(plan)["bytes of residuals"] <= bound
    assert_equal(interpret(module, (ROW, STACKED, ROW)), wanted)
    again = sum(products(module, each) for each in ("forward", "backward_x", "backward_w"))
    assert 3 * STACKS < again <= 4 * STACKS


def test_the_plan_says_what_is_held() -> None:
    module = joint(scanned, ROW, STACKED, ROW)
    summary = split(module).runs[-1].summary
    assert "held for the gradients of weights" in summary
    assert SplitPlan().kept == ()
