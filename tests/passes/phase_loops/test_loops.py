"""What the loops hold, what leaves them, where they stand, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from support.flows.runs import compiled, flow_of, lowered

from hloom.passes.analysis.dimension_flow.result import Seed
from hloom.passes.analysis.dimension_flow.solve import dimension_flow
from hloom.passes.analysis.program import Program
from hloom.passes.framework.errors import NotPossibleError
from hloom.passes.phase_loops.exits import own_type, widened
from hloom.passes.phase_loops.placement import check_together
from hloom.passes.phase_loops.plan import LoopsPlan, plan_loops
from hloom.passes.phase_loops.write import apply_loops

ROWS, WIDTH = 6, 4
DRAWN = np.random.default_rng(1)
X = DRAWN.normal(size=(ROWS, WIDTH)).astype(np.float32)
W = DRAWN.normal(size=(WIDTH, WIDTH)).astype(np.float32)


def looped(
    function: Callable[..., Any], *arguments: Any, chunks: int = 3, **options: Any
) -> tuple[LoopsPlan, str]:
    """The plan for the first argument's rows, and the module with the loops.

    What the module computes is checked to be the same.
    """
    module = lowered(function, *arguments)
    wanted = compiled(module, arguments)
    with module.context, ir.Location.unknown():
        plan = plan_loops(flow_of(module, (0, 0)), chunks, **options)
        apply_loops(plan, "loops")
    assert module.operation.verify()
    for one, other in zip(compiled(module, arguments), wanted, strict=True):
        one, other = (np.asarray(each).astype(np.complex64) for each in (one, other))
        np.testing.assert_allclose(one, other, rtol=2e-2 if options else 1e-5, atol=1e-5)
    return plan, str(module)


def leaves(plan: LoopsPlan) -> list[str]:
    return [str(found) for found in plan.exits]


def body(text: str) -> str:
    """The text of the first loop's body."""
    start = text.index("} do {")
    return text[start : text.index("\n    }", start)]


def test_chunks_and_terms() -> None:
    plan, text = looped(lambda x, w: (jnp.sin(x @ w), jnp.sin(x @ w).sum(0)), X, W)
    assert leaves(plan) == ["tensor<6x4xf32>, stacked", "tensor<4xf32>, accumulated"]
    assert plan.summary() == "1 loop of 3 chunks of 2"
    assert "tensor<6x4xf32>, tensor<4x4xf32>" not in text, "the product of all rows is gone"


@pytest.mark.parametrize(
    ("chunks", "summary"),
    [
        (4, "1 loop of 3 chunks of 2"),
        (5, "1 loop of 3 chunks of 2"),
        (6, "1 loop of 6 chunks of 1"),
        (2, "1 loop of 2 chunks of 3"),
    ],
)
def test_chunks_that_divide(chunks: int, summary: str) -> None:
    plan, _ = looped(lambda x, w: jnp.tanh(x @ w), X, W, chunks=chunks)
    assert plan.summary() == summary


def test_a_last_shorter_chunk() -> None:
    x = np.concatenate([X, X[:1]])
    plan, _ = looped(lambda x, w: (jnp.tanh(x @ w), (x @ w).sum(), (x @ w).max(0)), x, W, chunks=2)
    assert plan.summary() == "1 loop of 2 chunks of 4, the last of 3"


@pytest.mark.parametrize("chunks", [0, 1, 7])
def test_chunks_that_there_are_not(chunks: int) -> None:
    module = lowered(lambda x, w: x @ w, X, W)
    with pytest.raises(ValueError, match="want 2 to 6"):
        plan_loops(flow_of(module, (0, 0)), chunks)


REDUCED: dict[str, Callable[[Any], Any]] = {
    "float32": lambda y: y,
    "bfloat16": lambda y: y.astype(jnp.bfloat16),
    "float16": lambda y: y.astype(jnp.float16),
    "int32": lambda y: jnp.round(y * 100).astype(jnp.int32),
    "int8": lambda y: jnp.round(y).astype(jnp.int8),
    "uint8": lambda y: jnp.abs(jnp.round(y)).astype(jnp.uint8),
    "bool": lambda y: y > 0,
}


@pytest.mark.parametrize("dtype", REDUCED)
def test_the_largest_and_the_least(dtype: str) -> None:
    """All are negative, or all positive: what accumulators start with shows in no result."""

    def extremes(x: Any, w: Any) -> Any:
        values = REDUCED[dtype](-jnp.abs(x @ w) - 1), REDUCED[dtype](jnp.abs(x @ w) + 1)
        both = (jnp.any, jnp.all) if dtype == "bool" else (jnp.max, jnp.min)
        return [reduce(value, 0) for value in values for reduce in both]

    plan, _ = looped(extremes, X, W)
    assert any("accumulated" in each for each in leaves(plan))


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float16", "float8_e4m3fn", "int8", "int4", "bool", "complex64"]
)
def test_chunks_of_every_type(dtype: str) -> None:
    plan, _ = looped(lambda x, w: jnp.round(x @ w).astype(dtype), X, W)
    assert "stacked" in leaves(plan)[0]


def test_complex_terms() -> None:
    x = (X + 1j * X[::-1]).astype(np.complex64)
    plan, _ = looped(lambda x, w: x.T @ (x @ w), x, W.astype(np.complex64))
    assert leaves(plan) == ["tensor<4x4xcomplex<f32>>, accumulated"]


def test_nothing_of_something() -> None:
    """Values without elements, of which there are chunks as of others."""
    empty = np.zeros((ROWS, 0), np.float32)
    plan, _ = looped(lambda x, w, e: (x @ w, (x @ w)[:, :0] + e), X, W, empty)
    assert len(plan.exits) == 2


def narrow(x: Any, w: Any) -> Any:
    x, w = x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)
    return x.T @ jnp.tanh(x @ w)


def test_terms_of_narrow_types_are_added_up_in_float32() -> None:
    plan, text = looped(narrow, X, W, accumulate_in=widened)
    assert leaves(plan) == ["tensor<4x4xbf16>, accumulated in f32"]
    assert re.search(r"dot_general.*-> tensor<4x4xf32>", body(text)), "the term is the product"


def test_or_in_their_own_type() -> None:
    plan, text = looped(narrow, X, W, accumulate_in=own_type)
    assert leaves(plan) == ["tensor<4x4xbf16>, accumulated"]
    assert "tensor<4x4xf32>" not in body(text)


def test_a_sum_that_is_converted_is_left_in_the_wider_type() -> None:
    plan, _ = looped(lambda x, w: narrow(x, w).astype(jnp.float32) * 2, X, W, accumulate_in=widened)
    assert leaves(plan) == ["tensor<4x4xf32>, accumulated"]


def test_one_accumulator_for_all_that_is_made_of_a_sum() -> None:
    def adam(x: Any, w: Any) -> Any:
        g = x.T @ jnp.tanh(x @ w)
        return 0.9 * g, g.T / 3, g * g

    plan, text = looped(adam, X, W)
    assert leaves(plan) == ["tensor<4x4xf32>, accumulated"]
    assert "multiply" not in body(text).replace("stablehlo.multiply %iterArg", "")


def test_a_loop_is_left_where_the_accumulator_is_smallest() -> None:
    plan, _ = looped(lambda x, w: jnp.broadcast_to((x @ w).sum(), (64, 64)) * 2, X, W)
    assert leaves(plan) == ["tensor<f32>, accumulated"]


def test_masks_are_made_in_the_loop_and_their_parts_are_cut() -> None:
    def masked(x: Any, w: Any) -> Any:
        rows = jnp.arange(ROWS)[:, None] >= jnp.arange(WIDTH)[None, :]
        return jnp.where(rows, x @ w, -1e9).sum(0) + (x @ w).sum(0)

    _, text = looped(masked, X, W)
    assert "tensor<6x4xi1>" not in text
    assert "stablehlo.compare" in body(text)


def test_the_same_data_in_another_order_is_read_in_the_loop() -> None:
    _, text = looped(lambda x, w: (x @ w) @ w.T, X, W)
    assert "stablehlo.transpose" in body(text)


def standardized(x: Any, w: Any) -> Any:
    shifted = w - w.mean(0)
    return (x @ (shifted * jnp.cos(w))).sum(0)


def test_what_is_made_of_arguments_may_be_made_in_the_loop() -> None:
    """Not where it saves too little, as the mean, and no product of them."""
    own = WIDTH * WIDTH * 4
    _, text = looped(standardized, X, W, remade_bytes=own // 2)
    assert "stablehlo.cosine" in body(text)
    assert "stablehlo.reduce" not in body(text).partition("dot_general")[0]
    for options in ({}, {"remade_bytes": own + 1}):
        _, text = looped(standardized, X, W, **options)
        assert "stablehlo.cosine" not in body(text)
    _, text = looped(lambda x, w: (x @ (w @ w)).sum(0), X, W, remade_bytes=1)
    assert body(text).count("dot_general") == 1


def test_a_part_of_what_is_made_of_arguments_is_cut() -> None:
    """All of it, made again for a part of each trip, would be more work for nothing."""
    table = DRAWN.normal(size=(ROWS, WIDTH)).astype(np.float32)

    def reversed_rows(x: Any, w: Any, table: Any) -> Any:
        return ((x @ w) * jnp.sin(table)[::-1]).sum(0)

    _, text = looped(reversed_rows, X, W, table, remade_bytes=1)
    assert "stablehlo.sine" not in body(text)


def test_labels_that_are_no_seed_are_cut_where_they_are_smallest() -> None:
    labels = np.arange(ROWS) % WIDTH

    def picked(x: Any, w: Any, labels: Any) -> Any:
        return (jax.nn.one_hot(labels, WIDTH) * (x @ w)).sum()

    plan, text = looped(picked, X, W, labels)
    assert len(plan.loops) == 1
    assert "dynamic_slice %arg2" in body(text)


def test_what_a_loop_needs_goes_before_it() -> None:
    """The second loop reads what follows on a result of the first one, and an argument's sine,
    which stands behind."""

    def late(x: Any, w: Any) -> Any:
        y = x @ w
        centre = y.mean(0)
        spare = centre * 2
        return spare, (y - jnp.sort(centre)) @ jnp.sin(w)

    plan, _ = looped(late, X, W)
    assert plan.summary() == "2 loops of 3 chunks of 2"


def test_a_barrier_of_both_kinds() -> None:
    """One of its results is whole, and read after the loop."""

    def kept_apart(x: Any, w: Any) -> Any:
        y, v = jax.lax.optimization_barrier((x @ w, w))
        return (jnp.sin(y) @ v).sum(0), v * 2

    _, text = looped(kept_apart, X, W)
    assert "optimization_barrier" in body(text)


def test_a_carry_that_is_the_same_in_every_chunk() -> None:
    def counted(x: Any, w: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda i, c: (jnp.sin(c[0]) @ w, c[1] + 1), (x @ w, 0))

    plan, _ = looped(counted, X, W)
    assert [found.leaves.value for found in plan.exits] == ["stacked", "same"]


def test_arguments_keep_what_is_said_of_them() -> None:
    def step(x: Any, w: Any) -> Any:
        return w - (x.T @ jnp.tanh(x @ w)) * 1e-3

    module = jax.jit(step, donate_argnums=1, keep_unused=True).lower(X, W).compiler_ir()
    before = str(module).partition("{\n")[2].splitlines()[0]
    assert "tf.aliasing_output" in before
    with module.context, ir.Location.unknown():
        apply_loops(plan_loops(flow_of(module, (0, 0)), 3), "loops")
    assert str(module).partition("{\n")[2].splitlines()[0] == before


@pytest.mark.parametrize("ordered", [False, True])
def test_a_callback_is_no_part_of_a_loop(ordered: bool) -> None:
    """It reads all rows, so that the rows after it are in another loop."""

    def told(x: Any, w: Any) -> Any:
        y = jnp.tanh(x @ w)
        jax.debug.callback(lambda value: None, y, ordered=ordered)
        return y @ w

    module = lowered(told, X, W)
    with module.context, ir.Location.unknown():
        plan = plan_loops(flow_of(module, (int(ordered), 0)), 3)  # a token comes first
        assert leaves(plan)[0] == "tensor<6x4xf32>, stacked"
        apply_loops(plan, "loops")
    assert module.operation.verify()
    [call] = re.findall(r"^( *).*custom_call @xla_.*callback", str(module), re.MULTILINE)
    assert call == " " * 4, "it stands in no loop"


def parts(function: Callable[..., Any], *arguments: Any) -> tuple[ir.Module, Program]:
    module = lowered(function, *arguments)
    return module, Program.of(module)


def of_part(program: Program, names: Sequence[str], seed: ir.Value) -> LoopsPlan:
    part = program.part([n for n in program.root.nodes if n.op.name.partition(".")[2] in names])
    with seed.context, ir.Location.unknown():
        return plan_loops(dimension_flow(part, [Seed.along(seed, 0)]), 2)


def test_a_part_that_is_left_and_entered_again_is_refused() -> None:
    def around(x: Any, w: Any) -> Any:
        y = x @ w
        return y @ jnp.tanh(y.sum(0)) + jnp.cos(y).sum(1)

    module, program = parts(around, X, W)
    product = next(n for n in program.root.nodes if n.op.name == "stablehlo.dot_general")
    inside = ["dot_general", "cosine", "reduce", "constant"]
    with pytest.raises(NotPossibleError, match="made of its own results") as error:
        of_part(program, inside, product.op.operands[0])
    assert error.value.op.name == "stablehlo.tanh"
    assert module.operation.verify()


def test_two_parts_of_one_block() -> None:
    def layers(x: Any, w: Any) -> Any:
        return jnp.tanh(jnp.sin(x @ w) @ w).sum(0)

    module, program = parts(layers, X, W)
    wanted = compiled(module, (X, W))
    nodes = program.root.nodes
    second = [n.op.name for n in nodes].index("stablehlo.dot_general", 1)
    replaced: dict[ir.Value, ir.Value] = {}
    with module.context, ir.Location.unknown():
        plans = []
        for group in (nodes[:second], nodes[second:]):
            product = next(n for n in group if n.op.name == "stablehlo.dot_general")
            seed = Seed.along(product.op.results[0], 0)
            plans.append(plan_loops(dimension_flow(program.part(group), [seed]), 2))
        for plan in plans:
            apply_loops(plan, "loops", replaced)
    assert module.operation.verify()
    assert str(module).count("stablehlo.while") == 2
    np.testing.assert_allclose(compiled(module, (X, W))[0], wanted[0], rtol=1e-5)


def test_parts_that_wait_for_each_other_are_refused() -> None:
    """Each reads what the other one makes, of operations that could be in turn."""

    def crossed(x: Any, w: Any) -> Any:
        first, second = jnp.tanh(x @ w), jnp.tanh(x @ (w * 2))
        return first @ w + second, second @ w + first

    _, program = parts(crossed, X, W)
    nodes = program.root.nodes
    a, b, c, d = (n for n in nodes if n.op.name == "stablehlo.dot_general")
    sines = [n for n in nodes if n.op.name == "stablehlo.tanh"]
    assert len(sines) == 2

    def plan_of(product: Any, groups: Sequence[Any]) -> LoopsPlan:
        with product.op.context, ir.Location.unknown():
            flow = dimension_flow(program.part(groups), [Seed.along(product.op.results[0], 0)])
            return plan_loops(flow, 2)

    apart = [plan_of(a, [a, sines[0]]), plan_of(b, [b, sines[1]])]
    check_together(program.root, [plan.contents for plan in apart])
    sums = [n for n in nodes if n.op.name == "stablehlo.add"]
    crossing = [plan_of(a, [a, sines[0], d, sums[1]]), plan_of(b, [b, sines[1], c, sums[0]])]
    with pytest.raises(NotPossibleError, match="wait for each other"):
        check_together(program.root, [plan.contents for plan in crossing])
