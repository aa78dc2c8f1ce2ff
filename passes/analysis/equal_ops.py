"""Keys that are equal for operations of which nothing but the operands differs."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from jax.extend.mlir import ir

from ..ir import walk


def operation_key(
    op: ir.Operation, number_outside: Callable[[ir.Value], Hashable] | None = None
) -> Hashable:
    """A key that is equal for two operations if nothing but their operands differs.

    What a region reads from outside counts as ``number_outside`` numbers it. Raises KeyError where
    a region does so and nothing numbers it.
    """
    return (
        _attributes_key(op),
        tuple(result.type for result in op.results),
        tuple(_body_key(region.blocks[0], {}, number_outside) for region in op.regions),
    )


def _body_key(
    block: ir.Block,
    number: dict[ir.Value, int],
    number_outside: Callable[[ir.Value], Hashable] | None,
) -> Hashable:
    """A key that is equal for two blocks that compute the same.

    Printing the blocks instead would number the values of the whole function.
    """
    for argument in block.arguments:
        number[argument] = len(number)

    def numbered(value: ir.Value) -> Hashable:
        if number_outside is None or value in number:
            return number[value]
        return "outside", number_outside(value)

    rows: list[Hashable] = [tuple(argument.type for argument in block.arguments)]
    for view in block.operations:
        op = view.operation
        read = tuple(numbered(operand) for operand in op.operands)
        types = tuple(result.type for result in op.results)
        inner = tuple(_body_key(region.blocks[0], number, number_outside) for region in op.regions)
        rows.append((op.name, read, _attributes_key(op), types, inner))
        for result in op.results:
            number[result] = len(number)
    return tuple(rows)


def _attributes_key(op: ir.Operation) -> Hashable:
    """A key that is equal for equal attributes, and unique if an attribute cannot be read."""
    attributes = walk.readable_attributes(op)
    if any(attribute is None for attribute in attributes.values()):
        return object()
    return tuple(attributes.items())
