"""Which value a slice lies in: an operand of the concatenation or of the padded value that it cuts.

XLA makes a slice read that operand. So the rest need not be computed before it: in a network of two
directions of which one is read, the loops of both need not run before the loss.

Source: XLA's algebraic simplifier, ``HandleSlice``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from jax.extend.mlir import ir

from ..ir import walk
from ..ir.values import defining_op
from .signatures import static_shape

_SLICE, _BROADCAST = "stablehlo.slice", "stablehlo.broadcast_in_dim"
_CONCATENATE, _PAD = "stablehlo.concatenate", "stablehlo.pad"
JOINING = frozenset({_CONCATENATE, _PAD})
"""Operations that put a value together from their operands."""

_ATTRIBUTES = {
    _SLICE: frozenset({"start_indices", "limit_indices", "strides"}),
    _BROADCAST: frozenset({"broadcast_dimensions"}),
    _CONCATENATE: frozenset({"dimension"}),
    _PAD: frozenset({"edge_padding_low", "edge_padding_high", "interior_padding"}),
}
"""By operation, the attributes that it has where nothing, such as a sharding, is added."""


@dataclass(frozen=True)
class DirectRead:
    """A part of a value, or a scalar everywhere.

    Attributes:
      type: the type of what is read.
      value: the value.
      bounds: by dimension, the start of the part, the place behind its last element, and its
        stride; None for a scalar everywhere.
      is_found: whether the operation itself reads another value.
    """

    type: ir.Type
    value: ir.Value
    bounds: tuple[tuple[int, int, int], ...] | None
    is_found: bool = field(default=False, compare=False)

    @property
    def is_whole(self) -> bool:
        """Whether the part is all of the value."""
        return self.bounds is not None and self.value.type == self.type


def direct_read(op: ir.Operation, same: Mapping[ir.Value, ir.Value]) -> DirectRead | None:
    """Returns what a slice reads, or the broadcast of a scalar; None for other operations.

    ``same`` has, by value, an equal one that is used instead.
    """
    if op.name not in (_SLICE, _BROADCAST) or not _is_plain(op):
        return None
    value, type_ = same.get(op.operands[0], op.operands[0]), op.results[0].type
    if op.name == _BROADCAST:
        return DirectRead(type_, value, None) if static_shape(value.type) == () else None
    named = (walk.integers(op, name) for name in ("start_indices", "limit_indices", "strides"))
    given = list(zip(*named, strict=True))
    if any(start >= limit for start, limit, _ in given):
        return None
    bounds = ((start, limit - (limit - start - 1) % step, step) for start, limit, step in given)
    read = DirectRead(type_, value, tuple(bounds))
    while (inner := _one_further(read, op.block)) is not None:
        read = replace(inner, value=same.get(inner.value, inner.value), is_found=True)
    return read


def _one_further(read: DirectRead, block: ir.Block) -> DirectRead | None:
    """Returns the same part as one of an operand of what made the value; None where it lies in no
    single operand."""
    maker = defining_op(read.value)
    if read.bounds is None or maker is None or maker.block != block or not _is_plain(maker):
        return None
    if maker.name == _CONCATENATE:
        axis, low = ir.IntegerAttr(maker.attributes["dimension"]).value, 0
        first, behind, _ = read.bounds[axis]
        for operand in maker.operands:
            shape = static_shape(operand.type)
            if shape is None:
                return None
            high = low + shape[axis]
            if low <= first and behind <= high:
                lows = [low if dimension == axis else 0 for dimension in range(len(shape))]
                return replace(read, value=operand, bounds=_shifted(read.bounds, lows))
            low = high
    elif maker.name == _PAD:
        inner, padding = maker.operands
        lows, highs = (walk.integers(maker, f"edge_padding_{side}") for side in ("low", "high"))
        shape = static_shape(inner.type)
        if shape is None or min([*lows, *highs], default=0) < 0:
            return None
        if any(walk.integers(maker, "interior_padding")):
            return None
        edges = [
            (start, limit, low, low + size)
            for (start, limit, _), low, size in zip(read.bounds, lows, shape, strict=True)
        ]
        if all(low <= start and limit <= high for start, limit, low, high in edges):
            return replace(read, value=inner, bounds=_shifted(read.bounds, lows))
        if any(limit <= low or high <= start for start, limit, low, high in edges):
            return replace(read, value=padding, bounds=None)
    return None


def _shifted(
    bounds: Sequence[tuple[int, int, int]], lows: Sequence[int]
) -> tuple[tuple[int, int, int], ...]:
    return tuple(
        (start - low, limit - low, step)
        for (start, limit, step), low in zip(bounds, lows, strict=True)
    )


def _is_plain(op: ir.Operation) -> bool:
    """Whether an operation of this table has no attribute beside its own."""
    own = _ATTRIBUTES.get(op.name)
    return own is not None and own.issuperset(walk.attribute_names(op))
