"""Rules: each a function that writes the signature of the operations that it is decorated with.

@signature("stablehlo.transpose")
def transpose(site: OpSite) -> Signature:
    build = SignatureBuilder()
    read = build.axes(site.operands[0])
    made = [read[axis] for axis in site.integers("permutation")]
    return build.signature([read], [made], linear=MOVED)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from ...ir import walk
from .signature import SUMS, Axis, Combine, FactorReduction, LinearGroup, Signature

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpSite:
    """An operation whose values all have static shapes."""

    op: ir.Operation
    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]

    def integers(self, name: str, missing: Sequence[int] = ()) -> list[int]:
        """Returns an attribute of integers, or ``missing`` without it."""
        return walk.integers(self.op, name, missing)

    def integer(self, name: str, missing: int = 0) -> int:
        """Returns an attribute of one integer, or ``missing`` without it."""
        attributes = self.op.attributes
        return ir.IntegerAttr(attributes[name]).value if name in attributes else missing

    def element(self, operand: int) -> ir.Type:
        """Returns the type of an operand's elements."""
        return ir.RankedTensorType(self.op.operands[operand].type).element_type

    def made_element(self) -> ir.Type:
        """Returns the type of the first result's elements."""
        return ir.RankedTensorType(self.op.results[0].type).element_type


Rule = Callable[[OpSite], Signature | None]
"""Returns the signature of an operation; None where its splitting is not known."""

RULES: dict[str, Rule] = {}
"""The rule of each operation that has one."""


def signature(*names: str) -> Callable[[Rule], Rule]:
    """Registers a function as the rule of these operations, e.g. "stablehlo.transpose"."""

    def declared(rule: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"{name} has two signatures, and wants one")
            RULES[name] = rule
        return rule

    return declared


class SignatureBuilder:
    """Numbers factors while a rule writes a signature."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def factor(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def axis(self, size: int) -> Axis:
        """Returns an axis that is one new factor."""
        return () if size == 1 else (self.factor(size),)

    def axes(self, shape: Sequence[int]) -> list[Axis]:
        """Returns an axis for each size of a shape."""
        return [self.axis(size) for size in shape]

    def signature(
        self,
        operands: Sequence[Sequence[Axis]],
        results: Sequence[Sequence[Axis]],
        reductions: Mapping[int, FactorReduction] | None = None,
        linear: Sequence[LinearGroup] = (),
    ) -> Signature:
        return Signature(
            tuple(map(tuple, operands)),
            tuple(map(tuple, results)),
            tuple(self.sizes),
            reductions or {},
            tuple(linear),
        )


def linear_in(*operands: int, kinds: frozenset[Combine] = SUMS) -> LinearGroup:
    return LinearGroup(frozenset(operands), kinds)


_COMBINERS = {
    "stablehlo.add": Combine.SUM,
    "stablehlo.maximum": Combine.MAX,
    "stablehlo.minimum": Combine.MIN,
}
_OF_BOOLEANS = {"stablehlo.or": Combine.MAX, "stablehlo.and": Combine.MIN}


def combine_of(site: OpSite, region: int = 0) -> Combine | None:
    """Returns the kind of a combiner of two scalars; None where it has several operations."""
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
