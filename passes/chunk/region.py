"""The region around a large value: the operations that one loop over a dimension can have in it.

From the value the region grows over *large* values, those of about its number of elements: back to
what a part of operands makes a part of, forward to all readers. What lies on a path between two of
its operations belongs to it, so that a loop can take the place of all of them. It ends at values
that are small beside the one it is around: a head's hidden states, losses, sums over the dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..analysis.dimension_flow.result import DimensionFlow, Seed, site
from ..analysis.dimension_flow.solve import dimension_flow
from ..analysis.dimension_flow.walker import TooManyPhasesError
from ..analysis.program import Node, Program
from ..analysis.signatures.signature import AxisLayout
from ..framework.errors import NotPossibleError
from ..ir.ops import facts_of
from .growth import MOST_OPERATIONS, BlockValues, RegionGrowth


@dataclass(frozen=True)
class DimensionRegion:
    """Operations of a block that one loop over a dimension can have in it.

    Attributes:
      value: the value that it is around, by number.
      nodes: its operations, in the order of the block.
      flow: the dimension, in these operations as a program by themselves: one phase.
      large: the values that no longer exist in full, by number.
      kept: large values that are still needed in full, each with a reader.
      repeated: values that the loop makes of smaller ones, whoever else makes them, too.
    """

    value: int
    nodes: tuple[Node, ...]
    flow: DimensionFlow
    large: tuple[int, ...]
    kept: tuple[tuple[int, Node | None], ...]
    repeated: frozenset[int]

    @property
    def layout(self) -> AxisLayout:
        """Where the dimension is in the value."""
        found = self.flow.of(self.value).layout
        assert found is not None
        return found


class RegionFinder(BlockValues):
    """Finds regions in a block."""

    def seeds(self, value: int) -> Iterator[tuple[int, AxisLayout]]:
        """The dimensions that a region around a value may be cut along.

        Each is an axis of the matrix product that the value is made from, past reshapes, where one
        is behind it; else of the value itself.
        """
        root = self._root(value)
        for axis, size in enumerate(self.program.shapes[root] or ()):
            if size > 1:
                yield root, AxisLayout(axis, 1, size, 1)

    def _root(self, value: int) -> int:
        elements = self.elements(value)
        found = value
        for _ in range(MOST_OPERATIONS):
            place = self.program.maker(found)
            if place is None or self.nodes[place].blocks:
                return value
            node = self.nodes[place]
            if facts_of(node.op.name).is_product:
                return found
            behind = [read for read in node.operands if self.elements(read) >= elements]
            behind = [read for read in behind if not self.is_repeated(read)]
            if not behind:
                return value
            found = behind[0]
        return value

    def around(self, value: int, seed: int, layout: AxisLayout) -> DimensionRegion:
        """The region around a value, cut where the seed's layout says.

        Raises NotPossibleError.
        """
        grown = RegionGrowth(self, value, seed, layout)
        part = self.program.part(grown.nodes())
        flow = self._flow(part, grown)
        made = dict.fromkeys(value for node in part.root.nodes for value in node.results)
        large = tuple(value for value in made if grown.is_large(value) and value in grown.layouts)
        if value not in made or not flow.of(value).is_split:
            raise NotPossibleError("what makes it cannot be cut there")
        inside = {node.number for node in part.root.nodes}
        if value in part.root.returned:
            reader = self._outer(value, inside)
            who = "the result" if reader is None else site(reader.op)
            raise NotPossibleError(f"{who} reads the whole of it")
        kept = tuple(
            (left, self._outer(left, inside))
            for left in part.root.returned
            if left in set(large) and not self.is_repeated(left)
        )
        repeated = frozenset(filter(self.is_repeated, made))
        return DimensionRegion(value, tuple(part.root.nodes), flow, large, kept, repeated)

    def _outer(self, value: int, inside: set[int]) -> Node | None:
        """The first reader outside of a region; None where the block returns the value."""
        readers = (self.nodes[place] for place in self.program.readers(value))
        return next((node for node in readers if node.number not in inside), None)

    def _flow(self, part: Program, grown: RegionGrowth) -> DimensionFlow:
        values = self.program.values
        read = {
            value
            for node in part.root.nodes
            if facts_of(node.op.name).is_product
            for value in node.operands
        }
        # What else is cut is small, and a loop cuts it where that is best.
        seeds = [
            Seed(values[argument], grown.layouts[argument])
            for argument in part.root.arguments
            if argument in grown.layouts and (argument in read or grown.is_large(argument))
        ] or [Seed(values[grown.seed], grown.layouts[grown.seed])]
        try:
            return dimension_flow(part, seeds, most_phases=1)
        except TooManyPhasesError:
            flow = dimension_flow(part, seeds)
            why = "".join(f": {end}" for end in flow.phases[0].ends[:1])
            raise NotPossibleError(f"it takes {len(flow.phases)} loops{why}") from None
