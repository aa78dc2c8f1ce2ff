"""Orders layers as a circular schedule needs them.

With R repeats a device has R segments of K layers, S·K layers apart. A stack is distributed over
the devices in contiguous parts. So its layers, which are [R, S, K], are permuted to [S, R, K]
before the loop, and the loop's results are permuted back after it. Between a forward and a backward
loop the two cancel.
"""

from __future__ import annotations

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..analysis.constants import equal_value
from ..ir.build import reshaped
from ..ir.values import shape_of


class Dealing:
    """The stacks of one module that are permuted for some number of devices."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._known: dict[ir.Value, ir.Value] = {}
        """The permuted stack, by stack."""

    def dealt(self, stack: ir.Value, repeats: int) -> ir.Value:
        """Permutes a stack, before the loops around that do not change it."""
        if repeats == 1:
            return stack
        source, around = stack, None
        while isinstance(block := source.owner, ir.Block):
            if (outer := equal_value(source)) is None:
                break
            source, around = outer, block.owner.operation
        if source not in self._known:
            if around is None:
                self._known[source] = self._moved(source, repeats, self._stages)
            else:
                with ir.InsertionPoint(around):
                    self._known[source] = self._moved(source, repeats, self._stages)
        return self._known[source]

    def in_order(self, dealt: ir.Value, repeats: int) -> ir.Value:
        """Returns a loop's result in the order of the layers."""
        if repeats == 1:
            return dealt
        made = self._moved(dealt, self._stages, repeats)
        self._known[made] = dealt
        return made

    @staticmethod
    def _moved(stack: ir.Value, major: int, minor: int) -> ir.Value:
        """Permutes layers [major, minor, K] to [minor, major, K]."""
        length, *shape = shape_of(stack)
        split = reshaped(stack, [major, minor, length // (major * minor), *shape])
        order = [1, 0, *range(2, 3 + len(shape))]
        moved = stablehlo.transpose(split, ir.DenseI64ArrayAttr.get(order))
        return reshaped(moved, [length, *shape])
