"""Shards: the share of a value on one device, in a program that is sharded over several.

What `host_memory` leaves out takes none. Before XLA partitions a module its shapes are global.
Shardy's propagation, run on a clone, finds how each value will be split. Memory that the
partitioner's own collectives need, a gathered weight for one, is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction

from jax.extend.mlir import ir

from ..ir import walk
from ..ir.mesh import axis_parts
from ..ir.types import tensor_bytes
from ..ir.values import defining_op
from .host_memory import uncounted_values
from .shardings.propagation import (
    PlacedValue,
    Propagated,
    meshes_of,
    propagate,
)

_WHOLE = Fraction(1)

_FARTHEST = 16
"""Operations that are looked through for the share of a value that is new."""


class Shards:
    """The share of each value that lies on one device; all of it where it has no sharding."""

    def __init__(
        self,
        shares: Mapping[ir.Value, Fraction] | None = None,
        counts: Mapping[ir.Value, Mapping[int, int]] | None = None,
    ) -> None:
        self._shares = dict(shares or {})
        self._counts = dict(counts or {})
        self.trivial = all(share == _WHOLE for share in self._shares.values())
        """Whether every value lies whole on each device."""

    @classmethod
    def of(cls, module: ir.Module) -> Shards:
        """The shares in a module; pure. Quick where it is for one device."""
        uncounted = dict.fromkeys(uncounted_values(module), Fraction(0))
        meshes = meshes_of(module)
        if not any(math.prod(axes.values()) > 1 for axes in meshes.values()):
            whole = dict.fromkeys(_values(module), _WHOLE) if uncounted else {}
            return cls(whole | uncounted)
        propagated = propagate(module)
        shares = dict.fromkeys(_values(module), _WHOLE)
        counts: dict[ir.Value, dict[int, int]] = {}
        with module.context:
            for placed in propagated.placed:
                if placed.value not in counts:  # the first clone of a constant stands for all
                    counts[placed.value] = found = _counts(placed, propagated)
                    shares[placed.value] = _share(placed.value, found)
        return cls(shares | uncounted, counts)

    def devices_along(self, value: ir.Value, axis: int) -> int:
        """Over how many devices an axis of a value is split; 1 where it has no sharding."""
        return self._counts.get(value, {}).get(axis, 1)

    def counts_of(self, value: ir.Value) -> Mapping[int, int] | None:
        """By axis of a value the number of its parts; None of one that a pass added."""
        return self._counts.get(value)

    def share(self, value: ir.Value) -> Fraction:
        """The share of a value; of one that a pass added, the share of what it is made from."""
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

    def with_made(self, like: Mapping[ir.Value, ir.Value]) -> Shards:
        """With values that edits made, by what they are like: of the same share.

        So are an axis that a stack has before theirs, and a slice of one element along it.
        """
        if self.trivial:
            return self
        made_shares = {made: self.share(value) for made, value in like.items()}
        return Shards(self._shares | made_shares, self._counts)

    def on(self, module: ir.Module, clone: ir.Module) -> Shards:
        """The shares of a module's clone; it may not have been changed yet."""
        if self.trivial:
            return self
        pairs = list(zip(_values(module), _values(clone), strict=True))
        return Shards(
            {new: self.share(old) for old, new in pairs},
            {new: self._counts[old] for old, new in pairs if old in self._counts},
        )


def _values(module: ir.Module) -> Iterator[ir.Value]:
    for op in walk.operations(module.operation):
        yield from op.results
        for region in op.regions:
            for block in region.blocks:
                yield from block.arguments


def _counts(placed: PlacedValue, propagated: Propagated) -> dict[int, int]:
    """By axis of a value that is sharded the number of its parts."""
    type_ = placed.value.type
    if placed.sharding is None or not isinstance(type_, ir.RankedTensorType):
        return {}
    if not type_.has_static_shape:
        return {}
    sizes = propagated.axis_sizes(placed.sharding)
    counts = {
        number: math.prod(axis_parts(axis, sizes) for axis in axes)
        for number, axes in enumerate(placed.by_axis)
    }
    return {number: parts for number, parts in counts.items() if parts > 1}


def _share(value: ir.Value, counts: Mapping[int, int]) -> Fraction:
    """The share of a value on one device: along each axis the longest part there is."""
    share = _WHOLE
    for axis, parts in counts.items():
        length = value.type.shape[axis]
        if length:
            share *= Fraction(-(-length // parts), length)
    return share


def _made_like(value: ir.Value) -> ir.Value | None:
    """A value that this one is split like: an operand of its shape, what a loop puts in it."""
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
    if op.name == "stablehlo.optimization_barrier":
        return op.operands[number]
    size = tensor_bytes(value.type)
    return next((operand for operand in op.operands if tensor_bytes(operand.type) == size), None)
