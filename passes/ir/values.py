"""Facts of a value: its operation, its readers, its shape, its element type, its integer."""

from __future__ import annotations

from jax.extend.mlir import ir


def defining_op(value: ir.Value) -> ir.Operation | None:
    """Returns the operation that defines the value; None for a block argument."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def is_read(made: ir.Operation | ir.Value) -> bool:
    """Whether anything reads a value, or a result of an operation."""
    for value in [made] if isinstance(made, ir.Value) else made.results:
        for _ in value.uses:
            return True
    return False


def shape_of(value: ir.Value | ir.Type) -> list[int]:
    """Returns the sizes of a tensor, or of a tensor type, in a new list; empty for other types."""
    type_ = value.type if isinstance(value, ir.Value) else value
    return list(type_.shape) if isinstance(type_, ir.RankedTensorType) else []


def element_of(value: ir.Value | ir.Type) -> ir.Type:
    """Returns the element type of a tensor, or of a tensor type."""
    return ir.ShapedType(value.type if isinstance(value, ir.Value) else value).element_type


def constant_int(value: ir.Value) -> int | None:
    """Returns the integer that a scalar constant holds; None where the value is not one."""
    op = defining_op(value)
    if op is None or op.name != "stablehlo.constant":
        return None
    attribute = op.attributes["value"]
    if not isinstance(attribute, ir.DenseIntElementsAttr) or not attribute.is_splat:
        return None
    return None if shape_of(value) else ir.IntegerAttr(attribute.get_splat_value()).value
