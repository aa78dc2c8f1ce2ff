"""Placements of the values of a program that is sharded over several devices.

Before XLA partitions a module its shapes are global. Shardy's propagation, run on a clone, finds
how each value will be split. Values that `host_memory` leaves out take no memory on a device.
Memory of the partitioner's own collectives, e.g. a gathered weight, is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

from ...ir import walk
from ...ir.mesh import has_several_devices
from ...ir.ops import BARRIER
from ...ir.shardings import ValueSharding, placement_of
from ...ir.types import tensor_bytes
from ...ir.values import defining_op
from ..host_memory import uncounted_values
from .propagation import propagate, values_of

_WHOLE = Fraction(1)

_FARTHEST = 16
"""The most operations that are followed for the share of a new value."""


class Shardings:
    """The placement of each value; without arguments that of a program for one device."""

    def __init__(
        self,
        placements: Mapping[ir.Value, ValueSharding] | None = None,
        shares: Mapping[ir.Value, Fraction] | None = None,
    ) -> None:
        """``shares`` are those of values without known placements, which edits added.

        Facts of a value are stored without a reference to it: an edit may erase the value.
        """
        self._placements, self._shares = dict(placements or {}), dict(shares or {})
        self.trivial = all(share == _WHOLE for share in self._shares.values())
        """Whether every value is whole on each device."""

    @classmethod
    def of(cls, module: ir.Module) -> Shardings:
        """Returns the shardings of a module; pure. Fast for one device, and for a clone."""
        uncounted = dict.fromkeys(uncounted_values(module), Fraction(0))
        placements: dict[ir.Value, ValueSharding] = {}
        is_split = has_several_devices(module)
        values = list(values_of(module)) if is_split or uncounted else []
        shares = dict.fromkeys(values, _WHOLE)
        if is_split:
            for number, found in propagate(module, as_xla_reads=True).placed.items():
                # The first clone of a constant represents all.
                placements[values[number]] = found[0]
                shares[values[number]] = _share(values[number].type, found[0])
        return cls(placements, shares | uncounted)

    def placement(self, value: ir.Value) -> ValueSharding | None:
        """Returns the placement of a value; None for one that a pass added."""
        return self._placements.get(value)

    def lie_alike(self, one: ir.Value, other: ir.Value) -> bool:
        """Whether two values of one shape are split along the same axes of the mesh; True where the
        placement of one is not known."""
        here, there = self.placement(one), self.placement(other)
        return here is None or there is None or here.axes == there.axes

    def local_shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """Returns the sizes of a value's largest part on a device; None where not known."""
        placement = self.placement(value)
        return None if placement is None else _local_shape(value.type, placement)

    def devices_along(self, value: ir.Value, axis: int) -> int:
        """Returns the number of devices that split an axis of a value; 1 without a sharding."""
        return (self.counts_of(value) or {}).get(axis, 1)

    def counts_of(self, value: ir.Value) -> Mapping[int, int] | None:
        """Returns the parts along each axis of a split value; None for one that a pass added."""
        placement = self.placement(value)
        return None if placement is None else placement.counts

    def enters_in_place(self, computation: ir.Operation) -> bool:
        """Whether a manual computation reads its operands as they are placed, without a collective.

        Collectives inside do not count. False for operands that a pass added.
        """
        if self.trivial:
            return True
        wanted = sdy.TensorShardingPerValueAttr(computation.attributes["in_shardings"]).shardings
        placed = map(self.placement, computation.operands)
        return all(
            found is not None and found.is_at(placement_of(each, computation))
            for found, each in zip(placed, wanted, strict=True)
        )

    def share(self, value: ir.Value) -> Fraction:
        """Returns the share of a value on one device: along each axis the longest part there is.

        A value that a pass added has its operand's share; a value without memory has 0.
        """
        if self.trivial:
            return _WHOLE
        for _ in range(_FARTHEST):
            if value in self._shares:
                return self._shares[value]
            source = _made_like(value)
            if source is None:
                break
            value = source
        return _WHOLE

    def with_made(self, like: Mapping[ir.Value, ir.Value]) -> Shardings:
        """Returns the shardings with values that edits added, by the values of equal share.

        A stack with one more axis in front, and a slice of one element of it, have equal shares.
        """
        if self.trivial:
            return self
        made = {made: self.share(value) for made, value in like.items()}
        return Shardings(self._placements, self._shares | made)

    def on(self, counterparts: Mapping[ir.Value, ir.Value]) -> Shardings:
        """Returns the shardings of a clone, by the clone's values for the module's."""
        pairs = counterparts.items()
        return Shardings(
            {new: self._placements[old] for old, new in pairs if old in self._placements},
            {new: self.share(old) for old, new in pairs},
        )


def _local_shape(type_: ir.Type, placement: ValueSharding) -> tuple[int, ...] | None:
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return None
    return placement.local_shape(type_.shape)


def _share(type_: ir.Type, placement: ValueSharding) -> Fraction:
    local = _local_shape(type_, placement) if placement.is_split else None
    if local is None:
        return _WHOLE
    return Fraction(math.prod(local), math.prod(ir.RankedTensorType(type_).shape) or 1) or _WHOLE


def _made_like(value: ir.Value) -> ir.Value | None:
    """Returns a value with the same split: an operand of the same shape, or a loop's operand."""
    op = defining_op(value)
    if op is None:
        argument: ir.BlockArgument = ir.BlockArgument(value)
        owner = argument.owner.owner.operation
        return owner.operands[argument.arg_number] if owner.name == "stablehlo.while" else None
    number = ir.OpResult(value).result_number
    if op.name == "stablehlo.while":
        body = op.regions[1].blocks[0]
        returned = walk.terminator(body).operands[number]
        return op.operands[number] if returned == body.arguments[number] else returned
    if op.name == "stablehlo.dynamic_update_slice":
        return op.operands[1]
    if op.name == BARRIER:
        return op.operands[number]
    size = tensor_bytes(value.type)
    return next((operand for operand in op.operands if tensor_bytes(operand.type) == size), None)
