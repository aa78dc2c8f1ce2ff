"""Counts the matrix products that a StableHLO module runs, loops included.

It shares no code with the passes, whose promise it checks.
"""

from __future__ import annotations

from collections.abc import Iterator

from jax.extend.mlir import ir

from benchmarks.common.flops import functions_of, trips

_PRODUCTS = frozenset({"stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution"})


def executed_products(module: ir.Module) -> int:
    """How often the module's `main` runs a matrix product or convolution.

    A product in a while loop counts once a trip; all branches of a conditional count. Raises
    ValueError where a loop with products does not count up to a constant.
    """
    functions = functions_of(module)
    return sum(_products(op, functions) for op in _inside(functions["main"]))


def _products(op: ir.Operation, functions: dict[str, ir.Operation]) -> int:
    if op.name in _PRODUCTS:
        return 1
    if op.name == "func.call":
        callee = functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
        return sum(_products(inner, functions) for inner in _inside(callee))
    once = sum(_products(inner, functions) for inner in _inside(op))
    # The trips of a loop without products do not matter, and need not be known.
    return once * trips(op) if once and op.name == "stablehlo.while" else once


def _inside(op: ir.Operation) -> Iterator[ir.Operation]:
    for region in op.regions:
        for block in region:
            yield from (inner.operation for inner in block)
