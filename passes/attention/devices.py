"""Attention on several devices: each one calls the kernel for its part of the batch and the heads.

XLA's partitioner does not know the kernel's calls, and would gather their operands. So on a mesh a
call goes into a manual computation, with its operands placed as Shardy places the scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..analysis.shardings.shardings import Shardings
from ..framework.errors import NotPossibleError
from ..ir import mesh, walk
from ..ir.build import converted, typed
from ..ir.build_collectives import ManualPart, across, manual_computation
from ..ir.shardings import ValueSharding, sharding_of
from ..ir.values import element_of, shape_of
from .products import ForwardRead
from .site import SCORES, Devices, Labelled, MeshAxes, ScoreAxes


def devices_of(forward: ForwardRead, shardings: Shardings) -> Devices:
    """Returns the devices that an attention is divided over. Raises NotPossibleError where they
    divide something else than batch and heads."""
    scores = forward.scores
    placement = shardings.placement(scores.results[0])
    if placement is None:
        raise NotPossibleError("where its scores lie on the mesh is not known")
    axes = forward.axes
    by_axis = _by_axis(placement, forward)
    for axis, what in ((axes.query, "queries"), (axes.key, "keys")):
        if axis is not None and by_axis.get(axis):
            raise NotPossibleError(f"{_named(by_axis[axis])} divides its {what}")
    for operand in (forward.queries, forward.keys, forward.values):
        _check_elements(operand, shardings)
    batch = _major(by_axis, axes.batch, axes, "batch")
    heads = _major(by_axis, axes.heads + axes.group, axes, "heads")
    shared = heads if axes.heads else ()
    found = _mesh_of(placement, forward)
    if any(each.part for each in batch + heads):
        raise NotPossibleError("a part of an axis of the mesh divides it")
    return Devices(placement.mesh or found[0], found[1], batch, heads, shared)


def _by_axis(placement: ValueSharding, forward: ForwardRead) -> Mapping[int, MeshAxes]:
    """Returns the axes of the mesh by axis of the scores."""
    found: dict[int, MeshAxes] = {}
    for axes, part in zip(placement.axes, forward.parts, strict=True):
        if axes:
            wide = [axis for axis in part if forward.axes.sizes[axis] > 1]
            if not wide:
                raise NotPossibleError(f"{_named(axes)} divides an axis of one element")
            found[wide[0]] = axes
    return found


def _major(
    by_axis: Mapping[int, MeshAxes], mine: Sequence[int], axes: ScoreAxes, what: str
) -> MeshAxes:
    """Returns the axes of the mesh that divide merged axes: they have to divide the major one."""
    wide = [axis for axis in mine if axes.sizes[axis] > 1]
    divided = [axis for axis in wide if by_axis.get(axis)]
    if not divided:
        return ()
    found = by_axis[divided[0]]
    if divided != wide[:1]:
        raise NotPossibleError(f"{_named(found)} divides its {what} across the order of the kernel")
    if axes.sizes[divided[0]] % math.prod(each.size for each in found):
        raise NotPossibleError(f"{_named(found)} divides its {what} unevenly")
    return found


def _check_elements(operand: Labelled, shardings: Shardings) -> None:
    placement = shardings.placement(operand.value)
    if placement is None:
        return
    for axes, labels in zip(placement.axes, operand.labels, strict=True):
        if axes and any(label[0] != SCORES for label in labels):
            raise NotPossibleError(f"{_named(axes)} divides the elements of a head")


def _named(axes: MeshAxes) -> str:
    names = " and ".join(f"'{each.name}'" for each in axes)
    return f"axis {names} of the mesh" if len(axes) == 1 else f"axes {names} of the mesh"


def _mesh_of(
    placement: ValueSharding, forward: ForwardRead
) -> tuple[str, tuple[tuple[str, int], ...]]:
    """Returns the module's mesh as text, and the sizes of its axes."""
    module = walk.module_of(forward.scores)
    meshes = mesh.mesh_ops(module)
    name = placement.mesh or next((f"@{each}" for each in meshes), "")
    found = (
        mesh.resolved(ir.Attribute.parse(name, module.context), forward.scores) if name else None
    )
    if found is None or len(found.device_ids):
        raise NotPossibleError("its mesh is not known, or its devices are in another order")
    return name, tuple(mesh.axis_sizes(found).items())


def by_parts(
    devices: Devices | None,
    operands: Sequence[tuple[ir.Value, ValueSharding]],
    results: Sequence[tuple[ir.Type, ValueSharding]],
    body: Callable[[Sequence[ir.Value]], Sequence[ir.Value]],
) -> list[ir.Value]:
    """Writes what each device does with its parts of the operands, as a manual computation.

    Args:
      devices: the mesh; None for one device.
      operands: values and their placements.
      results: types of results and their placements.
      body: writes a device's computation, and returns its parts of the results.
    """
    if devices is None:
        return [*body([value for value, _ in operands])]
    sizes = dict(devices.sizes)
    made = manual_computation(
        [(value, _part(value.type, placement)) for value, placement in operands],
        [_part(type_, placement) for type_, placement in results],
        mesh.manual_axes_attribute(sizes, sizes),
        body,
    )
    return [*made.results]


def _part(type_: ir.Type, placement: ValueSharding) -> ManualPart:
    own = typed(type_, placement.local_shape(shape_of(type_)))
    return ManualPart(type_, sharding_of(placement, type_.context), own)


def summed_over(devices: Devices, value: ir.Value, names: Sequence[str], channel: int) -> ir.Value:
    """Returns a value summed over axes of the mesh, in float32, inside of a manual computation."""
    if not names:
        return value
    groups = mesh.groups_along(dict(devices.sizes), names)
    wide = converted(value, ir.F32Type.get())
    return converted(across(wide, groups, channel, stablehlo.add), element_of(value))
