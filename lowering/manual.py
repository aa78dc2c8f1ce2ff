"""Whether an operation is inside a manual computation, so that XLA's partitioner keeps it.

Inside `sdy.manual_computation` (JAX's `shard_map`) values have their size on one partition. Outside
they have their global size, and XLA's partitioner will split them.
"""

from __future__ import annotations

import math

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

_MANUAL_COMPUTATION = "sdy.manual_computation"


def is_manual(operation: ir.Operation, partitions: int) -> bool:
    """Whether the partitioner leaves the operation as it is.

    True with one partition, and inside manual computations over all axes of the mesh. False in a
    function that such a computation calls.
    """
    manual_axes: dict[str, int] = {}
    parent = operation.parent
    while parent is not None:
        if parent.name == _MANUAL_COMPUTATION:
            manual_axes |= _axes(parent.operation)
        parent = parent.operation.parent
    return math.prod(manual_axes.values()) == partitions


def _axes(computation: ir.Operation) -> dict[str, int]:
    """The manual axes of a computation with their sizes; empty if it has no values."""
    manual_axes = sdy.ManualAxesAttr(computation.attributes["manual_axes"])
    names = {manual_axes[index] for index in range(len(manual_axes))}
    for which in ("in_shardings", "out_shardings"):
        shardings = sdy.TensorShardingPerValueAttr(computation.attributes[which]).shardings
        if len(shardings):
            mesh = _mesh(sdy.TensorShardingAttr(shardings[0]).mesh_or_ref, computation)
            axes = [sdy.MeshAxisAttr(axis) for axis in mesh.axes]
            return {axis.name: axis.size for axis in axes if axis.name in names}
    return {}


def _mesh(mesh_or_reference: ir.Attribute, operation: ir.Operation) -> sdy.MeshAttr:
    if not isinstance(mesh_or_reference, ir.FlatSymbolRefAttr):
        return sdy.MeshAttr(mesh_or_reference)
    name = mesh_or_reference.value
    module = operation
    while module.parent is not None:
        module = module.parent.operation
    [mesh] = (
        view.operation
        for view in module.regions[0].blocks[0].operations
        if view.operation.name == "sdy.mesh"
        and ir.StringAttr(view.operation.attributes["sym_name"]).value == name
    )
    return sdy.MeshAttr(mesh.attributes["mesh"])
