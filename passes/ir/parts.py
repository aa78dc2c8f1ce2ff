"""Parts of values along one axis: an operation on parts returns the part of its result."""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from . import walk
from .build import Box, typed
from .op_facts import Category
from .ops import facts_of
from .values import defining_op, shape_of


def resized(value: ir.Value, axis: int, size: int) -> ir.RankedTensorType:
    """Returns the type of a value with another size of an axis."""
    shape = shape_of(value)
    shape[axis] = size
    return typed(value, shape)


def is_same_everywhere(value: ir.Value, axis: int) -> bool:
    """Whether a value is known to be equal in all of its parts along an axis.

    True for a constant of one number, a broadcast along the axis, and elementwise work on these.
    """
    seen, waiting = {value}, [value]
    while waiting:
        op = defining_op(waiting.pop())
        if op is None:
            return False
        if op.name == "stablehlo.constant":
            elements = walk.readable_attributes(op).get("value")
            if not isinstance(elements, ir.DenseElementsAttr) or not elements.is_splat:
                return False
        elif op.name == "stablehlo.broadcast_in_dim":
            axes = walk.integers(op, "broadcast_dimensions")
            if axis in axes and shape_of(op.operands[0])[axes.index(axis)] != 1:
                return False
        elif facts_of(op.name).category is Category.ELEMENTWISE and len(op.results) == 1:
            new = {read for read in op.operands if shape_of(read)} - seen
            if any(shape_of(read) != shape_of(value) for read in new):
                return False
            seen |= new
            waiting += new
        else:
            return False
    return True


def part_of_same(value: ir.Value, axis: int, size: int) -> ir.Value:
    """Writes a part of a value that is the same everywhere along an axis, and returns it."""
    return _part_of_same(value, axis, size, {})


def _part_of_same(
    value: ir.Value, axis: int, size: int, known: dict[ir.Value, ir.Value]
) -> ir.Value:
    if value not in known:
        op = defining_op(value)
        assert op is not None
        type_ = resized(value, axis, size)
        if op.name == "stablehlo.constant":
            splat = ir.DenseElementsAttr(op.attributes["value"]).get_splat_value()
            known[value] = stablehlo.constant(ir.DenseElementsAttr.get_splat(type_, splat))
        elif op.name == "stablehlo.broadcast_in_dim":
            axes = walk.integers(op, "broadcast_dimensions")
            known[value] = stablehlo.broadcast_in_dim(type_, op.operands[0], axes)
        else:
            parts = [
                _part_of_same(read, axis, size, known) if shape_of(read) else read
                for read in op.operands
            ]
            known[value] = on_parts(op, parts, axis, size)
    return known[value]


def part_at(value: ir.Value, axis: int, start: ir.Value, size: int) -> ir.Value:
    """Returns the part of a value that begins somewhere along an axis; ``start`` is a scalar."""
    if is_same_everywhere(value, axis):
        return part_of_same(value, axis, size)
    return Box({axis: (start, size)}).slice(value)


def on_parts(op: ir.Operation, operands: Sequence[ir.Value], axis: int, size: int) -> ir.Value:
    """Writes an operation of one result on parts of its operands, and returns the part.

    Args:
      op: the operation; its attributes stay.
      operands: the parts of its operands.
      axis: the axis of the result along which its part is smaller.
      size: the size of the part.
    """
    return cloned_on(op, operands, resized(op.results[0], axis, size))


def cloned_on(op: ir.Operation, operands: Sequence[ir.Value], type_: ir.Type) -> ir.Value:
    """Returns a clone of an operation of one result, with other operands and another type."""
    clone = op.clone().operation
    for number, operand in enumerate(operands):
        clone.operands[number] = operand
    clone.results[0].set_type(type_)
    return clone.results[0]
