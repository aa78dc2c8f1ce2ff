"""Lets a rewritten loop body of a partitioned program read what it has already.

A clone of a layer reads its parameters by slices of its own. XLA merges equal slices, but only
after it has partitioned the program: until then each of them has made it gather the parameters.

Before::

    %0 = stablehlo.dynamic_slice %weights, %index, %zero, %zero
    %1 = stablehlo.dot_general %gradient, %0
    %2 = stablehlo.dynamic_slice %weights, %index, %zero, %zero  // cloned
    %3 = stablehlo.dot_general %stream, %2                       // cloned

After::

    %0 = stablehlo.dynamic_slice %weights, %index, %zero, %zero
    %1 = stablehlo.dot_general %gradient, %0
    %3 = stablehlo.dot_general %stream, %0                       // cloned
"""

from __future__ import annotations

from jax.extend.mlir import ir

from ...analysis.autodiff import has_remat_name
from ...analysis.purity import is_cheap
from ...analysis.value_numbers import ValueNumbers


def merge_clones(block: ir.Block) -> None:
    """Replaces cheap clones of a block by equal earlier operations of it, as XLA does later."""
    numbers = ValueNumbers(through_barriers=False)
    first: dict[int, ir.Value] = {}
    for op in [view.operation for view in block.operations]:
        results: list[ir.Value] = list(op.results)
        earlier = [first.setdefault(numbers.of(value), value) for value in results]
        if results and earlier != results and has_remat_name(op) and is_cheap(op):
            for value, same in zip(results, earlier, strict=True):
                value.replace_all_uses_with(same)
