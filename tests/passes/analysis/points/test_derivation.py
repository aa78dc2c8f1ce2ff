"""Which values are made of a product one by one, which of its axes they have, and what values
depend on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir

from hloom.passes.analysis.points.dependence import Line, axes_of, depends_on_difference
from hloom.passes.analysis.points.derivation import Derivation
from hloom.passes.analysis.points.evaluator import Scope
from hloom.passes.analysis.value_numbers import ValueNumbers
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module

B, T, S, D = 2, 6, 4, 3
LEFT, RIGHT = (jax.ShapeDtypeStruct((B, x, D), np.float32) for x in (T, S))


class Program:
    """A value that is made of a product [batch, rows, columns]."""

    def __init__(self, function: Callable[[Any], Any], *more: Any) -> None:
        def whole(x: Any, y: Any, *more: Any) -> Any:
            return function(jnp.einsum("btd,bsd->bts", x, y), *more)

        lowered = jax.jit(whole, keep_unused=True).lower(LEFT, RIGHT, *more)
        self.module = clone_module(lowered.compiler_ir())
        Pipeline.parse("inline,cse").run(self.module, target=Target())
        block = self.module.body.operations[0].regions[0].blocks[0]
        ops = [view.operation for view in block.operations]
        self.scope = Scope(ValueNumbers(), [block], {})
        self.derivation = Derivation(self.scope)
        product = next(op for op in ops if op.name == "stablehlo.dot_general")
        self.product: ir.Value = product.results[0]
        self.value: ir.Value = ops[-1].operands[0]
        self.number = self.scope.number(self.product)


@pytest.mark.parametrize(
    ("function", "groups"),
    [
        (lambda s: s * 2, ((0,), (1,), (2,))),
        (lambda s: jnp.exp(s).T, ((2,), (1,), (0,))),
        (lambda s: s.reshape(B * T, S), ((0, 1), (2,))),
        (lambda s: s.reshape(B, 1, T, S, 1), ((0,), (), (1,), (2,), ())),
        (lambda s: s.transpose(1, 0, 2).reshape(T, B * S), ((1,), (0, 2))),
        (lambda s: s / s.sum(-1, keepdims=True), ((0,), (1,), (2,))),
        (lambda s: jnp.einsum("bts,t->stb", s, jnp.ones(T)), ((2,), (1,), (0,))),
        (lambda s: jnp.einsum("bts,btd->bsd", s, jnp.ones((B, T, 2))), None),
        (lambda s: s.reshape(B, S, T), None),
        (lambda s: s[:, ::-1], None),
        (lambda s: s.sum(-1), None),
    ],
)
def test_groups(function: Callable[[Any], Any], groups: Any) -> None:
    program = Program(function)
    assert program.derivation.groups(program.value, program.number) == groups


def test_an_axis_is_split_where_a_value_has_it_in_parts() -> None:
    program = Program(lambda s: jnp.exp(s).reshape(B, 2, T // 2, S).transpose(1, 0, 3, 2))
    assert program.derivation.groups(program.value, program.number) is None
    program = Program(lambda s: jnp.exp(s).reshape(B, 2, T // 2, S).transpose(1, 0, 3, 2))
    program.derivation.split_by(program.value, program.number)
    assert program.derivation.sizes(program.number, program.product) == [B, 2, T // 2, S]
    groups = ((1,), (0,), (3,), (2,))
    assert program.derivation.groups(program.value, program.number) == groups
    axes = program.derivation.axes(program.number, program.product)
    assert axes == ((0,), (1, 2), (3,))


def test_what_values_are_made_of() -> None:
    program = Program(lambda s: jnp.exp(s.T * 2) + 1)
    derivation = program.derivation
    assert derivation.products(program.value) == {program.product}
    assert derivation.has_exponential(program.value)
    assert not derivation.has_exponential(program.product)
    assert derivation.origin(program.value, program.number) == program.product
    points = tuple(np.array([n]) for n in (3, 5, 1))
    followed = derivation.follow(program.value, program.number, points)
    assert [int(x[0]) for x in followed] == [1, 5, 3]
    other = Program(lambda s: s.sum(-1))
    assert other.derivation.products(other.value) == frozenset()


BIAS = jax.ShapeDtypeStruct((T, S), np.float32)
ROWS = jax.ShapeDtypeStruct((B,), np.float32)


@pytest.mark.parametrize(
    ("function", "more", "axes"),
    [
        (lambda s: s * 2, (), set()),
        (lambda s, b: s + b, (BIAS,), {1, 2}),
        (lambda s, r: s * r[:, None, None], (ROWS,), {0}),
        (lambda s, r: (s.T + r).T, (ROWS,), {0}),
        (lambda s, r: jnp.einsum("bts,b->tsb", s, r).transpose(2, 0, 1), (ROWS,), {0}),
        (lambda s: s + jnp.arange(S), (), {2}),
        (lambda s: s + np.arange(S), (), {2}),
        (lambda s, b: s + b.sum(0), (BIAS,), {2}),
        (lambda s, b: s + b[:1], (BIAS,), {2}),
        (lambda s, b: s + b.reshape(T * S).reshape(T, S), (BIAS,), {1, 2}),
        (lambda s: s - s.max(-1, keepdims=True), (), set()),
    ],
)
def test_the_axes_that_a_value_depends_on(
    function: Callable[..., Any], more: tuple[Any, ...], axes: set[int]
) -> None:
    program = Program(function, *more)
    at = [frozenset([axis]) for axis in range(3)]
    found = axes_of(program.scope, program.value, program.number, at)
    assert axes <= found
    assert found - axes <= ({1} if axes == {2} and more else set())  # of a part, an upper bound


def _masked(seen: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    def function(s: Any) -> Any:
        rows, columns = jnp.arange(T)[:, None], jnp.arange(S)[None]
        return jnp.where(seen(rows, columns), s, -1e9)

    return function


@pytest.mark.parametrize(
    ("function", "is_of_difference"),
    [
        (lambda s: s * 2, True),
        (_masked(lambda i, j: i >= j), True),
        (_masked(lambda i, j: (i >= j) & (i - j < 3)), True),
        (_masked(lambda i, j: j - 2 <= i), True),
        (_masked(lambda i, j: i + j < 4), False),
        (_masked(lambda i, j: (i >= j) | (j < 2)), False),
        (_masked(lambda i, j: i.astype(jnp.int8) >= j.astype(jnp.int8)), False),
        (lambda s: s + jnp.abs(jnp.arange(T)[:, None] - jnp.arange(S)), True),
        (lambda s: jnp.where(np.tri(T, S) > 0, s, 0), False),
    ],
)
def test_what_depends_on_a_difference(
    function: Callable[[Any], Any], is_of_difference: bool
) -> None:
    program = Program(function)
    lines = [None, Line(1, 0, 0), Line(0, 1, 0)]
    found = depends_on_difference(program.scope, program.value, program.number, lines)
    assert found == is_of_difference
