"""Operations written as the text of a function, put into a module."""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.mlir import ir


def paste(mark: ir.Operation, function: str, operands: Sequence[ir.Value]) -> list[ir.Value]:
    """Puts the body of a function before the mark, with these operands; gives what it returns."""
    module = ir.Module.parse(function)
    [block] = module.body.operations[0].regions[0].blocks
    for argument, operand in zip(block.arguments, operands, strict=True):
        argument.replace_all_uses_with(operand)
    *body, terminator = (view.operation for view in block.operations)
    results = list(terminator.operands)
    for operation in body:
        operation.move_before(mark)
    return results
