"""In what type a loop adds up what its chunks give."""

from __future__ import annotations

from jax.extend.mlir import ir

from ..analysis.program import Program
from ..ir.ops import facts_of
from ..ir.types import element_bits
from ..phase_loops.exits import own_type, widened
from .region import DimensionRegion


class Accumulators:
    """The rule for one region; as a function the element type for a partial value.

    Float32 is the type of a sum of narrower numbers where all such accumulators together take less
    than the largest product that the loop avoids, as it is for the gradient of a head's weights
    where there are more than twice as many tokens as features; and where the sum is converted to
    float32 right away, so that the accumulator is the result. Others have their own type.

    Attributes:
      beside_bytes: what accumulators take beside the results that they are converted to.
    """

    def __init__(self, region: DimensionRegion) -> None:
        flow = region.flow
        program = flow.program
        self._converted = {
            node.op.operands[0]
            for node in region.nodes
            if node.name == "stablehlo.convert" and flow.of(node.operands[0]).is_partial
        }
        sums = [value for value in program.root.returned if flow.of(value).is_partial]
        wide_bytes = sum(_wide_bytes(program, value) for value in sums)
        saved = max(
            [
                program.bytes_of(value)
                for node in region.nodes
                for value in node.results
                if facts_of(node.name).is_product and value in region.large
            ],
            default=0,
        )
        self._widens = wide_bytes < saved
        self.beside_bytes = wide_bytes if self._widens else 0

    def __call__(self, value: ir.Value) -> ir.Type:
        wide = self._widens or value in self._converted
        return widened(value) if wide else own_type(value)


def _wide_bytes(program: Program, value: int) -> int:
    """Bytes of a float32 accumulator of a value; 0 where the value is no narrower."""
    own, wide = own_type(program.values[value]), widened(program.values[value])
    if own == wide:
        return 0
    return program.bytes_of(value) * (element_bits(wide) or 0) // (element_bits(own) or 1)
