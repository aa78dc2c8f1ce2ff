"""Outlines operations of a block into a function of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from ..ir import moves, walk
from ..ir.clone import remap_operands
from ..ir.outline import private_function, read_by

WriteCall = Callable[[Sequence[ir.Value], Sequence[ir.Type]], ir.Operation]
"""Writes the replacement of outlined operations, from the values that they read and the types of
their results that later operations read."""


def outline(
    ops: Sequence[ir.Operation],
    later: Sequence[ir.Operation],
    module: ir.Block,
    name: str,
    write_call: WriteCall,
) -> None:
    """Moves contiguous operations into a function, and replaces them with a call of it.

    Args:
      ops: the operations, at least one.
      later: the operations after them in their block, the terminator included.
      module: the block of the module, where the function becomes the last one.
      name: an unused symbol.
      write_call: writes the call.
    """
    inputs, outputs = read_by(ops), _read_later(ops, later)
    result_types = [value.type for value in outputs]
    body = private_function(module, name, [value.type for value in inputs], result_types)
    with ir.InsertionPoint(ops[0]), ops[0].location:
        call = write_call(inputs, result_types)
    with ir.InsertionPoint(body), ops[0].location:
        returned = func.ReturnOp(outputs).operation
    moves.move_into(returned, ops)
    inside: dict[ir.Value, ir.Value] = dict(zip(inputs, body.arguments, strict=True))
    for old, new in zip(outputs, call.results, strict=True):
        old.replace_all_uses_with(new)
        inside[new] = old
    for op in [*ops, returned]:
        remap_operands(op, inside)


def _read_later(ops: Sequence[ir.Operation], later: Sequence[ir.Operation]) -> list[ir.Value]:
    """Returns the results of contiguous operations that later ones read, in order."""
    read = {value for op in later for value in walk.values_read(op)}
    return [result for op in ops for result in op.results if result in read]
