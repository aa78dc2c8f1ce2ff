"""Modules with one attention and its gradient, as marks."""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.mlir import ir

from hloom.passes.ir.attention_marks import AttentionCall, attention, attention_gradient
from hloom.passes.ir.marks import MarkBuilder


def marked(call: AttentionCall, types: Sequence[str], partitions: int) -> ir.Module:
    """Returns a module of queries, keys, values, of a bias where there is one, and of the output's
    gradient. ``types`` are those of the first three or four; the output is typed as the queries.
    """
    names = [f"%{name}" for name in "qkvb"[: len(types)]]
    arguments = ", ".join(f"{n}: {t}" for n, t in zip(names, types, strict=True))
    results = [types[0], *types]
    module = ir.Module.parse(f"""
module @m attributes {{mhlo.num_partitions = {partitions} : i32}} {{
  func.func @main({arguments}, %g: {types[0]}) -> ({", ".join(results)}) {{
    return %q, {", ".join(names)} : {", ".join(results)}
  }}
}}""")
    block = module.body.operations[0].regions[0].blocks[0]
    *operands, given = block.arguments
    last = block.operations[len(list(block.operations)) - 1].operation
    with ir.InsertionPoint(last):
        marks = MarkBuilder(module)
        q, k, v, *rest = operands
        out, statistics = attention(marks, q, k, v, rest[0] if rest else None, call)
        gradients = attention_gradient(
            marks,
            [*operands, out, statistics, given],
            call,
            with_bias=bool(rest) and not call.masks_keys,
        )
    for number, value in enumerate([out, *gradients]):
        last.operands[number] = value
    assert module.operation.verify()
    return module
