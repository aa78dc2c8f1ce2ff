"""Values at points are those of the interpreter, operation by operation and in random programs.

Which values are made of a product one by one, which of its axes they have, and what values depend
on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, seed
from jax.extend.mlir import ir
from support.examples import drawn
from support.modules import module_after
from support.random_programs import ROWS, WIDTH, Step, gradient, programs

from benchmarks.attention_random.outcomes import interpret
from hloom.passes.analysis.points.dependence import Line, axes_of, depends_on_difference
from hloom.passes.analysis.points.derivation import Derivation
from hloom.passes.analysis.points.evaluator import Points, Scope, TooManyPointsError
from hloom.passes.analysis.points.leaves import rounded
from hloom.passes.analysis.points.operations import BINARY, UNARY, how
from hloom.passes.analysis.value_numbers import ValueNumbers
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.values import shape_of

Array = np.ndarray[Any, Any]


def inlined(function: Callable[..., Any], *arguments: Any) -> ir.Module:
    return module_after(jax.jit(function, keep_unused=True).lower(*arguments), "inline,cse")


def body_of(module: ir.Module) -> ir.Block:
    return module.body.operations[0].regions[0].blocks[0]


def everywhere(value: ir.Value) -> tuple[Array, ...]:
    """All coordinates of a value, in another order than memory has them."""
    shape = shape_of(value)
    if not shape:
        return ()
    places = np.random.default_rng(0).permutation(int(np.prod(shape)))
    return tuple(np.asarray(x, np.int64) for x in np.unravel_index(places, shape))


def assert_evaluated(module: ir.Module, *, rounds: bool = False, tolerance: float = 1e-5) -> int:
    """What a module returns is the interpreter's, its arguments being the leaves; returns how many
    results are no leaves themselves."""
    block = body_of(module)
    scope = Scope(ValueNumbers(), [block], {})
    points = Points(scope, 3, rounds=rounds)
    arguments = []
    for value in block.arguments:
        shape = shape_of(value)
        whole = tuple(x.reshape(-1) for x in np.indices(shape)) if shape else ()
        found = points.at(value, whole).reshape(shape)
        kind = str(ir.RankedTensorType(value.type).element_type)
        dtype = {"f32": np.float32, "i32": np.int32, "i1": bool}[kind]
        arguments.append(found.astype(dtype))
    last = block.operations[len(list(block.operations)) - 1].operation
    count = 0
    for value, wanted in zip(last.operands, interpret(module, arguments), strict=True):
        if _has_leaf(scope, value, {*block.arguments}):
            continue
        where = everywhere(value)
        got = points.at(value, where)
        expected = wanted[where] if where else wanted.reshape(1)
        np.testing.assert_allclose(
            np.broadcast_to(got, expected.shape).astype(np.float64),
            expected.astype(np.float64),
            rtol=tolerance,
            atol=tolerance,
        )
        count += 1
    return count


def _has_leaf(scope: Scope, value: ir.Value, arguments: set[ir.Value]) -> bool:
    """Whether a value is made of a leaf that is no argument."""
    waiting, seen = [value], set()
    while waiting:
        each = scope.resolve(waiting.pop())
        if each in seen or each in arguments:
            continue
        seen.add(each)
        made = scope.made_by(each)
        if made is None:
            return True
        waiting += list(made[0].operands)
    return False


X, Y = jax.ShapeDtypeStruct((3, 4), np.float32), jax.ShapeDtypeStruct((3, 4), np.float32)
I, J = jax.ShapeDtypeStruct((3, 4), np.int32), jax.ShapeDtypeStruct((3, 4), np.int32)  # noqa: E741
P, Q = jax.ShapeDtypeStruct((3, 4), np.bool_), jax.ShapeDtypeStruct((3, 4), np.bool_)

OPERATIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "abs": (jnp.abs, (X,)),
    "add": (jnp.add, (X, Y)),
    "add integers": (lambda i, j: (i * 2**30 + j * 2**30) * 2, (I, J)),
    "and": (jnp.logical_and, (P, Q)),
    "broadcast": (lambda x: x[:, None, :1] + jnp.zeros((3, 2, 4)), (X,)),
    "cbrt": (jnp.cbrt, (X,)),
    "ceil": (jnp.ceil, (X,)),
    "clamp": (lambda x: jnp.clip(x, -0.5, 0.5), (X,)),
    "compare": (lambda x, y: [x < y, x <= y, x > y, x >= y, x == y, x != y], (X, Y)),
    "concatenate": (lambda x, y: jnp.concatenate([x, y[:2], x], 0), (X, Y)),
    "constant": (lambda x: x + np.arange(12.0, dtype=np.float32).reshape(3, 4), (X,)),
    "constant of booleans": (lambda x: jnp.where(np.eye(3, 4) > 0, x, 0), (X,)),
    "convert": (lambda x: (3 * x).astype(np.int32), (X,)),
    "convert to booleans": (lambda i: i.astype(bool), (I,)),
    "cosine": (jnp.cos, (X,)),
    "divide": (lambda x, y: x / (3 + y * y), (X, Y)),
    "divide integers": (lambda i, j: jax.lax.div(7 * i - 5, j + 2), (I, J)),
    "exponential": (jnp.exp, (X,)),
    "exponential_minus_one": (jnp.expm1, (X,)),
    "floor": (jnp.floor, (X,)),
    "iota": (lambda x: jax.lax.broadcasted_iota(np.int32, (3, 4), 1) + x, (X,)),
    "is_finite": (lambda x: jnp.isfinite(1 / jnp.floor(x)), (X,)),
    "log": (lambda x: jnp.log(jnp.abs(x)), (X,)),
    "log_plus_one": (lambda x: jnp.log1p(jnp.abs(x)), (X,)),
    "logistic": (jax.nn.sigmoid, (X,)),
    "maximum": (jnp.maximum, (X, Y)),
    "minimum": (jnp.minimum, (X, Y)),
    "negate": (jnp.negative, (X,)),
    "not": (jnp.logical_not, (P,)),
    "or": (jnp.logical_or, (P, Q)),
    "pad": (lambda x: jax.lax.pad(x, np.float32(2), [(1, 2, 1), (0, 1, 0)]), (X,)),
    "power": (lambda x, y: jnp.power(jnp.abs(x), y), (X, Y)),
    "reduce": (lambda x: [x.sum(0), x.max(1), x.min(), x.prod(-1), x.sum((0, 1))], (X,)),
    "reduce booleans": (lambda p: [p.any(0), p.all(1)], (P,)),
    "reshape": (lambda x: x.reshape(2, 6).reshape(12, 1), (X,)),
    "reverse": (lambda x: x[::-1, ::-1], (X,)),
    "rsqrt": (lambda x: jax.lax.rsqrt(jnp.abs(x)), (X,)),
    "scaled": (lambda x, y: jnp.einsum("ij,kj->kji", x, y[:1]), (X, Y)),
    "scaled by rows": (lambda x, y: jnp.einsum("i,ij->ij", y[:, 0], x), (X, Y)),
    "scaled twice": (lambda x: jnp.einsum("ij,i,j->ji", x, x[:, 0], x[0]), (X,)),
    "select": (lambda p, x, y: jnp.where(p, x, y), (P, X, Y)),
    "sign": (jnp.sign, (X,)),
    "sine": (jnp.sin, (X,)),
    "slice": (lambda x: x[1:, ::2], (X,)),
    "sqrt": (lambda x: jnp.sqrt(jnp.abs(x)), (X,)),
    "subtract": (jnp.subtract, (X, Y)),
    "tanh": (jnp.tanh, (X,)),
    "transpose": (lambda x: x.T, (X,)),
    "xor": (jnp.logical_xor, (P, Q)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation(name: str) -> None:
    function, shapes = OPERATIONS[name]
    assert assert_evaluated(inlined(function, *shapes)) >= 1


def test_the_table_has_all_that_is_followed() -> None:
    named = {f"stablehlo.{name}" for name in OPERATIONS}
    assert {*UNARY, *BINARY} - {"stablehlo.multiply"} <= named


@seed(5)
@drawn(40)
@given(programs)
def test_random_programs(program: list[Step]) -> None:
    shape = jax.ShapeDtypeStruct((ROWS, WIDTH), np.float32)
    square = jax.ShapeDtypeStruct((WIDTH, WIDTH), np.float32)
    assert_evaluated(inlined(gradient(program), shape, square), tolerance=2e-2)


def test_rounding_is_the_programs() -> None:
    def function(x: Any) -> Any:
        y = x.astype(jnp.bfloat16) * 1.7
        return (y - 1e4).astype(np.float32)

    module = inlined(function, X)
    assert assert_evaluated(module, rounds=True, tolerance=0) == 1
    with pytest.raises(AssertionError):
        assert_evaluated(module, tolerance=1e-5)


def test_what_is_not_followed_is_a_leaf() -> None:
    module = inlined(lambda x, y: jnp.sort(x, 1) + x @ y.T @ y, X, Y)
    ops = [view.operation for view in body_of(module).operations]
    assert {op.name for op in ops if how(op) is None} == {
        "stablehlo.sort",
        "stablehlo.dot_general",
        "func.return",
    }


def test_leaves_are_functions_of_their_number_and_place() -> None:
    module = inlined(lambda x, y, p: [x + y, x * p], X, Y, P)
    block = body_of(module)
    scope = Scope(ValueNumbers(), [block], {})
    x, y, p = block.arguments
    rows = np.array([0, 1, 2, 0])
    columns = np.array([3, 3, 0, 3])
    first, again, other = (Points(scope, number) for number in (1, 1, 2))
    values = first.at(x, (rows, columns))
    assert values[0] == values[3]
    assert len({*values}) == 3
    np.testing.assert_array_equal(values, again.at(x, (rows, columns)))
    assert not np.any(values == other.at(x, (rows, columns)))
    assert not np.any(values == first.at(y, (rows, columns)))
    for true, wanted in ((0.0, False), (1.0, True)):
        assert np.all(Points(scope, 1, true=true).at(p, (rows, columns)) == wanted)
    given = Points(scope, 1, {scope.number(x): lambda places: places * 1.0})
    np.testing.assert_array_equal(given.at(x, (rows, columns)), rows * 4 + columns)
    np.testing.assert_array_equal(Points(scope, 1, floats=-5.0).at(x, (rows, columns)), [-5.0] * 4)


def test_rows_that_are_too_long_are_not_evaluated() -> None:
    wide = jax.ShapeDtypeStruct((2, 20_000_001), np.float32)
    module = inlined(lambda x: x.sum(1), wide)
    block = body_of(module)
    result = block.operations[len(list(block.operations)) - 1].operation.operands[0]
    with pytest.raises(TooManyPointsError):
        Points(Scope(ValueNumbers(), [block], {})).at(result, (np.array([0]),))


@pytest.mark.parametrize(("element", "dtype"), [("bf16", jnp.bfloat16), ("f16", np.float16)])
def test_rounded_numbers_are_numpys(element: str, dtype: Any) -> None:
    signs, sizes = (1.0, -1.0), (1e-8, 1e-3, 1.0, 3.14159, 1e4, 7e4, 1e30)
    draw = np.random.default_rng(0).normal(size=200)
    numbers = np.array([a * b for a, b in itertools.product(signs, sizes)] + [*draw])
    with np.errstate(over="ignore"):
        wanted = numbers.astype(np.float32).astype(dtype).astype(np.float64)
    np.testing.assert_array_equal(rounded(numbers, element), wanted)


@pytest.mark.parametrize("count", [3, 300], ids=["text", "hexadecimal"])
def test_constants_of_bfloat16(count: int) -> None:
    numbers = jnp.asarray([-np.inf, 1e30, *np.linspace(-2, 3, count)], "bfloat16")
    module = inlined(lambda x: x + numbers, jnp.ones(numbers.shape, "bfloat16"))
    [constant] = (
        op.results[0]
        for op in body_of(module).operations
        if op.operation.name == "stablehlo.constant"
    )
    points = Points(Scope(ValueNumbers(), [body_of(module)], {}))
    found = points.at(constant, (np.arange(len(numbers)),))
    np.testing.assert_array_equal(found, np.asarray(numbers, np.float64))


@pytest.mark.parametrize("element", ["float8_e4m3fn", "int4"])
def test_constants_of_other_types_are_leaves(element: str) -> None:
    numbers = jnp.asarray([1, 2, 3], element)
    module = inlined(lambda x: x * numbers, jnp.ones(3, element))
    [constant] = (
        op.operation
        for op in body_of(module).operations
        if op.operation.name == "stablehlo.constant"
    )
    assert how(constant) is None


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
OF_ROWS = jax.ShapeDtypeStruct((B,), np.float32)


@pytest.mark.parametrize(
    ("function", "more", "axes"),
    [
        (lambda s: s * 2, (), set()),
        (lambda s, b: s + b, (BIAS,), {1, 2}),
        (lambda s, r: s * r[:, None, None], (OF_ROWS,), {0}),
        (lambda s, r: (s.T + r).T, (OF_ROWS,), {0}),
        (lambda s, r: jnp.einsum("bts,b->tsb", s, r).transpose(2, 0, 1), (OF_ROWS,), {0}),
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
