"""Signatures: which axes of an operation's operands and results are the same dimension.

One function for each operation, its *rule*, says it once (`rules`). It is all that a new operation
needs to be known to these readers:

- `dimension_flow`: what can be computed a part at a time;
- `memory_model/layouts`: in which order of axes a value lies in memory;
- `shardings/constraints`: which sharding constraints move no data;
- `shardings/propagation`: the rules of CHLO's operations, which Shardy knows none of.

An elementwise operation needs no rule: every axis is passed through. A rule says no more than what
its definition asks for: the operation on chunks gives the chunk of its result, or a term of it. The
tests hold it to that, in the interpreter.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.mlir import ir

from ...ir.op_facts import Category
from ...ir.ops import facts_of
from . import communication, movement, products, reductions  # noqa: F401 (they declare rules)
from .elementwise import elementwise
from .rules import RULES, OpSite, Shape
from .signature import Signature


def static_shape(type_: ir.Type) -> Shape | None:
    """Returns the static shape of a type; None of one without."""
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return None
    return tuple(type_.shape)


def signature_of(op: ir.Operation) -> Signature | None:
    """Returns the signature of an operation; None where nothing is known of how it splits."""
    operands, results = (
        [static_shape(value.type) for value in values] for values in (op.operands, op.results)
    )
    return signature_at(op, operands, results)


def signature_at(
    op: ir.Operation, operands: Sequence[Shape | None], results: Sequence[Shape | None]
) -> Signature | None:
    """The same of an operation whose shapes are known."""
    rule = RULES.get(op.name)
    if rule is None and facts_of(op.name).category is Category.ELEMENTWISE:
        rule = elementwise
    read = tuple(shape for shape in operands if shape is not None)
    made = tuple(shape for shape in results if shape is not None)
    if rule is None or len(read) < len(operands) or len(made) < len(results):
        return None
    return rule(OpSite(op, read, made))
