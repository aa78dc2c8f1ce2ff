"""Inlines the decomposition of a mark.

Before:

    %1 = stablehlo.composite "hloom.double" %0 {decomposition = @double, version = 1 : i32} …
    func.func private @double(%a) { %s = stablehlo.add %a, %a  return %s }

After:

    %1 = stablehlo.add %0, %0

XLA would inline the decompositions as well. Doing it here keeps marks out of the module that JAX's
cache key is computed from: two specs that differ in marks alone compile once.
"""

from __future__ import annotations

from jax.extend.mlir import ir

from hloom.passes.ir.erase import erase


def decomposition_name(mark: ir.Operation) -> str:
    """The symbol of a mark's decomposition."""
    return ir.FlatSymbolRefAttr(mark.attributes["decomposition"]).value


def inline_decomposition(mark: ir.Operation, decomposition: ir.Operation) -> list[ir.Operation]:
    """Replaces the mark by the function's operations, which are returned."""
    # A clone for each use: its operations are moved to the mark's place.
    function = decomposition.clone(ip=False)
    [block] = function.regions[0].blocks
    for argument, operand in zip(block.arguments, mark.operands, strict=True):
        argument.replace_all_uses_with(operand)
    *body, terminator = (view.operation for view in block.operations)
    for operation in body:
        operation.move_before(mark)
    for result, value in zip(mark.results, terminator.operands, strict=True):
        result.replace_all_uses_with(value)
    erase(mark)
    erase(function)
    return body
