"""Counts the matrix products that a StableHLO module runs, loops included.

It shares no code with the passes, whose promise it checks.
"""

from __future__ import annotations

from collections.abc import Iterator

from jax.extend.mlir import ir

_PRODUCTS = frozenset({"stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution"})


def executed_products(module: ir.Module) -> int:
    """How often the module's `main` runs a matrix product or convolution.

    A product in a while loop counts once a trip; all branches of a conditional count. Raises
    ValueError where a loop does not count from 0 by 1 up to a constant, as `lax.scan` makes it.
    """
    functions = {
        ir.StringAttr(op.attributes["sym_name"]).value: op.operation
        for op in module.body.operations
        if op.operation.name == "func.func"
    }
    return sum(_products(op, functions) for op in _inside(functions["main"]))


def _products(op: ir.Operation, functions: dict[str, ir.Operation]) -> int:
    if op.name in _PRODUCTS:
        return 1
    if op.name == "func.call":
        callee = functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
        return sum(_products(inner, functions) for inner in _inside(callee))
    once = sum(_products(inner, functions) for inner in _inside(op))
    # The trips of a loop without products do not matter, and need not be known.
    return once * _trips(op) if once and op.name == "stablehlo.while" else once


def _inside(op: ir.Operation) -> Iterator[ir.Operation]:
    for region in op.regions:
        for block in region:
            yield from (inner.operation for inner in block)


def _trips(loop: ir.Operation) -> int:
    condition = list(loop.regions[0].blocks[0])
    compares = [op for op in condition if op.operation.name == "stablehlo.compare"]
    if len(compares) != 1 or "LT" not in str(compares[0].attributes["comparison_direction"]):
        raise ValueError(f"not a loop up to a bound: {loop.location}")
    counter, bound = compares[0].operands
    if not isinstance(counter, ir.BlockArgument):
        raise ValueError(f"the loop has no plain counter: {loop.location}")
    if _constant(loop.operands[counter.arg_number]) != 0:
        raise ValueError(f"the loop does not count from 0: {loop.location}")
    return _constant(bound)


def _constant(value: ir.Value) -> int:
    op = value.owner
    if not isinstance(op, (ir.Operation, ir.OpView)) or op.operation.name != "stablehlo.constant":
        raise ValueError(f"a loop bound that is no constant: {value}")
    return int(ir.DenseIntElementsAttr(op.attributes["value"])[0])
