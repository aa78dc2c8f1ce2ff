"""Devices of a module: its partitions and replicas, its meshes, and axes that are manual."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

from . import walk

MANUAL_COMPUTATION = "sdy.manual_computation"
"""The operation of JAX's `shard_map`: inside, values have their size on one partition."""

PARTITIONS, REPLICAS = "mhlo.num_partitions", "mhlo.num_replicas"
"""Attributes of a module."""


def partition_count(module: ir.Module) -> int:
    """Returns how many devices the module is partitioned over; 1 without the attribute."""
    return _count(module.operation, PARTITIONS)


def is_partitioned(op: ir.Operation) -> bool:
    """Whether an operation is in a module that is partitioned over several devices."""
    return _count(walk.module_of(op), PARTITIONS) > 1


def replica_count(module: ir.Module) -> int:
    """Returns how many replicas run the module; 1 without the attribute."""
    return _count(module.operation, REPLICAS)


def _count(module: ir.Operation, name: str) -> int:
    found = walk.readable_attributes(module).get(name)
    return found.value if isinstance(found, ir.IntegerAttr) else 1


def mesh_ops(module: ir.Operation) -> dict[str, ir.Operation]:
    """Returns the ``sdy.mesh`` operations of a module's operation by symbol name, in order."""
    return walk.declared(module, "sdy.mesh")


def mesh_of(op: ir.Operation) -> sdy.MeshAttr:
    """Returns the mesh that a ``sdy.mesh`` operation declares."""
    return sdy.MeshAttr(op.attributes["mesh"])


def has_several_devices(module: ir.Module) -> bool:
    """Whether a module has a mesh of more than one device."""
    return any(
        math.prod(axis_sizes(mesh_of(op)).values()) > 1
        for op in mesh_ops(module.operation).values()
    )


def resolved(mesh_or_reference: ir.Attribute, op: ir.Operation) -> sdy.MeshAttr | None:
    """Returns the mesh that a sharding around or on ``op`` is of; None without one."""
    if not isinstance(mesh_or_reference, ir.FlatSymbolRefAttr):
        return sdy.MeshAttr(mesh_or_reference)
    # Meshes stand first in a module, and most have one.
    for view in walk.module_of(op).regions[0].blocks[0].operations:
        if view.operation.name == "sdy.mesh" and walk.symbol(view) == mesh_or_reference.value:
            return mesh_of(view.operation)
    return None


def axis_sizes(mesh: sdy.MeshAttr) -> dict[str, int]:
    """Returns the sizes of a mesh's axes by name, in order."""
    return {axis.name: axis.size for axis in map(sdy.MeshAxisAttr, mesh.axes)}


def groups_along(sizes: Mapping[str, int], names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Returns the devices of a mesh in groups that differ along some axes only, the first one the
    major.

    ``sizes`` are those of the mesh's axes by name; its devices are numbered along them.
    """
    strides, stride = {}, 1
    for name, size in reversed(list(sizes.items())):
        strides[name] = stride
        stride *= size
    inside = [0]
    for name in names:
        inside = [at + step * strides[name] for at in inside for step in range(sizes[name])]
    return tuple(
        tuple(first + step for step in inside)
        for first in range(stride)
        if all(first // strides[name] % sizes[name] == 0 for name in names)
    )


def axis_parts(axis: sdy.AxisRefAttr, sizes: Mapping[str, int]) -> int:
    """Returns the number of devices that an axis, or a part of one, splits over; 1 where the mesh
    has no such axis."""
    part = axis.sub_axis_info
    return sizes.get(axis.name, 1) if part is None else sdy.SubAxisInfoAttr(part).size


def manual_axes_attribute(sizes: Mapping[str, int], names: Collection[str]) -> sdy.ManualAxesAttr:
    """Returns the attribute of a manual computation over some axes of a mesh, in the mesh's order.

    jaxlib 0.12's XLA ends the process on another order. ``sizes`` are of all axes by name.
    """
    return sdy.ManualAxesAttr.get([ir.StringAttr.get(name) for name in sizes if name in names])


def manual_axes(computation: ir.Operation) -> frozenset[str]:
    """Returns the axes of the mesh that a manual computation splits its values along by itself."""
    axes = sdy.ManualAxesAttr(computation.attributes["manual_axes"])
    return frozenset(str(axes[number]) for number in range(len(axes)))


def mesh_of_computation(computation: ir.Operation) -> ir.Attribute | None:
    """Returns the mesh, or the reference to it, of a manual computation's first sharding, if it has
    any."""
    for name in ("in_shardings", "out_shardings"):
        for sharding in sdy.TensorShardingPerValueAttr(computation.attributes[name]).shardings:
            return sdy.TensorShardingAttr(sharding).mesh_or_ref
    return None


def is_in_manual_computation(block: ir.Block) -> bool:
    """Whether each device has its own values in a block."""
    return any(op.name == MANUAL_COMPUTATION for op in walk.ancestors(block))


def is_manual(op: ir.Operation, partitions: int) -> bool:
    """Whether XLA's partitioner leaves an operation as it is: its values have their size on one
    partition.

    True with one partition, and inside manual computations over all axes of the mesh. False in a
    function that such a computation calls.
    """
    axes: dict[str, int] = {}
    for parent in walk.ancestors(op.block):
        if parent.name == MANUAL_COMPUTATION:
            axes |= manual_sizes(parent)
    return math.prod(axes.values()) == partitions


def manual_sizes(computation: ir.Operation) -> dict[str, int]:
    """Returns the manual axes of a computation with their sizes; empty if it has no values."""
    named = mesh_of_computation(computation)
    found = None if named is None else resolved(named, computation)
    if found is None:
        return {}
    names = manual_axes(computation)
    return {name: size for name, size in axis_sizes(found).items() if name in names}
