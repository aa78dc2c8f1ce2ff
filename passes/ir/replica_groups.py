"""The groups of a collective: spelled out, or as axes of a mesh (jax 0.12 and later)."""

from __future__ import annotations

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from hloom.passes.ir import mesh, walk


def replica_groups(
    collective: ir.Operation, attribute: ir.Attribute | None
) -> tuple[tuple[int, ...], ...] | None:
    """The rows of a `replica_groups` attribute, -1 where one is filled up; () stands for all.

    None where it cannot be read for sure: there is none, or it names a part of an axis, or a mesh
    whose devices are in an order of their own.
    """
    if isinstance(attribute, ir.DenseIntElementsAttr):
        return tuple(map(tuple, np.array(attribute).tolist()))
    if attribute is None or not stablehlo.ReplicaGroupMeshAxesAttr.isinstance(attribute):
        return None
    named = stablehlo.ReplicaGroupMeshAxesAttr(attribute)
    axes = [stablehlo.AxisRefAttr(axis) for axis in ir.ArrayAttr(named.axes)]
    sizes = _axis_sizes(collective, named.mesh)
    if sizes is None or any(axis.sub_axis_info is not None for axis in axes):
        return None
    names = [axis.name for axis in axes]
    if not sizes.keys() >= set(names):
        return None
    order = [name for name in sizes if name not in names] + names
    ids = np.arange(np.prod(list(sizes.values()), dtype=int)).reshape(list(sizes.values()))
    rows = ids.transpose([list(sizes).index(name) for name in order])
    members = int(np.prod([sizes[name] for name in names], dtype=int))
    return tuple(map(tuple, rows.reshape(-1, members).tolist()))


def _axis_sizes(op: ir.Operation, named: ir.Attribute) -> dict[str, int] | None:
    """The axes of the module's mesh of that name; None where its devices are not in order."""
    if not isinstance(named, ir.FlatSymbolRefAttr):
        return None
    found = mesh.mesh_ops(walk.module_of(op)).get(named.value)
    return None if found is None or _has_own_order(found) else mesh.axis_sizes(mesh.mesh_of(found))


def _has_own_order(op: ir.Operation) -> bool:
    """Whether the mesh lists its devices; XLA reads its StableHLO form where there is one."""
    form = walk.readable_attributes(op).get("stablehlo.mesh")
    listed = "device_ids" in form if isinstance(form, ir.DictAttr) else form is not None
    return bool(list(mesh.mesh_of(op).device_ids)) or listed
