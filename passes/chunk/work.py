"""What the products of a region take on the device, whole and in chunks."""

from __future__ import annotations

from ..analysis.dimension_flow.result import DimensionFlow
from ..analysis.program import Node
from ..framework.target import Speed
from ..ir.ops import facts_of
from ..ir.types import TensorSizes
from .region import DimensionRegion

FILLED = 1.1
"""Products in chunks fill the device if they take no more than this much of the time of whole
ones. An H100 does chunks of a thousand tokens of a head in that."""


class RegionWork:
    """The matrix products of a region."""

    def __init__(self, region: DimensionRegion, speed: Speed) -> None:
        self._flow: DimensionFlow = region.flow
        self._speed = speed
        self._sizes = TensorSizes()
        self._products = [node for node in region.nodes if facts_of(node.op.name).is_product]

    def seconds(self, trips: int) -> float:
        """The roofline of all products, each done in so many chunks."""
        return sum(self._product_s(node, trips) for node in self._products)

    def fills(self, trips: int) -> bool:
        """Whether products in so many chunks take hardly more time than whole ones."""
        return self.seconds(trips) <= FILLED * self.seconds(1)

    def _product_s(self, node: Node, trips: int) -> float:
        """What is split is read or written once; weights, and sums of gradients, in each trip."""
        values = self._flow.program.values
        bits, moved_bytes = 0, 0.0
        for value in (*node.operands, *node.results):
            size, flow = self._sizes.of(values[value]), self._flow.of(value)
            if flow.is_split:
                moved_bytes += size.bytes / trips
            elif flow.is_partial and trips > 1:
                moved_bytes += 2 * size.bytes
            else:
                moved_bytes += size.bytes
        for value in node.operands:
            bits = max(bits, self._sizes.of(values[value]).bits)
        work_s = node.flops / trips / self._speed.matrix_rate(bits)
        moved_s = moved_bytes / self._speed.bytes_per_s
        both_s = max(work_s, moved_s) if self._speed.overlaps else work_s + moved_s
        return trips * max(both_s, self._speed.kernel_s)
