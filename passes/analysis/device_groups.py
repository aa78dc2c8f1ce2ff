"""Groups of devices that exchange inside a manual computation, and the values that are equal on all
devices of a group.

`shard_map` writes a collective for the devices of a group. A result of local work is equal on all
of the group only where the operands are: a constant, an argument that no axis of the group splits,
a value that all of the group have gathered or summed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

from ..framework.errors import NotPossibleError
from ..ir import mesh, walk
from ..ir.collectives import is_collective, replica_groups
from ..ir.op_facts import Category
from ..ir.ops import facts_of
from ..ir.shardings import MeshAxis, placement_of
from .purity import is_pure
from .reach import settled

_GIVES_ALL_THE_SAME = frozenset({"stablehlo.all_gather", "stablehlo.all_reduce"})
"""Collectives whose result is equal on every device of a group."""


@dataclass(frozen=True)
class DeviceGroups:
    """Groups of partitions that exchange with each other, all of one size.

    Attributes:
      rows: the partitions of each group, in the order of the exchange.
    """

    rows: tuple[tuple[int, ...], ...]

    @property
    def partitions(self) -> int:
        """Returns how many partitions there are in all."""
        return sum(map(len, self.rows))

    @property
    def size(self) -> int:
        """Returns how many partitions are in a group."""
        return len(self.rows[0])

    def are_within(self, devices: int | None) -> bool:
        """Whether each is inside one of the blocks of so many consecutive devices; None: of all."""
        return devices is None or all(
            len({member // devices for member in row}) == 1 for row in self.rows
        )

    def cover(self, others: DeviceGroups) -> bool:
        """Whether each of the others is inside one of these."""
        return all(any(set(row) <= set(own) for own in self.rows) for row in others.rows)

    @classmethod
    def of(cls, collective: ir.Operation, partitions: int) -> DeviceGroups:
        """Returns the groups of a collective inside a manual computation over all axes of the mesh.

        Raises NotPossibleError for other operations, or where the groups cannot be read for sure.
        """
        if not mesh.is_manual(collective, partitions):
            raise NotPossibleError("not all axes of the mesh are manual around it")
        attributes = walk.readable_attributes(collective)
        if attributes.get("channel_handle") is None or "use_global_device_ids" not in attributes:
            raise NotPossibleError("its groups are not of partitions")
        rows = replica_groups(collective, attributes.get("replica_groups"))
        if rows is None:
            raise NotPossibleError("its groups of devices cannot be read")
        rows = rows or (tuple(range(partitions)),)
        members = sorted(member for row in rows for member in row)
        if members != list(range(partitions)) or len({*map(len, rows)}) > 1:
            raise NotPossibleError("its groups are not of one size, with each device in one")
        return cls(rows)


class SameInGroups:
    """Finds the values that are equal on all devices of a group.

    A value that is not known to be equal counts as different: the result of a kernel, of randomness
    with a state of the device's own, of a branch.
    """

    def __init__(self, groups: DeviceGroups) -> None:
        self._groups = groups
        self._known: dict[ir.Value, bool] = {}

    def has(self, value: ir.Value) -> bool:
        """Whether a value is equal on all devices of a group."""
        return settled(self._known, value, self._needs, self._decide)

    def _needs(self, value: ir.Value) -> Iterator[ir.Value]:
        """Yields the values that decide whether a value is equal."""
        op = _owner(value)
        if facts_of(op.name).category is Category.LOOP:
            yield from op.operands
        elif isinstance(value, ir.OpResult) and not self._is_from_all(op):
            yield from walk.values_read(op)
        elif op.name == mesh.MANUAL_COMPUTATION and mesh.is_in_manual_computation(op.block):
            yield op.operands[ir.BlockArgument(value).arg_number]

    def _decide(self, value: ir.Value) -> bool:
        """Returns whether a value is equal, from the answers for the values that decide."""
        op = _owner(value)
        if facts_of(op.name).category is Category.LOOP:
            return self._is_kept_the_same(op, _number(value))
        if isinstance(value, ir.OpResult):
            if self._is_from_all(op):
                return True
            if is_collective(op) or not is_pure(op):
                return False
        elif op.name != mesh.MANUAL_COMPUTATION or self._is_split(op, _number(value)):
            return False
        return all(self._known[each] for each in self._needs(value))

    def _is_from_all(self, op: ir.Operation) -> bool:
        if op.name not in _GIVES_ALL_THE_SAME:
            return False
        try:
            return DeviceGroups.of(op, self._groups.partitions).cover(self._groups)
        except NotPossibleError:
            return False

    def _is_split(self, computation: ir.Operation, number: int) -> bool:
        """Whether devices of a group have different parts of a manual computation's argument."""
        shardings = sdy.TensorShardingPerValueAttr(computation.attributes["in_shardings"]).shardings
        placement = placement_of(shardings[number], computation)
        named = mesh.mesh_of_computation(computation)
        found = None if named is None else mesh.resolved(named, computation)
        if found is None or len(found.device_ids) or placement.unreduced:
            return True
        sizes = mesh.axis_sizes(found)
        axes: list[MeshAxis] = [axis for along in placement.axes for axis in along]
        names = list(sizes)
        for row in self._groups.rows:
            places = np.unravel_index(list(row), list(sizes.values()))
            for axis in axes:
                if len(set(places[names.index(axis.name)].tolist())) > 1:
                    return True
        return False

    def _is_kept_the_same(self, loop: ir.Operation, number: int) -> bool:
        """Whether a value that a loop carries is the same in every iteration and at its end.

        True as long as all carries that it follows from are: others are removed, until none is.
        """
        same = {index for index, start in enumerate(loop.operands) if self._known[start]}
        condition, body = (region.blocks[0] for region in loop.regions)
        while same:
            inner = SameInGroups(self._groups)
            inner._known |= self._known
            for block in (condition, body):
                inner._known |= {arg: n in same for n, arg in enumerate(block.arguments)}
            if not inner.has(walk.terminator(condition).operands[0]):
                same = set()
                break
            kept = {n for n in same if inner.has(walk.terminator(body).operands[n])}
            if kept == same:
                break
            same = kept
        for index, (result, argument) in enumerate(zip(loop.results, body.arguments, strict=True)):
            self._known[result] = self._known[argument] = index in same
        return number in same


def _owner(value: ir.Value) -> ir.Operation:
    owner = value.owner
    return owner.owner.operation if isinstance(owner, ir.Block) else owner.operation


def _number(value: ir.Value) -> int:
    if isinstance(value, ir.BlockArgument):
        return value.arg_number
    return ir.OpResult(value).result_number
