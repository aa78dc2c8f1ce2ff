"""`split`: the two functions give what the step gives, and cross what the cut says."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, seed
from hypothesis import strategies as st
from jax.extend.mlir import ir
from support.examples import drawn
from support.programs import normal, weights
from support.random_programs import ROWS, WIDTH, Step, interpret, programs, run
from support.results import assert_equal

from hloom.passes.framework.errors import PassError
from hloom.passes.framework.pipeline import Pipeline, PipelineResult
from hloom.passes.framework.tables import facts_of, rows_of
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom_steps.split.boundary import COTANGENT
from hloom_steps.split.plan import DONE_AGAIN

LAYERS = 3
ARGUMENTS = normal(ROWS, WIDTH), weights(1, WIDTH)[0], normal(ROWS, WIDTH, seed=2)


def joint(program: Any) -> ir.Module:
    """A step with its gradients, whose cotangent is marked."""

    def step(x: Any, w: Any, ct: Any) -> Any:
        y, pullback = jax.vjp(program, x, w)
        return y, pullback(ct)

    module = clone_module(jax.jit(step, keep_unused=True).lower(*ARGUMENTS).compiler_ir())
    main = walk.entry_function(module)
    with module.context:
        *before, last = main.attributes["arg_attrs"] if "arg_attrs" in main.attributes else (
            [ir.DictAttr.get({})] * 3)  # fmt: skip
        known = {entry.name: entry.attr for entry in ir.DictAttr(last)}
        marked = ir.DictAttr.get(known | {COTANGENT: ir.UnitAttr.get()})
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([*before, marked])
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
