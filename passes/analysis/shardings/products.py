"""Matrix products split as XLA's partitioner splits them, where Shardy's would do it otherwise.

Shardy searches the placements of a product's operands that send least. XLA decides by the
dimensions that an axis of the mesh splits, whatever that sends:

- Where it splits both operands along a dimension that is summed, each device multiplies its parts,
  and the results are summed: reduce-scattered where the axis splits the result as well.
- Where it splits one operand and the result along the same dimension, the other operand is
  gathered along it.

Source: PartitionBaseCase, PartitionDotGroupOnContractingDims and PartitionDotGroupOnNonContracting-
Dims of xla/service/spmd/dot_handler.cc; seen with jax 0.10.2 and 0.12.0.1, 2026-11-25.
"""

from __future__ import annotations

from collections.abc import Iterable

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

from ...ir.products import ProductAxes
from ...ir.shardings import ValueSharding, sharding_of

PRODUCTS = frozenset({"stablehlo.dot", "stablehlo.dot_general"})


def split_as_xla_does(
    product: ir.Operation, left: ValueSharding, right: ValueSharding, made: ValueSharding
) -> None:
    """Inserts the reshards of XLA's partitioner around a product, in place.

    Args:
      product: one of PRODUCTS, of a module that is propagated.
      left, right: the placements of its operands.
      made: the placement of its result.
    """
    axes = ProductAxes.of(product)
    summed = _common(left, right, zip(axes.left.contracted, axes.right.contracted, strict=True))
    if summed & made.names:
        terms = sharding_of(made.along(made.names - summed), product.context)
        product.attributes["sdy.sharding"] = sdy.TensorShardingPerValueAttr.get([terms])
        with ir.InsertionPoint.after(product):
            scattered = sdy.ReshardOp(product.results[0], sharding_of(made, product.context))
        product.results[0].replace_all_uses_except(scattered.result, scattered.operation)
    of_left = len(axes.left.batch)
    of_right = of_left + len(axes.left.free)
    for one, free, other, number in (
        (left, enumerate(axes.left.free, of_left), right, 1),
        (right, enumerate(axes.right.free, of_right), left, 0),
    ):
        gathered = _common(made, one, free) & other.names
        if gathered:
            whole = sharding_of(other.along(other.names - gathered), product.context)
            with ir.InsertionPoint(product):
                product.operands[number] = sdy.ReshardOp(product.operands[number], whole).result


def _common(
    one: ValueSharding, other: ValueSharding, pairs: Iterable[tuple[int, int]]
) -> frozenset[str]:
    """Returns the axes of the mesh that split two values alike, along these pairs of dimensions."""
    alike = (one.axes[here] for here, there in pairs if one.axes[here] == other.axes[there])
    return frozenset(axis.name for axes in alike for axis in axes if not axis.part)
