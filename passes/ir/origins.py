"""The origin of a value: the operation that computes it, through loops that stack or carry it.

A loop's result has the loop's line, which does not identify the layer that computed the values.
"""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.mlir import ir

from .values import defining_op, shape_of
from .walk import terminator

_CARRIERS = {
    "stablehlo.broadcast_in_dim": 0,
    "stablehlo.convert": 0,
    "stablehlo.dynamic_update_slice": 1,
    "stablehlo.reshape": 0,
    "stablehlo.transpose": 0,
}
"""Operations in a loop's body that only pass a value on to a result, with the operand's number."""


@dataclass(frozen=True)
class ValueOrigin:
    """The operation that computes a value.

    Attributes:
      stacked: the number of its results that a loop stacks in the value; 1 where none does.
    """

    op: ir.Operation
    stacked: int = 1


def origin_of(value: ir.Value) -> ValueOrigin | None:
    """Returns the operation that computes a value, for a loop's result that in its body; None for
    an argument.

    Where the body returns a carry unchanged, the origin is the loop. For a slice that a loop reads
    from the stack of another loop, it is the operation that computed the stacked values.
    """
    made_by, stacked = defining_op(value), 1
    if made_by is None:
        return None
    if made_by.name == "stablehlo.dynamic_slice":
        return _of_slice(made_by) or ValueOrigin(made_by)
    carried: set[ir.Value] = set()
    while made_by.name == "stablehlo.while":
        body = made_by.regions[1].blocks[0]
        inner = terminator(body).operands[ir.OpResult(value).result_number]
        while inner not in carried:
            carried.add(inner)
            if isinstance(inner.owner, ir.Block):
                if inner.owner != body:
                    break
                # A carry: the value that the previous iteration returned.
                inner = terminator(body).operands[ir.BlockArgument(inner).arg_number]
                continue
            op = inner.owner.operation
            if op.name not in _CARRIERS:
                break
            if op.name == "stablehlo.dynamic_update_slice":
                whole, part = shape_of(op.results[0]), shape_of(op.operands[1])
                stacked *= whole[0] // part[0] if whole and part[0] else 1
            inner = op.operands[_CARRIERS[op.name]]
        maker = defining_op(inner)
        if maker is None or maker.name in _CARRIERS:
            return ValueOrigin(made_by)
        value, made_by = inner, maker
    return ValueOrigin(made_by, stacked)


def _of_slice(op: ir.Operation) -> ValueOrigin | None:
    """Returns the origin of the slice of a stack that a loop reads; None where it reads none."""
    source = op.operands[0]
    while isinstance(source.owner, ir.Block):
        body, number = source.owner, ir.BlockArgument(source).arg_number
        loop = body.owner.operation
        if loop.name != "stablehlo.while" or terminator(body).operands[number] != source:
            return None
        source = loop.operands[number]
    made_by = origin_of(source)
    return ValueOrigin(made_by.op) if made_by is not None and made_by.stacked > 1 else None
