"""What single values are, what a flow needs and says, and which seeds it takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.flows.runs import Where, assert_chunks_agree, flow_of, lowered, results_of
from support.flows.steps import contrast_in_the_batch

from hloom.passes.analysis.dimension_flow.result import Seed
from hloom.passes.analysis.dimension_flow.solve import dimension_flow
from hloom.passes.analysis.program import Program
from hloom.passes.analysis.signatures.signature import AxisLayout

ROWS, WIDTH = 4, 3

X = np.linspace(-1, 1, ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
Y = np.linspace(0, 1, ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
W = np.linspace(-2, 1, WIDTH * WIDTH, dtype=np.float32).reshape(WIDTH, WIDTH)

SPLIT = "split along axis 0 in phase 1"
SUM = "partial sum in phase 1"


def made(x: Any) -> Any:
    """The same, as a product makes it: it is not there before the loop."""
    return x @ jnp.eye(WIDTH)


def rounded(x: Any) -> Any:
    return x.astype(jnp.bfloat16).astype(jnp.float32)


def one_or_other(x: Any, w: Any) -> Any:
    return lax.cond(w.sum() > 9, lambda: x.sum(0), lambda: w[0])


def windows_of(x: Any, starts: Any) -> Any:
    """Two rows of x for each start."""
    return jax.vmap(lambda start: lax.dynamic_slice(x, (start, 0), (2, WIDTH)))(starts)


def products_of_small_numbers(x: Any) -> Any:
    """Exact in bfloat16, so that it does not matter when they are summed."""
    x = jnp.round(x * 2).astype(jnp.bfloat16)
    return (x.T @ x).astype(jnp.float32)


def flow_through(function: Callable[..., Any], *arguments: Any, seeds: list[Where]) -> list[str]:
    """What a function returns, which is checked to be the same in chunks."""
    module = lowered(function, *arguments)
    flow = flow_of(module, *seeds)
    assert_chunks_agree(module, flow, arguments)
    return results_of(flow)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, w: jnp.tanh(x) + w[0], SPLIT),
        (lambda x, w: x.T, "split along axis 1 in phase 1"),
        (lambda x, w: (x @ w).sum(0), SUM),
        (lambda x, w: (x @ w).max(0), "partial maximum in phase 1"),
        (lambda x, w: (x @ w).min(), "partial minimum in phase 1"),
        (lambda x, w: jnp.any(x > 0, 0), "partial maximum in phase 1"),
        (lambda x, w: jnp.all(x > 0), "partial minimum in phase 1"),
        (lambda x, w: (x @ w).prod(0), "whole after phase 1"),
        (lambda x, w: x.T @ (x @ w), SUM),
        (lambda x, w: w @ x.sum(0) / 2 - x.sum(0), SUM),
        (lambda x, w: jnp.where(w > 0, x.sum(0), 0.0), SUM),
        (lambda x, w: x.sum(0) * w.max(0) + w[0], "whole after phase 1"),
        (lambda x, w: x.sum(0) * x.sum(0), "whole after phase 1"),
        (lambda x, w: x.sum(0) + x.max(0), "whole after phase 1"),
        (lambda x, w: jnp.maximum(x.max(0), w[0]), "partial maximum in phase 1"),
        (lambda x, w: rounded(x.max(0)), "partial maximum in phase 1"),
        (lambda x, w: products_of_small_numbers(x), SUM),
        (lambda x, w: rounded(x.sum(0)), "whole after phase 1"),
        (lambda x, w: (x > 0).sum(0), SUM),
        (lambda x, w: (x > 0).sum(0).astype(jnp.float32), "whole after phase 1"),
        (lambda x, w: x - x.mean(0), "split along axis 0 in phase 2"),
        (lambda x, w: jnp.cumsum(x, 1), SPLIT),
        (lambda x, w: jnp.sort(jnp.sin(x), 0), "whole after phase 1"),
        (lambda x, w: jnp.sin(x)[:2], "whole after phase 1"),
        (lambda x, w: jnp.sin(x)[:, :2], SPLIT),
        (lambda x, w: jnp.sin(x).reshape(-1), "split along axis 0 as [1, 4, 3] in phase 1"),
        (lambda x, w: jnp.sin(x).T.reshape(-1, 1), "split along axis 0 as [3, 4, 1] in phase 1"),
        (lambda x, w: jnp.sin(x).reshape(2, 6), "whole after phase 1"),
        (lambda x, w: w[jnp.int32(x[:, 0])], SPLIT),
        (lambda x, w: jnp.zeros_like(w).at[jnp.int32(x[:, 0])].add(x), SUM),
        (lambda x, w: w.at[jnp.int32(x[:, 0])].add(x), "whole after phase 1"),
        (lambda x, w: lax.div((x > 0).sum(0), 2), "whole after phase 1"),
        (lambda x, w: jax.nn.relu(x.sum(0)), "whole after phase 1"),
        (lambda x, w: jnp.where(jnp.any(x > 0, 0), w[0], w[1]), "whole after phase 1"),
        (lambda x, w: jnp.concatenate([jnp.sin(x), jnp.cos(x)]), "whole after phase 1"),
        (lambda x, w: windows_of(jnp.sin(x), jnp.int32(w[0])), "whole after phase 1"),
        (lambda x, w: one_or_other(jnp.sin(x), w), "whole after phase 1"),
        (lambda x, w: w @ w, "invariant"),
    ],
)
def test_what_a_value_is(function: Callable[..., Any], expected: str) -> None:
    found = flow_through(lambda x, w: function(made(x), w), X, W, seeds=[(0, 0)])
    assert found == [expected]


def test_two_dimensions_of_one_size_stay_apart() -> None:
    """One product of all pairs: the rows are split, and the columns whole."""
    found = flow_through(lambda x, y: made(x) @ made(y).T, X, Y, seeds=[(0, 0), (1, 0)])
    assert found == ["split along axis 0 in phase 2"]


def test_the_columns_of_what_is_given_are_whole_at_once() -> None:
    found = flow_through(lambda x, y: made(x) @ y.T, X, Y, seeds=[(0, 0), (1, 0)])
    assert found == [SPLIT]


@pytest.mark.parametrize("layout", [AxisLayout(0, 1, 4, 2), AxisLayout(0, 2, 4, 1)])
def test_a_factor_of_an_axis(layout: AxisLayout) -> None:
    """A batch that is cut in pieces of two, or on each of two devices."""
    x = np.arange(8.0, dtype=np.float32).reshape(8, 1)

    def program(x: Any) -> Any:
        y = x @ jnp.eye(1)
        return y.reshape(layout.outer * 4, layout.inner), y.sum()

    assert flow_through(program, x, seeds=[(0, layout)]) == [
        f"split along {AxisLayout(0, layout.outer, 4, 1)} in phase 1",
        SUM,
    ]


def test_global_norms_take_no_second_loop() -> None:
    def program(x: Any, w: Any) -> Any:
        gradient = x.T @ jnp.tanh(x @ w)
        return gradient * lax.rsqrt((gradient * gradient).sum())

    assert flow_through(program, X, W, seeds=[(0, 0)]) == ["whole after phase 1"]


def normalized(x: Any, w: Any) -> Any:
    y = jnp.tanh(x @ w)
    return y / jnp.sqrt((y * y).sum(0))


def test_a_flow_says_why_it_takes_its_phases() -> None:
    flow = flow_of(lowered(normalized, X, W), (0, 0))
    line = normalized.__code__.co_firstlineno + 2
    assert [phase.number for phase in flow.phases] == [1, 2]
    first, last = flow.phases
    assert (first.share, last.share) == (1.0, 0.0)
    [end] = first.ends
    assert end.reader.name == "stablehlo.sqrt"
    assert end.waits.name == "stablehlo.divide"
    text = re.sub(r"/\S*/", "", str(flow))
    assert text.splitlines() == [
        "dimension of 4: argument 0, tensor<4x3xf32> along axis 0",
        "phase 1: 4 operations, 100.0% of the products",
        f"  ends: sqrt (jit(normalized)/sqrt, test_flows.py:{line}) reads the whole of a "
        f"partial sum, tensor<3xf32> of reduce (jit(normalized)/reduce_sum, test_flows.py:{line}); "
        f"divide (jit(normalized)/div, test_flows.py:{line}) waits for it",
        "phase 2: 1 operation, 0.0% of the products",
        f"exit: tensor<3xf32> of reduce (jit(normalized)/reduce_sum, test_flows.py:{line}), "
        f"partial sum in phase 1, for sqrt (jit(normalized)/sqrt, test_flows.py:{line})",
        f"exit: tensor<4x3xf32> of divide (jit(normalized)/div, test_flows.py:{line}), "
        "split along axis 0 in phase 2, for the result",
        f"again: tensor<4x3xf32> of tanh (jit(normalized)/tanh, test_flows.py:{line - 1}), "
        "of phase 1, in phase 2",
    ]


def test_an_exit_is_smallest_before_its_sum_is_broadcast() -> None:
    """As the mean that a normalization over the batch subtracts."""

    def centred(x: Any, w: Any) -> Any:
        y = made(x)
        return y - 2.0 * jnp.broadcast_to(y.mean(0, keepdims=True), y.shape) @ w

    module = lowered(centred, X, W)
    [found] = [each for each in flow_of(module, (0, 0)).exits if not each.returned]
    assert (str(found.value.type), str(found.smallest.type)) == (
        "tensor<4x3xf32>",
        "tensor<1x3xf32>",
    )


def test_the_text_is_the_same_each_time() -> None:
    case = contrast_in_the_batch()
    seeds: list[Where] = [(number, 0) for number in case.batch_numbers]
    texts = {str(flow_of(lowered(case.step, *case.arguments), *seeds)) for _ in range(2)}
    assert len(texts) == 1


def test_contrast_in_the_batch_takes_more_than_one_loop() -> None:
    case = contrast_in_the_batch()
    module = lowered(case.step, *case.arguments)
    flow = flow_of(module, *[(number, 0) for number in case.batch_numbers])
    assert len(flow.phases) == case.phases
    assert flow.phases[0].ends[0].waits.name == "stablehlo.dot_general"
    assert_chunks_agree(module, flow, case.arguments, tolerance=2e-5)


def test_cuts_begin_where_they_have_to() -> None:
    """A bias needs none; a one-hot of labels needs a cut of the labels; a table is cut itself."""
    table = np.arange(ROWS, dtype=np.float32)
    labels = np.arange(ROWS, dtype=np.int32)

    def program(x: Any, bias: Any, labels: Any) -> Any:
        places = jnp.arange(ROWS, dtype=jnp.float32)
        x = made(x)
        return x + bias, x * jax.nn.one_hot(labels, WIDTH), x * table[:, None], x * places[:, None]

    module = lowered(program, X, X[0], labels)
    flow = flow_of(module, (0, 0))
    assert results_of(flow) == [SPLIT] * 4
    assert len(flow.cuts) >= 4
    sources = (str(cut).partition(", for")[0] for cut in flow.sources)
    assert {re.sub(r" \(.*\)", "", each) for each in sources} == {
        "argument 2, tensor<4xi32> along axis 0",
        "tensor<4xf32> of constant along axis 0",
        "tensor<4xf32> of iota along axis 0",
    }
    assert_chunks_agree(module, flow, (X, X[0], labels), count=3)


def test_of_one_dimension_of_several_axes_each_is_cut() -> None:
    found = flow_through(lambda x, y: made(x) * y, X, Y, seeds=[(0, 0), (1, 0)])
    assert found == [SPLIT]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda value: [], "a dimension needs a seed"),
        (lambda value: [Seed(value, AxisLayout(0, 1, 3, 1))], "of length 3: shape is"),
        (lambda value: [Seed(value, AxisLayout(2, 1, 4, 1))], "along axis 2 of length 4"),
        (
            lambda value: [Seed.along(value, 0), Seed.along(value, 1)],
            "dimension is of 3, and the first one's of 4",
        ),
        (lambda value: [Seed.along(value, 0, parts=4)], "want one size, of 2 at least"),
    ],
)
def test_seeds_that_are_none(make: Callable[..., Any], message: str) -> None:
    program = Program.of(lowered(lambda x: x * 2, X))
    with pytest.raises(ValueError, match=message):
        dimension_flow(program, make(program.root.block.arguments[0]))


def test_what_light_work_makes_of_arguments_is_given() -> None:
    """Not what takes more memory than they do."""

    def program(x: Any) -> Any:
        return jnp.tanh(x).sum(0), jnp.concatenate([x, x], 1), jnp.sort(x, 0), x @ x.T

    assert flow_through(program, X, seeds=[(0, 0)]) == [
        "partial sum in phase 1, given",
        SPLIT,
        "invariant",
        SPLIT,
    ]


def test_a_seed_in_the_middle_of_a_program() -> None:
    """What it is made of stays whole."""
    module = lowered(lambda x, w: jnp.tanh(x @ w).sum(0), X, W)
    program = Program.of(module)
    product = next(node for node in program.root.nodes if node.op.name == "stablehlo.dot_general")
    flow = dimension_flow(program, [Seed.along(product.op.results[0], 0)])
    assert results_of(flow) == [SUM]
    assert flow.of(program.root.arguments[0]).is_invariant
    assert_chunks_agree(module, flow, (X, W))


def test_the_body_of_a_loop_is_a_program_too() -> None:
    module = lowered(lambda x, w: lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y @ w), x), X, W)
    loop = next(
        view.operation
        for view in module.body.operations[0].regions[0].blocks[0].operations
        if view.operation.name == "stablehlo.while"
    )
    body = loop.regions[1].blocks[0]
    carried = next(value for value in body.arguments if "4x3" in str(value.type))
    flow = dimension_flow(Program(body), [Seed.along(carried, 0)])
    assert len(flow.phases) == 1
    assert SPLIT in results_of(flow)
