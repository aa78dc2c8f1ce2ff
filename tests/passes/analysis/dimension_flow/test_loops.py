"""Loops and branches: what they carry to a fixed point, and what makes them run on the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.flows.runs import assert_chunks_agree, flow_of, lowered, results_of

ROWS, WIDTH, STEPS = 4, 3, 3

SPLIT = "split along axis 0 in phase 1"
SUM = "partial sum in phase 1"

X = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH) / 7
W = np.arange(WIDTH * WIDTH, dtype=np.float32).reshape(WIDTH, WIDTH) / 9


def made(x: Any) -> Any:
    """The same, as a product makes it: it is not there before the loop."""
    return x @ jnp.eye(WIDTH)


def repeated(body: Callable[..., Any], *start: Any) -> Any:
    return lax.fori_loop(0, STEPS, lambda _, carry: body(*carry), start)


def carried(x: Any, w: Any) -> Any:
    return repeated(lambda x: (jnp.tanh(x @ w),), x)


def carried_from_zeros(x: Any, w: Any) -> Any:
    return repeated(lambda y: (y + jnp.tanh(x @ w),), jnp.zeros((ROWS, WIDTH)))


def carried_from_a_whole_value(x: Any, w: Any) -> Any:
    return repeated(lambda y: (jnp.tanh(x + y),), jnp.concatenate([w, w[:1]]))


def stacked(x: Any, w: Any) -> Any:
    def body(y: Any, _: None) -> Any:
        return jnp.tanh(y @ w), y.sum(0)

    return lax.scan(body, x, None, length=STEPS)


def summed(x: Any, w: Any) -> Any:
    return repeated(lambda total, y: (total + y.T @ y, y @ w), jnp.zeros((WIDTH, WIDTH)), x)


def swapped(x: Any, w: Any) -> Any:
    return repeated(lambda a, b, c: (b, c, a), x, jnp.zeros((ROWS, WIDTH)), x * 2)


def shifted_through(x: Any, w: Any) -> Any:
    """Each round of the fixed point reaches one carry more."""
    return repeated(lambda *carry: (x, *carry[:-1]), *[jnp.zeros((ROWS, WIDTH))] * 5)


def nested(x: Any, w: Any) -> Any:
    def body(y: Any, total: Any) -> Any:
        return repeated(lambda y, total: (jnp.tanh(y @ w), total + y.sum()), y, total)

    return repeated(body, x, jnp.float32(0))


def largest(x: Any, w: Any) -> Any:
    return repeated(lambda y, most: (y @ w, jnp.maximum(most, y.max(0))), x, jnp.full(WIDTH, -1.0))


def beside_a_whole_carry(x: Any, w: Any) -> Any:
    return repeated(lambda y, v: (y @ v, v @ v), x, w)


def rounded(x: Any, w: Any) -> Any:
    """A sum that is rounded in the code is one of rounded terms; integers are not rounded here."""
    rows = jnp.round(made(x) * 7)

    def body(y: Any, _: None) -> Any:
        return y, y.sum(0).astype(jnp.bfloat16).astype(jnp.float32)

    return lax.scan(body, rows, None, length=STEPS)


def branched(x: Any, w: Any) -> Any:
    return lax.cond(
        w.sum() > 1,
        lambda: (x @ w, x.sum(0), jnp.ones((ROWS, 1))),
        lambda: (x, jnp.zeros(WIDTH), x[:, :1]),
    )


IN_ONE_PHASE: dict[Callable[..., Any], list[str]] = {
    carried: [SPLIT],
    carried_from_zeros: [SPLIT],
    carried_from_a_whole_value: [SPLIT],
    stacked: [SPLIT, SUM],
    summed: [SUM, SPLIT],
    rounded: [SPLIT, SUM],
    swapped: [SPLIT] * 3,
    shifted_through: [SPLIT] * 5,
    nested: [SPLIT, SUM],
    largest: [SPLIT, "partial maximum in phase 1"],
    beside_a_whole_carry: [SPLIT, "invariant"],
    branched: [SPLIT, SUM, SPLIT],
}


@pytest.mark.parametrize("program", IN_ONE_PHASE, ids=lambda program: program.__name__)
def test_runs_in_one_phase(program: Callable[..., Any]) -> None:
    module = lowered(program, X, W)
    flow = flow_of(module, (0, 0))
    assert results_of(flow) == IN_ONE_PHASE[program]
    assert len(flow.phases) == 1
    assert_chunks_agree(module, flow, (X, W), count=3)


def reads_a_sum(x: Any, w: Any) -> Any:
    total = made(x).sum(0)
    return repeated(lambda y: (jnp.tanh(y @ w) * total,), x)


def carries_a_sum(x: Any, w: Any) -> Any:
    return repeated(lambda y, total: (y / total, total), x, made(x).sum(0))


def branches_on_a_sum(x: Any, w: Any) -> Any:
    return lax.cond(made(x).sum() > 1, lambda: x @ w, lambda: x)


@pytest.mark.parametrize("program", [reads_a_sum, carries_a_sum, branches_on_a_sum])
def test_what_it_needs_whole_from_outside_is_finished_before(program: Callable[..., Any]) -> None:
    module = lowered(program, X, W)
    flow = flow_of(module, (0, 0))
    assert results_of(flow)[0] == "split along axis 0 in phase 2"
    assert len(flow.phases) == 2
    [end] = flow.phases[0].ends
    assert end.flow.is_partial
    assert_chunks_agree(module, flow, (X, W))


def sorts(x: Any, w: Any) -> Any:
    return repeated(lambda y: (jnp.sort(y @ w, 0),), x)


def normalizes(x: Any, w: Any) -> Any:
    return repeated(lambda y: (y - y.mean(0),), x)


def adds_to_a_whole_value(x: Any, w: Any) -> Any:
    return repeated(lambda total: (total + x.sum(0),), jnp.ones(WIDTH))


def makes_a_sum_an_integer(x: Any, w: Any) -> Any:
    return repeated(lambda _, y: (y.sum(0).astype(jnp.int8), y), jnp.zeros(WIDTH, jnp.int8), x)


def rounds_a_sum_to_fewer_exponents(x: Any, w: Any) -> Any:
    """A term may be infinite there that the sum is not."""
    start = jnp.zeros(WIDTH, jnp.float16)
    return repeated(lambda _, y: (y.sum(0).astype(jnp.float16), y), start, x)


def ends_by_a_sum(x: Any, w: Any) -> Any:
    return lax.while_loop(lambda y: y.sum() < 50, lambda y: y * 2 + 1, x)


def adds_what_is_zero_at_first(x: Any, w: Any) -> Any:
    def body(total: Any, row: Any) -> Any:
        return total + x.sum(0) + row.reshape(1, WIDTH).reshape(WIDTH), w[0]

    return repeated(body, jnp.zeros(WIDTH), jnp.zeros(WIDTH))


@pytest.mark.parametrize(
    ("program", "culprit"),
    [
        (sorts, "stablehlo.sort"),
        (normalizes, "stablehlo.subtract"),
        (adds_to_a_whole_value, None),
        (adds_what_is_zero_at_first, None),
        (makes_a_sum_an_integer, "stablehlo.convert"),
        (rounds_a_sum_to_fewer_exponents, "stablehlo.convert"),
        (ends_by_a_sum, "stablehlo.compare"),
    ],
)
def test_a_loop_that_needs_all_of_it_is_not_cut(
    program: Callable[..., Any], culprit: str | None
) -> None:
    """What reads its result is in the next phase, and the operation in it is named."""

    def read(x: Any, w: Any) -> Any:
        y = jax.tree.leaves(program(made(x), w))[0]
        return jnp.tanh(x) * (y if y.shape == x.shape else y.sum())

    module = lowered(read, X, W)
    flow = flow_of(module, (0, 0))
    assert results_of(flow) == ["split along axis 0 in phase 2"]
    [end] = flow.phases[0].ends
    if culprit is not None:
        assert end.culprit.name == culprit
    assert_chunks_agree(module, flow, (X, W))


def test_a_callback_in_a_loop_runs_as_often_as_before() -> None:
    def program(x: Any) -> Any:
        def body(y: Any) -> Any:
            jax.debug.callback(lambda: None)
            return (jnp.sin(y),)

        return jnp.tanh(x) * repeated(body, made(x))[0]

    flow = flow_of(lowered(program, X), (0, 0))
    loop = next(node for node in flow.program.root.nodes if node.op.name == "stablehlo.while")
    assert loop.effects
    assert {str(flow.of(result)) for result in loop.results} == {"whole after phase 1"}
    assert results_of(flow) == ["split along axis 0 in phase 2"]


@pytest.mark.parametrize("program", [lambda x: x[::-1], lambda x: jnp.sort(x, 0)])
def test_what_is_made_of_a_whole_argument_takes_no_loop(program: Callable[..., Any]) -> None:
    """As a mixture of each example with another one does."""
    module = lowered(lambda x: made(x) + program(x), X)
    flow = flow_of(module, (0, 0))
    assert results_of(flow) == [SPLIT]
    assert_chunks_agree(module, flow, (X,))


def test_a_function_that_is_called_is_followed() -> None:
    inner = jax.jit(lambda x, w: (jnp.tanh(x @ w), x.sum(0)))

    def program(x: Any, w: Any) -> Any:
        y, total = inner(x, w)
        return inner(y, w)[0], total

    module = jax.jit(program).lower(X, W).compiler_ir()
    assert "call @" in str(module)
    assert results_of(flow_of(module, (0, 0))) == [SPLIT, SUM]
