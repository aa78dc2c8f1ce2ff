"""Which products add up on each device by itself, in a program that is sharded over several.

A product whose contracted axis is split makes a part of each sum on each device. XLA's partitioner
puts an all-reduce or a reduce-scatter on its result, in the type of that: in a wider one it would
send more bytes than the program asks for.
"""

from __future__ import annotations

import functools

from jax.extend.mlir import ir

from ..analysis.shardings.shardings import Shardings
from ..analysis.signatures import signature_of
from ..ir import mesh
from ..ir.product_terms import ProductTerm


class DeviceSums:
    """The sums that devices of a module exchange. Its shardings are found when needed."""

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
        """Whether a product's result, or what is made of it, may lie elsewhere than the sum."""
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
    """The axes of operands that a product may sum over: what is not in its result."""
    signature = signature_of(product)
    return [
        (operand, axis)
        for number, operand in enumerate(product.operands)
        for axis in range(ir.ShapedType(operand.type).rank)
        if signature is None or not signature.made.issuperset(signature.operands[number][axis])
    ]
