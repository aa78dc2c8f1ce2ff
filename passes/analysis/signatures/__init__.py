"""Signatures: which axes of an operation's operands and results are the same dimension.

One function for each operation, its *rule*, defines it once (`rules`). A new operation needs
nothing else to be known to these readers:

- `dimension_flow`: which values can be computed in chunks;
- `memory_model/layouts`: the order of axes of a value in memory;
- `shardings/constraints`: the sharding constraints that move no data;
- `shardings/propagation`: the rules of CHLO's operations, which Shardy does not have.

An elementwise operation needs no rule: every axis is passed through. By a rule's definition the
operation on chunks returns the chunk of its result, or a term of it. The tests check that, in the
interpreter.
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
    """Returns the static shape of a type; None for a type without one."""
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
    """Returns the signature of an operation from the shapes of its operands and results."""
    rule = RULES.get(op.name)
    if rule is None and facts_of(op.name).category is Category.ELEMENTWISE:
        rule = elementwise
    read = tuple(shape for shape in operands if shape is not None)
    made = tuple(shape for shape in results if shape is not None)
    if rule is None or len(read) < len(operands) or len(made) < len(results):
        return None
    return rule(OpSite(op, read, made))
