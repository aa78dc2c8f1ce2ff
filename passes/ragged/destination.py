"""What a loop makes: a product, or what alone is made of it and costs the loop nothing.

The gradient of a weight is often added to a sum, as those of microbatches are: the loop begins with
that sum instead of zeros. In a batch JAX makes it with the groups first, and puts them behind the
batch then: the loop writes each matrix where it belongs.
"""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.mlir import ir

from ..ir import walk
from ..ir.types import element_bits
from ..ir.values import defining_op
from .product import RaggedMode, RaggedProduct


@dataclass(frozen=True)
class Destination:
    """Where a loop's result goes.

    Attributes:
      ops: the product and what is made of it, one behind the other; the loop makes the last one's
        result.
      axes: which axis of that each axis of the product is.
      start: what the loop adds to; None for zeros.
    """

    ops: tuple[ir.Operation, ...]
    axes: tuple[int, ...]
    start: ir.Value | None = None

    @property
    def type(self) -> ir.RankedTensorType:
        return ir.RankedTensorType(self.ops[-1].results[0].type)


def destination_of(product: RaggedProduct) -> Destination:
    """What a loop makes in place of a product."""
    op = product.op
    found = Destination((op,), tuple(range(product.result.rank)))
    if product.mode is RaggedMode.ROWS:
        return found
    transpose = _only_reader(op, "stablehlo.transpose", ["permutation"])
    if transpose is not None:
        axes = _after_transpose(product, transpose)
        found = found if axes is None else Destination((op, transpose), axes)
    addition = _only_reader(found.ops[-1], "stablehlo.add", [])
    # Sums that are carried beside a narrower result are rounded into it, not added to it.
    if addition is None or sum_element(product.result.element_type) != product.result.element_type:
        return found
    start = _added(addition, found.ops[-1].results[0])
    if not start.type == addition.results[0].type == found.type or not _is_known_at(start, op):
        return found
    return Destination((*found.ops, addition), found.axes, start)


def sum_element(element: ir.Type) -> ir.Type:
    """Float32 for narrower floats: a sum of many tiles would lose bits between them."""
    narrow = isinstance(element, ir.FloatType) and (element_bits(element) or 0) < 32
    return ir.F32Type.get() if narrow else element


def _only_reader(op: ir.Operation, name: str, attributes: list[str]) -> ir.Operation | None:
    """The operation of that name, in the same block, that alone reads what another one makes.

    None where it has more attributes than these: they would be lost.
    """
    readers = [use.owner.operation for use in op.results[0].uses]
    if len(readers) != 1 or readers[0].name != name or readers[0].block != op.block:
        return None
    return readers[0] if walk.attribute_names(readers[0]) == attributes else None


def _after_transpose(product: RaggedProduct, transpose: ir.Operation) -> tuple[int, ...] | None:
    """Where a transpose puts each axis; None unless the matrix of a group stays in one piece."""
    permutation = walk.integers(transpose, "permutation")
    shape = [product.result.shape[axis] for axis in permutation]
    if transpose.results[0].type != ir.RankedTensorType.get(shape, product.result.element_type):
        return None
    axes = [permutation.index(axis) for axis in range(len(permutation))]
    outer = (0, *product.prefix.result)
    inner = [axes[axis] for axis in range(len(axes)) if axis not in outer]
    return tuple(axes) if inner == list(range(len(outer), len(axes))) else None


def _added(addition: ir.Operation, term: ir.Value) -> ir.Value:
    [other] = (value for value in addition.operands if value != term)
    return other


def _is_known_at(value: ir.Value, op: ir.Operation) -> bool:
    """Whether a value that is read in the block of an operation is made before it."""
    maker = defining_op(value)
    return maker is None or maker.block != op.block or maker.is_before_in_block(op)
