"""Operations that synchronize with other devices: XLA's collectives, and declared custom calls.

A kernel that accesses the memory of its peers declares which synchronization it needs, by the name
of its target (`hloom.declare_collective`) or on the call itself: in an attribute
`hloom.collective`, or in a frontend attribute of that name, which
`jax.experimental.xla_metadata.set_xla_metadata` writes.

    stablehlo.custom_call @write(%0) {hloom.collective = "entry exit=after groups=[[0,1],[2,3]]"}

Source: XLA's own collective kernels have the same phases (`all_reduce_kernel.h`): a barrier before
peers are read, and one before buffers are reused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from . import mesh, walk
from .build_collectives import Groups
from .custom_calls import target_of
from .locations import source_of
from .ops import facts_of

ATTRIBUTE = "hloom.collective"
"""The attribute, of a custom call or among its frontend attributes, that declares its needs."""

RAGGED_TARGET = "ragged_all_to_all"
"""The target of the custom call that is `jax.lax.ragged_all_to_all`."""


class CollectiveError(ValueError):
    """A kernel's needs cannot be read or met: the text says which, where, and the remedy."""


@dataclass(frozen=True)
class SyncRequirement:
    """The synchronization that a kernel which accesses its peers' memory needs.

    Peers may read the operands of a kernel, in the buffers that it is called with. They may write
    to its results only where those are operands in place (`output_operand_aliases`): any other
    buffer of a result may hold another value until the kernel starts.

    Attributes:
      entry: it starts only once each peer's operands are in memory.
      exit: "after": nothing reads its results or writes to its operands before each peer has left
        it. "module": as "after", for the operands alone, and only before the program, or the
        iteration of the loop around it, ends. None: the kernel ensures that itself.
      groups: the partitions that are each other's peers, a row for each group; partitions in no
        group have no peers. None: all partitions of the module.
    """

    entry: bool = False
    exit: Literal["after", "module"] | None = None
    groups: Groups | None = None


_declared: dict[str, SyncRequirement] = {}


def declare(target: str, needs: SyncRequirement) -> None:
    """Declares the needs of every custom call of a target, in this process from now on.

    A program calls `hloom.declare_collective(target, hloom.SyncRequirement(entry=True))` before it
    compiles anything that calls the target. Raises ValueError where the target is declared already,
    with other needs.
    """
    if _declared.setdefault(target, needs) != needs:
        raise ValueError(f"@{target} is declared already, with {_declared[target]}")


def declared_for(target: str) -> SyncRequirement | None:
    """Returns the needs that a target is declared to have."""
    return _declared.get(target)


def declarations() -> str:
    """Returns the declarations of this process, as text."""
    return "".join(f"{target}: {needs}\n" for target, needs in sorted(_declared.items()))


@contextmanager
def declared(target: str, needs: SyncRequirement) -> Iterator[None]:
    """Declares a target inside the block, in all threads. For tests."""
    declare(target, needs)
    try:
        yield
    finally:
        del _declared[target]


def says_that_it_meets_peers(call: ir.Operation) -> bool:
    """Whether an attribute of a custom call, or its target's declaration, states its needs."""
    return target_of(call) in _declared or declared_on(call) is not None


def described(op: ir.Operation) -> str:
    """Returns a description of an operation for people: its kind, and its source line."""
    target = target_of(op)
    name = op.name if target is None else f"@{target}"
    source = source_of(op.location)
    return f"{name} at {source}" if source.line else name


def declared_on(call: ir.Operation) -> str | None:
    """Returns the text of the attribute that declares a call's needs; None without one."""
    attributes = walk.readable_attributes(call)
    said = attributes.get(ATTRIBUTE)
    frontend = attributes.get("mhlo.frontend_attributes")
    if said is None and isinstance(frontend, ir.DictAttr) and ATTRIBUTE in frontend:
        said = frontend[ATTRIBUTE]
    if said is None:
        return None
    if not isinstance(said, ir.StringAttr):
        raise CollectiveError(
            f"{described(call)}: its attribute {ATTRIBUTE} wants a string such as "
            f'"entry exit=after", got {said}'
        )
    return said.value


def is_ragged_all_to_all(op: ir.Operation) -> bool:
    """Whether the operation is `jax.lax.ragged_all_to_all`."""
    return target_of(op) == RAGGED_TARGET


def is_collective(op: ir.Operation) -> bool:
    """Whether the operation itself is an exchange between devices."""
    return facts_of(op.name).communicates or is_ragged_all_to_all(op)


def sent_bytes(kind: str, result_bytes: int, devices: int) -> int:
    """Returns the bytes that a device of a group sends in a collective, by the cheapest ring.

    Args:
      kind: XLA's name of the collective, e.g. "all-gather".
      result_bytes: those of the result on a device.
      devices: the number in a group.
    """
    others = devices - 1
    match kind:
        case "all-reduce":
            return -(-2 * others * result_bytes // devices)
        case "reduce-scatter":
            return others * result_bytes
        case "collective-permute":
            return result_bytes
        case _:
            return -(-others * result_bytes // devices)


def replica_groups(
    collective: ir.Operation, attribute: ir.Attribute | None
) -> tuple[tuple[int, ...], ...] | None:
    """Returns the rows of a `replica_groups` attribute, -1 where one is filled up; () stands for
    all.

    None where it cannot be read with certainty: the attribute is missing, or names a part of an
    axis, or a mesh whose devices are in an order of their own.
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
    """Returns the axes of the module's mesh of that name; None if its devices are not in order."""
    if not isinstance(named, ir.FlatSymbolRefAttr):
        return None
    found = mesh.mesh_ops(walk.module_of(op)).get(named.value)
    return None if found is None or _has_own_order(found) else mesh.axis_sizes(mesh.mesh_of(found))


def _has_own_order(op: ir.Operation) -> bool:
    """Whether the mesh lists its devices; XLA reads the mesh's StableHLO form where it exists."""
    form = walk.readable_attributes(op).get("stablehlo.mesh")
    listed = "device_ids" in form if isinstance(form, ir.DictAttr) else form is not None
    return bool(list(mesh.mesh_of(op).device_ids)) or listed
