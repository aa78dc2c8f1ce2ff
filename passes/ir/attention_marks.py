"""Marks of fused attention, and what they compute.

| mark                       | operands -> results                                       |
| -------------------------- | --------------------------------------------------------- |
| `hloom.attention`          | `(q, k, v[, bias]) -> (o, stats)`                         |
| `hloom.attention_gradient` | `(q, k, v[, bias], o, stats, do) -> (dq, dk, dv[, dbias])` |

Queries, their gradient, the output and its gradient are [batch, queries, heads, elements]; keys and
values are [batch, keys, heads, elements], where the heads of the queries may be a multiple: each
head of the keys is then shared by neighbouring ones. A bias is [1 or batch, 1 or heads, queries,
keys], or a mask of keys, [1 or batch, 1, 1, keys], of zeros and of numbers whose exponential is 0.
``stats`` are float32[batch, heads, queries]: the logarithm of the sum of the exponentials of
a row's logits.

The decompositions are the definition of cuDNN's and of flash attention's kernels: logits, weights
and sums are float32, weights and their gradients are rounded to the elements' type in front of a
product (Dao et al., "FlashAttention", 2022; jax/_src/cudnn/fused_attention_stablehlo.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from . import build
from .marks import MarkBuilder
from .values import element_of, shape_of

ATTENTION = "hloom.attention"
ATTENTION_GRADIENT = "hloom.attention_gradient"


@dataclass(frozen=True)
class AttentionCall:
    """The attributes of a mark of attention.

    Attributes:
      scale: the factor of the scores.
      causal: a query sees no key behind its own position.
      window: it sees so many keys up to its own position; 0 for all.
      number: a number that differs between the attentions of a module.
      emulated: the mark becomes its decomposition on every platform.
      has_bias: whether a bias is among the operands.
      masks_keys: the bias is a mask of keys.
    """

    scale: float
    causal: bool = False
    window: int = 0
    number: int = 0
    emulated: bool = False
    has_bias: bool = False
    masks_keys: bool = False

    @classmethod
    def of(cls, mark: ir.Operation) -> AttentionCall:
        """Returns what a mark says."""
        own = ir.DictAttr(mark.attributes["composite_attributes"])
        return cls(
            scale=ir.FloatAttr(own["scale"]).value,
            causal=ir.BoolAttr(own["causal"]).value,
            window=ir.IntegerAttr(own["window"]).value,
            number=ir.IntegerAttr(own["number"]).value,
            emulated=ir.BoolAttr(own["emulated"]).value,
            has_bias=ir.BoolAttr(own["has_bias"]).value,
            masks_keys="masks_keys" in own,
        )

    @property
    def kind(self) -> AttentionCall:
        """Returns what its decomposition depends on: all but the number."""
        return replace(self, number=0)

    def attributes(self) -> dict[str, ir.Attribute]:
        """Returns the attributes that say so."""
        i64 = ir.IntegerType.get_signless(64)
        of_keys = {"masks_keys": ir.UnitAttr.get()} if self.masks_keys else {}
        return of_keys | {
            "scale": ir.FloatAttr.get(ir.F64Type.get(), self.scale),
            "causal": ir.BoolAttr.get(self.causal),
            "window": ir.IntegerAttr.get(i64, self.window),
            "number": ir.IntegerAttr.get(i64, self.number),
            "emulated": ir.BoolAttr.get(self.emulated),
            "has_bias": ir.BoolAttr.get(self.has_bias),
        }


def attention(
    marks: MarkBuilder,
    queries: ir.Value,
    keys: ir.Value,
    values: ir.Value,
    bias: ir.Value | None,
    call: AttentionCall,
) -> tuple[ir.Value, ir.Value]:
    """Writes an attention; returns its output and its statistics."""
    batch, length, heads, _ = shape_of(queries)
    output = build.typed(queries, [batch, length, heads, shape_of(values)[-1]])
    statistics = ir.RankedTensorType.get([batch, heads, length], ir.F32Type.get())
    operands = [queries, keys, values] + ([] if bias is None else [bias])

    def decomposed(*x: ir.Value) -> Sequence[ir.Value]:
        return _attention(call, x[0], x[1], x[2], x[3] if call.has_bias else None)

    made = marks.composite(
        ATTENTION, operands, [output, statistics], decomposed, call.attributes(), call.kind
    )
    return made[0], made[1]


def attention_gradient(
    marks: MarkBuilder, operands: Sequence[ir.Value], call: AttentionCall, *, with_bias: bool
) -> list[ir.Value]:
    """Writes the gradient of an attention; returns those of queries, keys, values and, where
    wanted, of the bias.

    ``operands`` are the mark's.
    """
    results = [value.type for value in operands[: 4 if with_bias else 3]]

    def decomposed(*x: ir.Value) -> Sequence[ir.Value]:
        bias = x[3] if call.has_bias else None
        return _gradient(call, x[0], x[1], x[2], bias, *x[-3:])[: len(results)]

    return marks.composite(
        ATTENTION_GRADIENT, operands, results, decomposed, call.attributes(), call.kind
    )


def _wide(value: ir.Value) -> ir.Value:
    """Returns a value in float32: XLA's CPU sums 16 bits in 32 for some layouts only."""
    return build.converted(value, ir.F32Type.get())


def _rounded(value: ir.Value, like: ir.Value) -> ir.Value:
    return _wide(build.converted(value, element_of(like)))


def _grouped(queries: ir.Value, keys: ir.Value) -> ir.Value:
    """Returns queries, or what has their shape, with an axis for those that share a head."""
    batch, length, heads, size = shape_of(queries)
    shared = shape_of(keys)[2]
    return build.reshaped(_wide(queries), [batch, length, shared, heads // shared, size])


def _ungrouped(value: ir.Value, like: ir.Value) -> ir.Value:
    return build.converted(build.reshaped(value, shape_of(like)), element_of(like))


def _logits(
    call: AttentionCall, queries: ir.Value, keys: ir.Value, bias: ir.Value | None
) -> ir.Value:
    """Returns the logits, [batch, heads of keys, group, queries, keys]."""
    scores = build.einsum("btngh,bsnh->bngts", _grouped(queries, keys), _wide(keys))
    logits = stablehlo.multiply(scores, build.splat(scores.type, call.scale))
    if bias is not None:
        logits = stablehlo.add(logits, _bias_of(bias, logits))
    if call.causal:
        shape = shape_of(logits)
        query, key = build.iota(shape, 3), build.iota(shape, 4)
        behind = stablehlo.subtract(query, key)
        seen = build.compare(behind, build.constant(behind.type, 0), "GE")
        if call.window:
            near = build.compare(behind, build.constant(behind.type, call.window), "LT")
            seen = stablehlo.and_(seen, near)
        logits = stablehlo.select(seen, logits, build.splat(logits.type, -math.inf))
    return logits


def _bias_of(bias: ir.Value, logits: ir.Value) -> ir.Value:
    batch, heads, shared, length, keys = shape_of(logits)
    mine = shape_of(bias)
    if mine[2] == 1 != length:
        rows = build.reshaped(_wide(bias), [mine[0], keys])
        shape = [mine[0], *shape_of(logits)[1:]]
        wide = build.broadcast(rows, shape, [0, 4])
        return build.broadcast(wide, shape_of(logits), [0, 1, 2, 3, 4])
    if mine[1] == 1:
        kept = [] if mine[0] == 1 else [batch]
        narrow = build.reshaped(_wide(bias), [*kept, length, keys])
        return build.broadcast(narrow, shape_of(logits), [0, 3, 4] if kept else [3, 4])
    if mine[0] == 1 != batch:
        narrow = build.reshaped(_wide(bias), [heads, shared, length, keys])
        return build.broadcast(narrow, shape_of(logits), [1, 2, 3, 4])
    return build.reshaped(_wide(bias), shape_of(logits))


def _rows(value: ir.Value, like: ir.Value) -> ir.Value:
    """Returns a number for each row of logits, repeated along the keys."""
    return build.broadcast(value, shape_of(like), [0, 1, 2, 3])


def _combined(value: ir.Value, start: float, combine: build.Combiner) -> ir.Value:
    scalar = build.splat(ir.RankedTensorType.get([], element_of(value)), start)
    return build.reduce(value, [len(shape_of(value)) - 1], scalar, combine)


def _attention(
    call: AttentionCall, queries: ir.Value, keys: ir.Value, values: ir.Value, bias: ir.Value | None
) -> list[ir.Value]:
    logits = _logits(call, queries, keys, bias)
    largest = _combined(logits, -math.inf, stablehlo.maximum)
    weights = stablehlo.exponential(stablehlo.subtract(logits, _rows(largest, logits)))
    total = _combined(weights, 0.0, stablehlo.add)
    output = build.einsum("bngts,bsnv->btngv", _rounded(weights, queries), _wide(values))
    divisor = build.transposed(total, [0, 3, 1, 2])
    output = stablehlo.divide(output, build.broadcast(divisor, shape_of(output), [0, 1, 2, 3]))
    batch, length, heads, _ = shape_of(queries)
    output = build.reshaped(output, [batch, length, heads, shape_of(values)[-1]])
    statistics = stablehlo.add(largest, stablehlo.log(total))
    return [
        build.converted(output, element_of(queries)),
        build.reshaped(statistics, [batch, heads, length]),
    ]


def _gradient(
    call: AttentionCall,
    queries: ir.Value,
    keys: ir.Value,
    values: ir.Value,
    bias: ir.Value | None,
    output: ir.Value,
    statistics: ir.Value,
    d_output: ir.Value,
) -> list[ir.Value]:
    logits = _logits(call, queries, keys, bias)
    total = build.reshaped(statistics, shape_of(logits)[:-1])
    weights = stablehlo.exponential(stablehlo.subtract(logits, _rows(total, logits)))
    given = _grouped(d_output, keys)
    dv = build.einsum("bngts,btngv->bsnv", _rounded(weights, queries), given)
    d_weights = build.einsum("btngv,bsnv->bngts", given, _wide(values))
    inner = _combined(stablehlo.multiply(given, _grouped(output, keys)), 0.0, stablehlo.add)
    inner = build.transposed(inner, [0, 2, 3, 1])
    d_logits = stablehlo.multiply(weights, stablehlo.subtract(d_weights, _rows(inner, logits)))
    read = _rounded(d_logits, queries)
    dq = build.einsum("bngts,bsnh->btngh", read, _wide(keys))
    dk = build.einsum("bngts,btngh->bsnh", read, _grouped(queries, keys))
    found = [
        _ungrouped(_scaled(dq, call.scale), queries),
        _ungrouped(_scaled(dk, call.scale), keys),
        _ungrouped(dv, values),
    ]
    if bias is None or call.masks_keys:
        return found
    return [*found, _bias_gradient(d_logits, bias)]


def _scaled(value: ir.Value, scale: float) -> ir.Value:
    return stablehlo.multiply(value, build.splat(value.type, scale))


def _bias_gradient(d_logits: ir.Value, bias: ir.Value) -> ir.Value:
    batch, heads, shared, length, keys = shape_of(d_logits)
    wide = build.reshaped(d_logits, [batch, heads * shared, length, keys])
    axes = [axis for axis in (0, 1) if shape_of(bias)[axis] == 1 != shape_of(wide)[axis]]
    if axes:
        scalar = build.splat(ir.RankedTensorType.get([], element_of(wide)), 0.0)
        wide = build.reduce(wide, axes, scalar, stablehlo.add)
    return _ungrouped(wide, bias)
