"""Whether an operation is inside a manual computation, so that XLA's partitioner keeps it.

Inside `sdy.manual_computation` (JAX's `shard_map`) values have their size on one partition. Outside
they have their global size, and XLA's partitioner will split them.
"""

from __future__ import annotations

import math

from jax.extend.mlir import ir

from hloom.passes.ir import mesh, walk


def is_manual(operation: ir.Operation, partitions: int) -> bool:
    """Whether the partitioner leaves the operation as it is.

    True with one partition, and inside manual computations over all axes of the mesh. False in a
    function that such a computation calls.
    """
    manual_axes: dict[str, int] = {}
    for parent in walk.ancestors(operation.block):
        if parent.name == mesh.MANUAL_COMPUTATION:
            manual_axes |= _axes(parent)
    return math.prod(manual_axes.values()) == partitions


def _axes(computation: ir.Operation) -> dict[str, int]:
    """The manual axes of a computation with their sizes; empty if it has no values."""
    named = mesh.mesh_of_computation(computation)
    found = None if named is None else mesh.resolved(named, computation)
    if found is None:
        return {}
    names = mesh.manual_axes(computation)
    return {name: size for name, size in mesh.axis_sizes(found).items() if name in names}
