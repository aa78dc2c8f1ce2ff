"""Where a value comes from: what makes it, seen through the loop that stacks or carries it.

A loop's result has the loop's line, which says nothing of the layer whose values it holds.
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
"""Operations in a loop's body that only pass a value on to a result, and the operand that is it."""


@dataclass(frozen=True)
class ValueOrigin:
    """What makes a value.

    Attributes:
      stacked: how many of its results a loop stacks in the value; 1 where none does.
    """

    op: ir.Operation
    stacked: int = 1


def origin_of(value: ir.Value) -> ValueOrigin | None:
    """What makes a value: of a loop's result, the operation in its body. None for an argument.

    Where the body only hands on what the loop was given it is the loop. Of a slice that a loop
    reads from what another one has stacked it is what made that.
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
                # A carry: what the iteration before this one returned.
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
    """What made the slice of a stack that a loop reads; None where it reads no loop's stack."""
    source = op.operands[0]
    while isinstance(source.owner, ir.Block):
        body, number = source.owner, ir.BlockArgument(source).arg_number
        loop = body.owner.operation
        if loop.name != "stablehlo.while" or terminator(body).operands[number] != source:
            return None
        source = loop.operands[number]
    made_by = origin_of(source)
    return ValueOrigin(made_by.op) if made_by is not None and made_by.stacked > 1 else None
