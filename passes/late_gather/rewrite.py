"""Rewrites work to run on each device's part of a value, and gathers its results."""

from __future__ import annotations

from jax.extend.mlir import ir

from ..analysis.axis_cuts import cut_operand
from ..analysis.purity import erase_unread, may_go
from ..ir import walk
from ..ir.build import reshaped
from ..ir.made_collectives import all_gathered
from ..ir.parts import cloned_on, on_parts, part_of_same
from ..ir.values import defining_op, shape_of
from .plan import ReplacedGathers


def gather_late(found: ReplacedGathers) -> None:
    """Writes the operations of a decision on parts, and gathers their chosen results."""
    axes, devices, like = dict(found.axes), found.groups.size, found.gathers[0]
    parts = {op.results[0]: op.operands[0] for op in found.gathers}
    wholes: dict[ir.Value, ir.Value] = {}
    for op in found.work:
        result = op.results[0]
        with op.location, ir.InsertionPoint(op):
            made = _on_parts(op, parts, axes)
            if op in found.maxima:
                wholes[result] = _extreme_of_all(op, made, like, devices)
                continue
            parts[result] = made
            if result in found.gathered:
                wholes[result] = all_gathered(made, axes[result], devices, like)
    for value, whole in wholes.items():
        value.replace_all_uses_with(whole)
    gathers = {walk.key(op) for op in found.gathers}
    erase_unread([*found.work, *found.gathers], lambda op: walk.key(op) in gathers or may_go(op))


def _on_parts(
    op: ir.Operation, parts: dict[ir.Value, ir.Value], axes: dict[ir.Value, int]
) -> ir.Value:
    """Writes an operation on a device's parts of its operands. A reduction over the split axis
    returns this device's term."""
    numbers = [number for number, value in enumerate(op.operands) if value in parts]
    cut = cut_operand(op, numbers[0], axes[op.operands[numbers[0]]])
    assert cut is not None
    size = shape_of(parts[op.operands[numbers[0]]])[axes[op.operands[numbers[0]]]]
    operands = [
        parts[value]
        if value in parts
        else value
        if axis is None
        else part_of_same(value, axis, size)
        for value, axis in zip(op.operands, cut.operands, strict=True)
    ]
    if cut.result is None:
        return cloned_on(op, operands, op.results[0].type)
    return on_parts(op, operands, cut.result, size)


def _extreme_of_all(op: ir.Operation, own: ir.Value, like: ir.Operation, devices: int) -> ir.Value:
    """Returns the maximum or minimum of all devices, each of which has its own.

    They are gathered and combined as the elements were: NCCL's maximum drops NaNs.
    """
    rows = reshaped(own, [1, *shape_of(own)])
    terms = all_gathered(rows, 0, devices, like)
    combined = cloned_on(op, [terms, op.operands[1]], own.type)
    reduction = defining_op(combined)
    assert reduction is not None
    reduction.attributes["dimensions"] = ir.DenseI64ArrayAttr.get([0])
    return combined
