"""Marks of attention: what they mean, beside NumPy's attention in float64 and JAX's gradient."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from support.flows.runs import evaluated

from hloom._jax.modules import make_context
from hloom.passes.ir.attention_marks import AttentionCall, attention, attention_gradient
from hloom.passes.ir.marks import MarkBuilder

BATCH, QUERIES, KEYS, SIZE, VALUE = 2, 5, 5, 4, 3

Array = np.ndarray[Any, Any]


def meant(call: AttentionCall, q: Any, k: Any, v: Any, bias: Any, xp: Any = jnp) -> Any:
    """The logits' softmax, summed over the values; and the logarithms of the sums."""
    group = q.shape[2] // k.shape[2]
    k, v = (xp.repeat(x, group, 2) for x in (k, v))
    logits = xp.einsum("btnh,bsnh->bnts", q, k) * call.scale
    if bias is not None:
        logits = logits + bias
    behind = np.arange(QUERIES)[:, None] - np.arange(KEYS)[None]
    if call.causal:
        seen = (behind >= 0) & (behind < (call.window or KEYS))
        logits = xp.where(seen, logits, -np.inf)
    largest = logits.max(-1, keepdims=True)
    weights = xp.exp(logits - largest)
    total = weights.sum(-1, keepdims=True)
    out = xp.einsum("bnts,bsnv->btnv", weights / total, v)
    return out, (largest + xp.log(total))[..., 0]


def results(call: AttentionCall, operands: list[Array], given: Array) -> list[Array]:
    """The output, the statistics and the gradients that the marks mean."""
    arguments = [*operands, given]
    with make_context(), ir.Location.unknown():
        types = [f"tensor<{'x'.join(map(str, x.shape))}xf32>" for x in arguments]
        names = [f"%x{number}" for number in range(len(types))]
        told = ", ".join(f"{n}: {t}" for n, t in zip(names, types, strict=True))
        module = ir.Module.parse(f"func.func @main({told}) {{\n return\n}}")
        function = module.body.operations[0].operation
        block = function.regions[0].blocks[0]
        *read, d_output = block.arguments
        last = block.operations[0].operation
        with ir.InsertionPoint(last):
            marks = MarkBuilder(module)
            bias = read[3] if call.has_bias else None
            out, statistics = attention(marks, read[0], read[1], read[2], bias, call)
            whole = [*read, out, statistics, d_output]
            found = attention_gradient(marks, whole, call, with_bias=call.has_bias)
            values = [out, statistics, *found]
            ir.Operation.create("func.return", operands=values)
        last.erase()
        signature = ir.FunctionType.get(
            [x.type for x in block.arguments], [value.type for value in values]
        )
        function.attributes["function_type"] = ir.TypeAttr.get(signature)
        assert module.operation.verify()
        return [np.asarray(each) for each in evaluated(module, arguments)]


CASES = [
    (AttentionCall(0.5), 2, 2, None),
    (AttentionCall(-0.3, causal=True), 2, 2, None),
    (AttentionCall(0.5, causal=True, window=2), 2, 2, None),
    (AttentionCall(0.5, causal=True), 4, 2, None),
    (AttentionCall(1.0), 3, 1, None),
    *(
        (AttentionCall(0.7, has_bias=True), 4, 2, shape)
        for shape in ((1, 1), (1, 4), (BATCH, 1), (BATCH, 4))
    ),
]


@pytest.mark.parametrize(("call", "heads", "shared", "bias"), CASES, ids=str)
def test_what_marks_mean(
    call: AttentionCall, heads: int, shared: int, bias: tuple[int, int] | None
) -> None:
    draw = np.random.default_rng(0)
    shapes = [(QUERIES, heads, SIZE), (KEYS, shared, SIZE), (KEYS, shared, VALUE)]
    operands = [draw.normal(size=(BATCH, *shape)) for shape in shapes]
    if bias is not None:
        operands.append(draw.normal(size=(*bias, QUERIES, KEYS)))
    given = draw.normal(size=(BATCH, QUERIES, heads, VALUE))
    narrow = [x.astype(np.float32) for x in (*operands, given)]
    out, statistics, *gradients = results(call, narrow[:-1], narrow[-1])

    padded = [*operands, None][:4]
    wanted, sums = meant(call, *padded, xp=np)
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(statistics, sums, rtol=1e-5, atol=1e-5)

    def output(*x: Any) -> Any:
        return meant(call, *[*x, None][:4])[0]

    _, pull_back = jax.vjp(output, *narrow[:-1])
    for got, expected in zip(gradients, pull_back(jnp.asarray(narrow[-1])), strict=True):
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
