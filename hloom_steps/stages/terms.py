"""Divides gradients into the terms that stages return: one for each use of a parameter.

The gradient of a parameter that several layers read is a sum. Where these layers are in different
stages, no stage waits for another one's term: each returns the sum of its own. Parts of a stacked
gradient are terms of some rows each.
"""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis.constants import is_zero_constant
from hloom.passes.ir import walk
from hloom.passes.ir.values import defining_op, shape_of
from hloom_steps.stages.programs import Parameter
from hloom_steps.stages.rows import CONCATENATE, axis_of, does_each_row_alone, with_operand

_WHOLE = frozenset({"stablehlo.reshape", "stablehlo.transpose"})
"""Operations of one operand that can be applied to each term of a sum."""


@dataclass(frozen=True)
class Term:
    """A value that is added to a parameter's gradient, or to rows of it."""

    value: ir.Value
    rows: tuple[int, int] | None = None

    def of(self, leaf: int) -> Parameter:
        """Returns the part of a parameter that the term is a gradient of."""
        return Parameter(leaf) if self.rows is None else Parameter(leaf, *self.rows)


def terms_of(gradient: ir.Value) -> list[Term]:
    """Returns the terms of a gradient; the gradient itself where it is no sum. Writes new
    operations at the insertion point."""
    op = defining_op(gradient)
    if op is None:
        return [Term(gradient)]
    if op.name == "stablehlo.add":
        return [term for operand in op.operands for term in terms_of(operand)]
    if op.name == CONCATENATE and axis_of(op) == 0:
        return _behind_each_other(op)
    if op.name == "stablehlo.pad" and (rows := _padded_rows(op)) is not None:
        return [Term(op.operands[0], rows)]
    if does_each_row_alone(op) or op.name in _WHOLE:
        inner = terms_of(op.operands[0])
        if len(inner) == 1 and inner[0].rows is None:
            return [Term(gradient)]
        if op.name not in _WHOLE or all(
            term.rows is None or does_each_row_alone(op) for term in inner
        ):
            return [_through(op, term) for term in inner]
    return [Term(gradient)]


def _through(op: ir.Operation, term: Term) -> Term:
    """Returns a term of an operation's result, given a term of its operand."""
    shape = shape_of(op.results[0])
    if term.rows is not None:
        shape[0] = term.rows[1] - term.rows[0]
    return Term(with_operand(op, term.value, shape), term.rows)


def _behind_each_other(op: ir.Operation) -> list[Term]:
    found, at = [], 0
    for operand in op.operands:
        rows = shape_of(operand)[0]
        if rows:
            found.append(Term(operand, (at, at + rows)))
        at += rows
    return found


def _padded_rows(op: ir.Operation) -> tuple[int, int] | None:
    """Returns the rows of an operation's result that contain its operand, if all others are
    zero."""
    low, high, interior = (
        walk.integers(op, name)
        for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    padding = defining_op(op.operands[1])
    if padding is None or not is_zero_constant(padding):
        return None
    if any(interior) or any(low[1:]) or any(high[1:]) or not low or low[0] < 0 or high[0] < 0:
        return None
    return low[0], low[0] + shape_of(op.operands[0])[0]
