"""Over how many devices the axes of a value are sharded."""

from __future__ import annotations

import math
from collections.abc import Collection

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

from ...ir import mesh, walk


def device_counts(
    sharding: sdy.TensorShardingAttr, op: ir.Operation, among: Collection[str] | None = None
) -> dict[int, int]:
    """By axis the number of its parts, counting all axes of the mesh or the named ones."""
    found = mesh.resolved(sharding.mesh_or_ref, op)
    if found is None:
        return {}
    sizes = mesh.axis_sizes(found)
    counts = {}
    for axis, dimension in enumerate(sharding.dimension_shardings):
        named = map(sdy.AxisRefAttr, sdy.DimensionShardingAttr(dimension).axes)
        count = math.prod(
            mesh.axis_parts(each, sizes) for each in named if among is None or each.name in among
        )
        if count > 1:
            counts[axis] = count
    return counts


def argument_sharding(value: ir.Value) -> sdy.TensorShardingAttr | None:
    """The sharding of a function's argument; None of other values, and without one."""
    if not isinstance(value.owner, ir.Block):
        return None
    function = value.owner.owner.operation
    described = walk.readable_attributes(function).get("arg_attrs")
    if function.name != "func.func" or not isinstance(described, ir.ArrayAttr):
        return None
    attributes = ir.DictAttr(described[ir.BlockArgument(value).arg_number])
    if "sdy.sharding" not in attributes:
        return None
    return sdy.TensorShardingAttr(attributes["sdy.sharding"])


def argument_counts(value: ir.Value) -> dict[int, int]:
    """By axis over how many devices a function's argument is sharded; none of other values."""
    sharding = argument_sharding(value)
    if sharding is None or not isinstance(value.owner, ir.Block):
        return {}
    return device_counts(sharding, value.owner.owner.operation)
