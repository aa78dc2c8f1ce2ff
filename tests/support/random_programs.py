"""Random differentiated programs, and StableHLO's reference interpreter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from support.programs import normal, weights

WIDTH, ROWS = 4, 3

# No chlo operations: the interpreter has none. No sort: its gradient is a scatter, which the
# interpreter runs in place, into an operand that others may read.
UNARY: dict[str, Callable[[jax.Array], jax.Array]] = {
    "sin": jnp.sin,
    "tanh": jnp.tanh,
    "gelu": lambda x: 0.5 * x * (1.0 + jnp.tanh(0.8 * (x + 0.04 * x * x * x))),
    "softmax": lambda x: jax.nn.softmax(x, axis=-1),
    "norm": lambda x: (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt((x * x).mean() + 1.0),
    "round_trip": lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
    "masked": lambda x: jnp.where(jnp.tril(jnp.ones(x.shape, bool)), x, 0.5),
    "positions": lambda x: x + jnp.cos(jnp.arange(x.shape[-1], dtype=x.dtype)),
    "transposed_twice": lambda x: jnp.exp(-x.T * x.T).T,
    "reversed": lambda x: x[::-1] * x,
    "shifted": lambda x: jnp.concatenate([x[:, 1:], x[:, :1]], axis=1) + x,
    "checkpointed": jax.checkpoint(lambda x: jnp.sin(x) * jnp.tanh(x)),
    "conditional": lambda x: jax.lax.cond(x.sum() > 0, jnp.sin, lambda y: y * jnp.cos(y), x),
}
BINARY: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "add": jnp.add,
    "multiply": jnp.multiply,
    "maximum": jnp.maximum,
    "smooth_divide": lambda a, b: a / (1.0 + b * b),
}

Step = tuple[Any, ...]
steps = st.one_of(
    st.tuples(st.just("unary"), st.sampled_from(sorted(UNARY))),
    st.tuples(st.just("binary"), st.sampled_from(sorted(BINARY)), st.integers(0, 3)),
    st.tuples(st.just("matmul")),
)
straight = st.lists(steps, min_size=1, max_size=6)
scans = st.tuples(
    st.just("scan"), straight, st.booleans(), st.booleans(), st.integers(1, 3), st.booleans()
)
programs = st.lists(st.one_of(steps, scans), min_size=1, max_size=5)


def run(program: list[Step], x: jax.Array, w: jax.Array) -> jax.Array:
    """The program's result; a binary step takes an earlier value as its other operand."""
    values = [x]
    for kind, *rest in program:
        values.append(_step(kind, rest, values, w))
    return values[-1]


def _step(kind: str, rest: list[Any], values: list[jax.Array], w: jax.Array) -> jax.Array:
    if kind == "unary":
        return UNARY[rest[0]](values[-1])
    if kind == "binary":
        return BINARY[rest[0]](values[-1], values[-1 - rest[1] % len(values)])
    if kind == "matmul":
        return values[-1] @ w
    body_program, reverse, emits, length, checkpoints = rest

    def body(carry: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        out = run(body_program, carry * scale, w)
        return out, (jnp.sin(out) if emits else None)

    body = jax.checkpoint(body) if checkpoints else body
    scales = jnp.linspace(0.5, 1.0, length)
    carry, outputs = jax.lax.scan(body, values[-1], scales, reverse=reverse)
    return carry if outputs is None else carry + outputs.sum(0)


def gradient(program: list[Step], around: Callable[[Any], Any] | None = None) -> Callable[..., Any]:
    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        return run(program, x, w).sum()

    return jax.value_and_grad(loss if around is None else around(loss), (0, 1))


def interpret(module: ir.Module, arguments: tuple[jax.Array, ...]) -> list[np.ndarray]:
    """The module's results by the StableHLO reference interpreter."""
    with module.context:
        attributes = [ir.DenseElementsAttr.get(np.asarray(argument)) for argument in arguments]
        return [np.array(result) for result in stablehlo.eval_module(module, attributes)]


@dataclasses.dataclass(frozen=True)
class Interpretation:
    """A program's gradient as it was lowered, and what the interpreter gives for it."""

    module: ir.Module
    arguments: tuple[jax.Array, ...]
    results: list[np.ndarray]


_known: dict[object, Interpretation] = {}


def interpretation(
    program: list[Step], around: Callable[[Any], Any] | None = None
) -> Interpretation:
    """Of the program, its loss wrapped by ``around``; interpreted once in a process."""
    key = repr(program), around
    if key not in _known:
        arguments = (normal(ROWS, WIDTH), weights(1, WIDTH)[0])
        lowered = jax.jit(gradient(program, around), keep_unused=True).lower(*arguments)
        module = lowered.compiler_ir()
        _known[key] = Interpretation(module, arguments, interpret(module, arguments))
    return _known[key]
