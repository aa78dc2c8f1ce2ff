"""Random programs of all kinds of operations, most of which keep no axis whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from hypothesis import strategies as st
from jax import lax

WIDTH = 4
"""Rows and columns of every value."""


def spread(x: Any) -> Any:
    return jnp.broadcast_to(x, (WIDTH, WIDTH))


def indices(x: Any) -> Any:
    """Rows by number, some of them out of range."""
    return lax.convert_element_type(jnp.clip(x[:, 0], -1, WIDTH + 1), jnp.int32)


UNARY: dict[str, Callable[[Any], Any]] = {
    "wave": lambda x: jnp.sin(3 * x),
    "negative": lax.neg,
    "turned": lambda x: x.T,
    "rows_reversed": lambda x: x[::-1],
    "columns_reversed": lambda x: x[:, ::-1],
    "rows_summed_up": lambda x: jnp.cumsum(x, 0) / WIDTH,
    "columns_summed_up": lambda x: jnp.cumsum(x, 1) / WIDTH,
    "rows_sorted": lambda x: lax.sort(x, 0),
    "columns_sorted": lambda x: lax.sort(x, 1),
    "sum_of_rows": lambda x: spread(x.sum(0)) / WIDTH,
    "sum_of_columns": lambda x: spread(x.sum(1, keepdims=True)) / WIDTH,
    "largest_row": lambda x: spread(x.max(0)),
    "least_column": lambda x: spread(x.min(1, keepdims=True)),
    "sum": lambda x: spread(x.sum() / WIDTH**2),
    "centred": lambda x: x - x.mean(0),
    "softmax": lambda x: jax.nn.softmax(x, 0),
    "halves_swapped": lambda x: jnp.concatenate([x[2:], x[:2]]),
    "flat": lambda x: x.reshape(-1)[::-1].reshape(WIDTH, WIDTH),
    "halves_of_rows": lambda x: x.reshape(2, 2, WIDTH).transpose(1, 0, 2).reshape(WIDTH, WIDTH),
    "halves_of_columns": lambda x: jnp.sin(x.reshape(WIDTH, 2, 2)).reshape(WIDTH, WIDTH),
    "looked_up": lambda x: x[indices(x)],
    "counted": lambda x: jnp.zeros_like(x).at[indices(x)].add(x) / WIDTH,
    "written": lambda x: lax.dynamic_update_slice(x, x[:1] * 2, (1, 0)),
    "padded": lambda x: lax.pad(x[1:], jnp.float32(0), [(1, 0, 0), (0, 0, 0)]),
    "rounded": lambda x: jnp.round(x * 4) / 4,
    "positive": lambda x: jnp.maximum(x, 0),
    "places": lambda x: x + jnp.arange(WIDTH, dtype=x.dtype)[:, None],
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lax.add,
    "subtract": lax.sub,
    "multiply": lax.mul,
    "larger": lax.max,
    "smaller": lax.min,
    "chosen": lambda x, y: jnp.where(x > y, x, y * 2),
    "product": lambda x, y: x @ y / WIDTH,
    "product_of_rows": lambda x, y: x.T @ y / WIDTH,
    "product_of_columns": lambda x, y: x @ y.T / WIDTH,
    "divided": lambda x, y: x / (1 + y * y),
}
STARTS: dict[str, Callable[[Any], Any]] = {
    "zeros": jnp.zeros_like,
    "ones": jnp.ones_like,
    "value": lambda x: x,
}

Step = tuple[Any, ...]

simple = st.one_of(
    st.tuples(st.just("unary"), st.sampled_from(sorted(UNARY)), st.integers(0, 3)),
    st.tuples(
        st.just("binary"), st.sampled_from(sorted(BINARY)), st.integers(0, 3), st.integers(0, 3)
    ),
)
bodies = st.lists(simple, min_size=1, max_size=4)
loops = st.tuples(
    st.just("loop"),
    bodies,
    st.lists(st.sampled_from(sorted(STARTS)), min_size=1, max_size=3),
    st.integers(0, 3),
)
branches = st.tuples(st.just("branch"), bodies, bodies, st.integers(0, 3))
mixed_programs = st.lists(st.one_of(simple, simple, loops, branches), min_size=1, max_size=7)


def values_of(program: list[Step], values: list[Any]) -> list[Any]:
    """All values of a program: those that it starts with and one or more of each step."""
    values = list(values)

    def value(back: int) -> Any:
        return values[-1 - back % len(values)]

    for kind, *rest in program:
        if kind == "unary":
            values.append(UNARY[rest[0]](value(rest[1])))
        elif kind == "binary":
            values.append(BINARY[rest[0]](value(rest[1]), value(rest[2])))
        elif kind == "loop":
            values += _loop(rest[0], [STARTS[name](value(rest[2])) for name in rest[1]], values)
        else:
            first, second = (_branch(body, values[-3:]) for body in rest[:2])
            values.append(lax.cond(value(rest[2]).sum() > 0, first, second))
    return values


def _branch(body: list[Step], outside: list[Any]) -> Callable[[], Any]:
    return lambda: values_of(body, outside)[-1]


def _loop(body: list[Step], starts: list[Any], outside: list[Any]) -> list[Any]:
    """Each carry is the one before it, the first one what the body makes of all of them."""

    def step(_: Any, carries: list[Any]) -> list[Any]:
        made = values_of(body, [outside[0], outside[-1], *carries])[-1]
        return [carries[0] / 2 + made / 2, *carries[:-1]]

    return list(lax.fori_loop(0, 3, step, starts))
