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

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from . import mesh, walk
from .build import typed
from .build_collectives import Groups
from .custom_calls import target_of
from .locations import source_of
from .marks import can_carry_dependency
from .ops import facts_of
from .values import shape_of

ATTRIBUTE = "hloom.collective"
"""The attribute, of a custom call or among its frontend attributes, that declares its needs."""

RAGGED_TARGET = "ragged_all_to_all"
"""The target of the custom call that is `jax.lax.ragged_all_to_all`."""

Participants = frozenset[frozenset[int]]
"""The sets of partitions that synchronize: every partition of the module is in exactly one."""


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


def sync_requirement_of(call: ir.Operation) -> SyncRequirement | None:
    """Returns a custom call's needs; None where it is not declared to access its peers.

    The call's own attribute takes precedence over its target's declaration. Raises CollectiveError
    where the attribute cannot be read.
    """
    target = target_of(call)
    if target is None:
        return None
    text = _attribute(call)
    if text is None:
        return _declared.get(target)
    try:
        return parse_sync_requirement(text)
    except ValueError as error:
        raise CollectiveError(f"{described(call)}: its attribute {ATTRIBUTE} {error}") from error


def says_that_it_meets_peers(call: ir.Operation) -> bool:
    """Whether an attribute of a custom call, or its target's declaration, states its needs."""
    return target_of(call) in _declared or _attribute(call) is not None


def described(op: ir.Operation) -> str:
    """Returns a description of an operation for people: its kind, and its source line."""
    target = target_of(op)
    name = op.name if target is None else f"@{target}"
    source = source_of(op.location)
    return f"{name} at {source}" if source.line else name


_WORD = re.compile(
    r"(?P<entry>entry)|exit=(?P<exit>after|module)|groups=(?P<groups>\[\s*\[[\d\s,\[\]]*\])"
)


def parse_sync_requirement(text: str) -> SyncRequirement:
    """Returns the needs that "entry exit=after groups=[[0,1],[2,3]]" spells; each word may be left
    out.

    Raises ValueError, with a text that continues after the attribute's name.
    """
    words: dict[str, str] = {}
    exits: dict[str, Literal["after", "module"]] = {"after": "after", "module": "module"}
    at = 0
    while rest := text[at:].lstrip():
        at = len(text) - len(rest)
        match = _WORD.match(text, at)
        if match is None or text[match.end() : match.end() + 1].strip():
            raise ValueError(
                f"wants any of 'entry', 'exit=after' or 'exit=module', and 'groups=[[0,1],[2,3]]', "
                f"with spaces between, got {rest!r}"
            )
        word = match.lastgroup or ""
        if word in words:
            raise ValueError(f"has '{word}' twice: {text!r}")
        words[word] = match[word]
        at = match.end()
    if not words.keys() & {"entry", "exit"}:
        raise ValueError(f"wants 'entry' or 'exit=...' at least, got {text!r}")
    return SyncRequirement(
        entry="entry" in words,
        exit=exits.get(words.get("exit", "")),
        groups=_parse_groups(words["groups"]) if "groups" in words else None,
    )


def _parse_groups(text: str) -> Groups:
    try:
        rows = json.loads(text)
    except json.JSONDecodeError:
        rows = None
    if not rows or not all(isinstance(row, list) and row for row in rows):
        raise ValueError(f"wants groups like [[0,1],[2,3]], none of them empty, got {text!r}")
    if not all(type(each) is int for row in rows for each in row):
        raise ValueError(f"wants groups of partition numbers, got {text!r}")
    members = [each for row in rows for each in row]
    if twice := sorted({each for each in members if members.count(each) > 1}):
        raise ValueError(f"has partition {twice[0]} in its groups twice: {text!r}")
    return tuple(map(tuple, rows))


def _attribute(call: ir.Operation) -> str | None:
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


def partitions_of_groups(groups: Groups | None, partitions: int) -> Participants:
    """Returns the sets of partitions that these groups are; None is one group of all.

    Raises ValueError where the module has no such partition, or a partition is in two groups.
    """
    if groups is None:
        return frozenset({frozenset(range(partitions))})
    rows = [frozenset(each for each in row if each >= 0) for row in groups]
    members = [each for row in rows for each in row]
    if unknown := sorted(set(members) - set(range(partitions))):
        raise ValueError(
            f"names partition {unknown[0]} in its groups, and the module has {partitions}: "
            f"0 to {partitions - 1}"
        )
    if len(set(members)) < len(members):
        raise ValueError(f"has a partition in its groups twice: {groups}")
    alone = set(range(partitions)) - set(members)
    return frozenset(row for row in rows if row) | {frozenset({each}) for each in alone}


def groups_of_partitions(participants: Participants) -> Groups:
    """Returns the groups, sorted, every partition in one; -1 fills the rows up to one length."""
    rows = sorted(sorted(group) for group in participants)
    length = max(map(len, rows))
    return tuple((*row, *[-1] * (length - len(row))) for row in rows)


def covers(participants: Participants, needed: Participants) -> bool:
    """Whether each set of ``needed`` is contained in one set of ``participants``."""
    return all(any(group <= each for each in participants) for group in needed)


def is_trivial(participants: Participants) -> bool:
    """Whether each partition is alone."""
    return all(len(group) == 1 for group in participants)


def is_ragged_all_to_all(op: ir.Operation) -> bool:
    """Whether the operation is `jax.lax.ragged_all_to_all`."""
    return target_of(op) == RAGGED_TARGET


def is_collective(op: ir.Operation) -> bool:
    """Whether the operation itself is an exchange between devices."""
    return facts_of(op.name).communicates or is_ragged_all_to_all(op)


def ragged_groups(call: ir.Operation) -> Groups:
    """Returns the groups of a ragged all-to-all. Raises CollectiveError where it names none."""
    config = walk.readable_attributes(call).get("backend_config")
    if isinstance(config, ir.DictAttr) and "replica_groups" in config:
        groups = replica_groups(call, config["replica_groups"])
        if groups is not None:
            return groups
    raise CollectiveError(f"{described(call)} has no replica_groups in its backend_config")


def synchronized(op: ir.Operation, partitions: int) -> Participants | None:
    """Returns the sets of partitions that have arrived at a collective once one has its result.

    None where that is not certain: not all data comes from all partitions (a permutation, a
    broadcast), the groups are not partitions or cannot be read, or the data is empty.
    """
    attributes = walk.readable_attributes(op)
    if not facts_of(op.name).synchronizes or attributes.get("channel_handle") is None:
        return None
    if op.name != "stablehlo.all_to_all" and "use_global_device_ids" not in attributes:
        return None
    groups = replica_groups(op, attributes.get("replica_groups"))
    if groups is None or not all(can_carry_dependency(operand.type) for operand in op.operands):
        return None
    try:
        return partitions_of_groups(groups or None, partitions)
    except ValueError:
        return None


_OF_GROUPS = ("channel_handle", "replica_groups", "use_global_device_ids")
"""Attributes that name the devices which exchange data."""


def all_gathered(part: ir.Value, axis: int, devices: int, like: ir.Operation) -> ir.Value:
    """Returns the parts of all devices of a group along an axis, at the insertion point.

    Args:
      part: the device's own part.
      axis: the axis along which the parts are concatenated.
      devices: the number in a group.
      like: a collective of the same groups.
    """
    shape = shape_of(part)
    shape[axis] *= devices
    attributes = {name: like.attributes[name] for name in _OF_GROUPS}
    along = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), axis)
    made = ir.Operation.create(
        "stablehlo.all_gather",
        [typed(part, shape)],
        [part],
        attributes | {"all_gather_dim": along},
    )
    return made.results[0]


def permuted(value: ir.Value, pairs: Sequence[tuple[int, int]], like: ir.Operation) -> ir.Value:
    """Returns the value of another device, at the insertion point.

    Args:
      value: the device's own value.
      pairs: pairs of partitions, the source before the target.
      like: a collective with the channel to use.
    """
    made = ir.Operation.create(
        "stablehlo.collective_permute",
        [value.type],
        [value],
        {
            "source_target_pairs": ir.Attribute.parse(
                f"dense<{[[*pair] for pair in pairs]}> : tensor<{len(pairs)}x2xi64>"
            ),
            "channel_handle": like.attributes["channel_handle"],
        },
    )
    return made.results[0]


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
    """Returns the axes of the module's mesh of that name; None where its devices are not in
    order."""
    if not isinstance(named, ir.FlatSymbolRefAttr):
        return None
    found = mesh.mesh_ops(walk.module_of(op)).get(named.value)
    return None if found is None or _has_own_order(found) else mesh.axis_sizes(mesh.mesh_of(found))


def _has_own_order(op: ir.Operation) -> bool:
    """Whether the mesh lists its devices; XLA reads the mesh's StableHLO form where it exists."""
    form = walk.readable_attributes(op).get("stablehlo.mesh")
    listed = "device_ids" in form if isinstance(form, ir.DictAttr) else form is not None
    return bool(list(mesh.mesh_of(op).device_ids)) or listed
