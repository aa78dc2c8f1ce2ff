"""Following an axis through an operation that can be done on one part of it at a time."""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.mlir import ir

from .signatures import signature_of
from .signatures.signature import FactorReduction


@dataclass(frozen=True)
class AxisCut:
    """A dimension in an operation of one result.

    Attributes:
      operands: by operand the axis that is the dimension; None where it has none.
      result: the axis of the result; None where the operation reduces the dimension.
      reduction: the kind of the reduction, if any.
    """

    operands: tuple[int | None, ...]
    result: int | None
    reduction: FactorReduction | None = None


def cut_operand(op: ir.Operation, number: int, axis: int) -> AxisCut | None:
    """Returns the dimension that an axis of an operand is.

    None where the operation cannot be done a part of it at a time, or the dimension is a mere part
    of an axis elsewhere.
    """
    signature = signature_of(op)
    if signature is None or len(op.results) != 1:
        return None
    along = signature.operands[number][axis]
    if len(along) != 1:
        return None
    operands: list[int | None] = []
    for axes in signature.operands:
        holding = [place for place, each in enumerate(axes) if along[0] in each]
        if len(holding) > 1 or any(axes[place] != along for place in holding):
            return None
        operands.append(holding[0] if holding else None)
    made = [place for place, each in enumerate(signature.results[0]) if along[0] in each]
    if not made:
        reduction = signature.reductions.get(along[0])
        return None if reduction is None else AxisCut(tuple(operands), None, reduction)
    if len(made) > 1 or signature.results[0][made[0]] != along:
        return None
    return AxisCut(tuple(operands), made[0])


def cut_result(op: ir.Operation, axis: int) -> AxisCut | None:
    """Returns the dimension that an axis of the result is; None as in `cut_operand`."""
    signature = signature_of(op)
    if signature is None or len(op.results) != 1:
        return None
    for number, axes in enumerate(signature.operands):
        for place, along in enumerate(axes):
            if along and along == signature.results[0][axis]:
                return cut_operand(op, number, place)
    return None
