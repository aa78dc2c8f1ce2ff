"""Add matrix products to wider sums inside of the product, unrounded.

A product of bfloat16 matrices that is converted to float32 and added to a sum, as gradients of
microbatches are, is rounded before. XLA can add to the sum in the product's kernel.

Before::

    %d = stablehlo.dot_general %x, %g  : (tensor<8x4xbf16>, tensor<8x9xbf16>) -> tensor<4x9xbf16>
    %f = stablehlo.convert %d          : tensor<4x9xf32>
    %next = stablehlo.add %sum, %f     : tensor<4x9xf32>

After::

    %d = stablehlo.dot_general %x, %g  : (tensor<8x4xbf16>, tensor<8x9xbf16>) -> tensor<4x9xf32>
    %next = stablehlo.add %sum, %d     : tensor<4x9xf32>

Results change, to those of ``preferred_element_type=float32``, so that the pass runs only where a
spec names it. A product stays that has another reader, whose sum is of integers or float64, whose
algorithm or conversion rounds, whose shape is dynamic, or whose sum the devices exchange.

Source: XLA's GemmRewriter and Triton fusions, which take ``add(dot, accumulator)`` of one type.
"""

# jax 0.10.2 and 0.12.0.1 cannot run on a CPU a transposed product of bfloat16 with a result of
# float32 that sums over two axes: "Unsupported element type for DotThunk::Execute: BF16 x BF16 =
# F32".

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from ..analysis.shardings.shardings import Shardings
from ..analysis.signatures import signature_of
from ..drop_constraints import DropConstraints
from ..framework.base import ListPlan, Pass
from ..framework.tables import Described, Fact, Kind, Table
from ..framework.target import Target
from ..framework.text import pluralize
from ..ir import mesh, walk
from ..ir.locations import operation_name, source_line
from ..ir.product_terms import ProductTerm, product_terms


@dataclass(frozen=True)
class WidenedProduct:
    """A product that is computed in the type of a sum.

    Attributes:
      id: the decision's name.
      term: the product, and the operations between it and the sum.
    """

    id: str
    term: ProductTerm

    @property
    def description(self) -> str:
        product = self.term.product
        name, line = operation_name(product.location), source_line(product.location)
        text = f"{name or product.name} : {product.results[0].type} in {self.term.wider}"
        return f"{text}, {line}" if line else text


@dataclass(frozen=True)
class AccumulateInPlacePlan(ListPlan[WidenedProduct]):
    """The products that are made in a wider type, in the order of the program.

    ``sent`` counts products that stay, because devices exchange their sums.
    """

    sent: int = 0

    def effect(self) -> str:
        return f"{pluralize(len(self.decided), 'product')} added in place"

    def summary(self) -> str:
        text = self.effect()
        return f"{text}, {self.sent} left, whose sums devices exchange" if self.sent else text

    def facts(self) -> tuple[Fact, ...]:
        return (Fact("products added in place", len(self.decided)), Fact("left", self.sent))

    def decided_tables(self) -> tuple[Table, ...]:
        rows = tuple((Described.of(one.term.product), str(one.term.wider)) for one in self.decided)
        return (Table("Products added in place", {"product": Kind.VALUE, "in": Kind.CODE}, rows),)


@dataclass(frozen=True)
class AccumulateInPlace(Pass):
    """Add products to wider sums inside of the product."""

    name: ClassVar[str] = "accumulate-in-place"
    summary: ClassVar[str] = "add products to wider sums within the product, unrounded"
    example: ClassVar[str] = "accumulate-in-place"
    requires: ClassVar[tuple[type[Pass], ...]] = (DropConstraints,)
    not_on: ClassVar[Mapping[str, str]] = {
        "cpu": "XLA adds products of bfloat16 up unrounded there, and cannot run all of those that "
        "have a result of float32"
    }

    def plan(self, module: ir.Module, target: Target) -> AccumulateInPlacePlan:
        devices = DeviceSums(module)
        found: list[WidenedProduct] = []
        sent = 0
        for op in walk.operations(module.operation):
            if op.name != "stablehlo.add":
                continue
            for term in product_terms(op):
                if devices.are_sent(term.product) or devices.are_moved(term, op):
                    sent += 1
                else:
                    found.append(WidenedProduct(f"product-{len(found)}", term))
        return AccumulateInPlacePlan(tuple(found), sent=sent)

    def apply(self, plan: AccumulateInPlacePlan) -> None:
        for one in plan.decided:
            one.term.widen()


class DeviceSums:
    """The sums that devices of a module exchange. The module's shardings are found when needed.

    A product whose contracted axis is split computes a part of each sum on each device. XLA's
    partitioner inserts an all-reduce or a reduce-scatter on its result, in the result's type: in a
    wider one it would send more bytes than in the original program.
    """

    def __init__(self, module: ir.Module) -> None:
        self._module = module

    def are_sent(self, product: ir.Operation) -> bool:
        """Whether devices may have to exchange parts of a product's sums."""
        if not self._is_partitioned:
            return False
        if not self._has_mesh:
            return True  # the shardings are not Shardy's: XLA alone knows them
        along = self._shards.devices_along
        return any(along(operand, axis) > 1 for operand, axis in _summed_axes(product))

    def are_moved(self, term: ProductTerm, sum_: ir.Operation) -> bool:
        """Whether a product's result, or work on it, may be sharded differently from the sum."""
        if not self._is_partitioned:
            return False
        made = [op.results[0] for op in (term.product, *term.between)]
        added, total = made[-1], sum_.results[0]
        if len({self._shards.share(value) for value in (*made, total)}) > 1:
            return True
        along = self._shards.devices_along
        rank = ir.RankedTensorType(total.type).rank
        return any(along(added, axis) != along(total, axis) for axis in range(rank))

    @functools.cached_property
    def _is_partitioned(self) -> bool:
        return mesh.partition_count(self._module) > 1 or self._has_mesh

    @functools.cached_property
    def _has_mesh(self) -> bool:
        return bool(mesh.mesh_ops(self._module.operation))

    @functools.cached_property
    def _shards(self) -> Shardings:
        return Shardings.of(self._module)


def _summed_axes(product: ir.Operation) -> list[tuple[ir.Value, int]]:
    """Returns the axes of operands that a product may sum over: those that its result lacks."""
    signature = signature_of(product)
    return [
        (operand, axis)
        for number, operand in enumerate(product.operands)
        for axis in range(ir.ShapedType(operand.type).rank)
        if signature is None or not signature.made.issuperset(signature.operands[number][axis])
    ]
