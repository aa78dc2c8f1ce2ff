"""Reduces sums of products over devices once, after a loop, and not with each chunk.

A product that sums over an axis which devices have parts of gives each device a term of the sum,
and XLA's partitioner reduces the terms right at the product: in a loop with each chunk. Here each
device adds up its own terms, along an axis of their own that is split over the devices, and they
are reduced once.

Before, with the batch of 16 sharded over 4 devices, along "data" of the mesh, in a loop over
positions::

    %d = stablehlo.dot_general %x, %g, contracting_dims = [0, 1] x [0, 1]
      : (tensor<16x512x64xf32>, tensor<16x512x256xf32>) -> tensor<64x256xf32>
    %next = stablehlo.add %sum, %d              : tensor<64x256xf32>

After::

    %parts = stablehlo.reshape %x               : tensor<4x4x512x64xf32>
    %others = stablehlo.reshape %g              : tensor<4x4x512x256xf32>
    %d = stablehlo.dot_general %parts, %others, batching_dims = [0] x [0],
      contracting_dims = [1, 2] x [1, 2]        : tensor<4x64x256xf32>
    %next = stablehlo.add %sum, %d              : tensor<4x64x256xf32>

and after the loop::

    %0 = stablehlo.reduce(%sums) add across [0] : tensor<64x256xf32>
    %1 = sdy.sharding_constraint %0             : with the sum's own placement

Unlike a computation on each device (`devices`) this takes any mesh, whichever of its axes the
dimension of the loop is split along, if any: the other shardings are unchanged. The accumulators
are whole on each device, except for that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy, stablehlo

from ..analysis.dimension_flow.result import DimensionFlow
from ..analysis.program import Program
from ..analysis.shardings.products import PRODUCTS
from ..analysis.shardings.shardings import Shardings
from ..analysis.signatures.signature import Combine
from ..ir import mesh, walk
from ..ir.build import converted, reduce, reshaped, typed, zeros
from ..ir.erase import erase
from ..ir.product_terms import product_behind
from ..ir.products import OperandAxes, ProductAxes
from ..ir.shardings import MeshAxis, ValueSharding, sharding_of
from ..ir.values import element_of, is_read, shape_of

_NUMBERS = "dot_dimension_numbers"


@dataclass(frozen=True)
class DeviceTerms:
    """The sharding in which each device adds up its own terms of a product's sum.

    Attributes:
      summed: the contracted dimensions that devices have parts of, by their place among all that
        the product contracts, and how many parts each has.
      terms: the sharding of the terms: an axis for each of these, and then those of the sum.
      total: the sharding of the sum.
    """

    summed: tuple[tuple[int, int], ...]
    terms: ValueSharding
    total: ValueSharding

    @property
    def counts(self) -> list[int]:
        return [count for _, count in self.summed]

    @property
    def devices(self) -> int:
        """Returns how many devices have terms of their own."""
        return math.prod(self.counts)

    def local_elements(self, type_: ir.Type) -> int:
        """Returns the elements of a device's accumulator."""
        return math.prod(self.terms.local_shape(shape_of(self.type_of(type_))))

    def type_of(self, type_: ir.Type) -> ir.RankedTensorType:
        """Returns the type of all terms together, from the type of their sum."""
        return typed(type_, [*self.counts, *shape_of(type_)])

    def placed(self, accumulators: ir.Value) -> ir.Value:
        """Returns the loop's initial accumulators, sharded as the terms."""
        sharding = sharding_of(self.terms, accumulators.context)
        return sdy.ShardingConstraintOp(accumulators, sharding).result

    def apart(self, term: ir.Value) -> ir.Value:
        """Writes the terms of all devices instead of their sum, which is erased if possible."""
        found = product_behind(term)
        assert found is not None
        product, between = found
        made = self._product(product)
        for op in between:
            with op.location:
                made = self._moved(op, made)
        for op in (*reversed(between), product):
            if not is_read(op.results[0]):
                erase(op)
        return made

    def reduced(self, accumulators: ir.Value, sent: ir.Type) -> ir.Value:
        """Returns the sum over the devices, which send each other elements of the type ``sent``."""
        own = element_of(accumulators)
        start = zeros(ir.RankedTensorType.get([], sent))
        axes = range(len(self.summed))
        made = reduce(converted(accumulators, sent), axes, start, stablehlo.add)
        sharding = sharding_of(self.total, made.context)
        return converted(sdy.ShardingConstraintOp(made, sharding).result, own)

    def _product(self, product: ir.Operation) -> ir.Value:
        axes = ProductAxes.of(product)
        left, left_axes = self._divided(product.operands[0], axes.left)
        right, right_axes = self._divided(product.operands[1], axes.right)
        names = walk.attribute_names(product)
        attributes = {name: product.attributes[name] for name in names if name != _NUMBERS}
        numbers = ProductAxes(left_axes, right_axes).numbers
        made = ir.Operation.create(
            "stablehlo.dot_general",
            results=[self.type_of(product.results[0].type)],
            operands=[left, right],
            attributes=attributes | {_NUMBERS: numbers},
            loc=product.location,
        )
        return made.results[0]

    def _divided(self, operand: ir.Value, axes: OperandAxes) -> tuple[ir.Value, OperandAxes]:
        """Returns an operand with an axis of devices before each axis that they have parts of."""
        parts = {axes.contracted[place]: count for place, count in self.summed}
        shape: list[int] = []
        places: list[int] = []
        for axis, size in enumerate(shape_of(operand)):
            count = parts.get(axis, 1)
            shape += [count, size // count] if axis in parts else [size]
            places.append(len(shape) - 1)
        batch = [places[axes.contracted[place]] - 1 for place, _ in self.summed]
        found = OperandAxes(
            len(shape),
            (*batch, *(places[axis] for axis in axes.batch)),
            tuple(places[axis] for axis in axes.contracted),
        )
        return reshaped(operand, shape), found

    def _moved(self, op: ir.Operation, made: ir.Value) -> ir.Value:
        """Repeats an operation between a product and its sum on the terms of all devices."""
        result = op.results[0]
        if op.name == "stablehlo.convert":
            return converted(made, element_of(result))
        before = len(self.summed)
        if op.name == "stablehlo.transpose":
            order = ir.DenseI64ArrayAttr(op.attributes["permutation"])
            axes = [*range(before), *(before + axis for axis in order)]
            return stablehlo.transpose(made, ir.DenseI64ArrayAttr.get(axes))
        return reshaped(made, [*self.counts, *shape_of(result)])


def device_terms(
    value: ir.Value, flow: DimensionFlow, program: Program, shardings: Shardings
) -> DeviceTerms | None:
    """Returns how each device adds up its own terms of a value that a loop sums; None where no
    device has its own, or they cannot be separated from those of others."""
    summed_in_loop = flow.of(program.index[value])
    if shardings.trivial or summed_in_loop.combine is not Combine.SUM:
        return None
    found = product_behind(value)
    if found is None or not _is_alone(*found, program):
        return None
    product, _ = found
    operands = [*product.operands][:2]
    left, right, total = map(shardings.placement, (*operands, value))
    if left is None or right is None or total is None:
        return None
    axes = ProductAxes.of(product)
    summed: list[tuple[int, int]] = []
    along: list[tuple[MeshAxis, ...]] = []
    for place, pair in enumerate(zip(axes.left.contracted, axes.right.contracted, strict=True)):
        split = left.axes[pair[0]]
        if not split and not right.axes[pair[1]]:
            continue
        count = left.counts.get(pair[0], 1)
        if (
            split != right.axes[pair[1]]
            or left.mesh != right.mesh
            or any(axis.part for axis in split)
            or not all(
                _divides(count, operand, axis, flow, program)
                for operand, axis in zip(operands, pair, strict=True)
            )
        ):
            return None
        summed.append((place, count))
        along.append(split)
    if not summed:
        return None
    names = {axis.name for axes_of_one in along for axis in axes_of_one}
    own = total.along(total.names - names)
    placed = (*along, *own.axes)
    terms = ValueSharding(left.mesh, placed, (False,) * len(placed))
    return DeviceTerms(tuple(summed), terms, replace(total, mesh=left.mesh))


def _is_alone(product: ir.Operation, between: tuple[ir.Operation, ...], program: Program) -> bool:
    """Whether the loop has a product that only its sum reads."""
    inside = {walk.key(node.op) for node in program.root.nodes}
    made = (product, *between)
    return (
        product.name in PRODUCTS
        and all(walk.key(op) in inside for op in made)
        and all(len([*op.results[0].uses]) == 1 for op in made[:-1])
        and not mesh.is_in_manual_computation(product.block)
    )


def _divides(
    count: int, operand: ir.Value, axis: int, flow: DimensionFlow, program: Program
) -> bool:
    """Whether a chunk of an operand has as long a part on each of the devices."""
    if shape_of(operand)[axis] % count:
        return False
    layout = flow.of(program.index[operand]).layout
    return layout is None or layout.axis != axis or layout.outer % count == 0
