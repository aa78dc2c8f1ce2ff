"""What a rule sees of an operation: its shapes, its attributes, its combiner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from ....ir import walk
from ..flow import Combine

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpSite:
    """An operation whose values all have static shapes."""

    op: ir.Operation
    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]

    def integers(self, name: str, missing: Sequence[int] = ()) -> list[int]:
        """An attribute of integers, or what stands for it where it is missing."""
        return walk.integers(self.op, name, missing)

    def integer(self, name: str, missing: int = 0) -> int:
        """An attribute of one integer, or what stands for it where it is missing."""
        attributes = self.op.attributes
        return ir.IntegerAttr(attributes[name]).value if name in attributes else missing

    def element(self, operand: int) -> ir.Type:
        """The type of an operand's elements."""
        return ir.RankedTensorType(self.op.operands[operand].type).element_type

    def made_element(self, result: int = 0) -> ir.Type:
        """The type of a result's elements."""
        return ir.RankedTensorType(self.op.results[result].type).element_type


_COMBINERS = {
    "stablehlo.add": Combine.SUM,
    "stablehlo.maximum": Combine.MAX,
    "stablehlo.minimum": Combine.MIN,
}
_OF_BOOLEANS = {"stablehlo.or": Combine.MAX, "stablehlo.and": Combine.MIN}


def combine_of(site: OpSite, region: int = 0) -> Combine | None:
    """How a combiner of two scalars combines them; None where it is not just one operation."""
    block = site.op.regions[region].blocks[0]
    body = [view.operation for view in block.operations]
    if len(body) != 2 or len(block.arguments) != 2:
        return None
    operation, returned = body
    one, other = block.arguments
    if list(operation.operands) not in ([one, other], [other, one]):
        return None
    if list(returned.operands) != list(operation.results):
        return None
    if str(ir.RankedTensorType(one.type).element_type) == "i1":
        return _OF_BOOLEANS.get(operation.name)
    return _COMBINERS.get(operation.name)


def replaces(site: OpSite) -> bool:
    """Whether a scatter's combiner returns the update."""
    block = site.op.regions[0].blocks[0]
    returned = list(walk.terminator(block).operands)
    return len(block.arguments) == 2 and returned == [block.arguments[1]]
