"""A program on one device: the size of each value, and the device's share of the work.

This module combines the shardings of values and the layouts of the target's compiler; analyses get
the size of a value from a `DeviceView`, mostly through a `Program`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from ..framework.target import Speed
from ..ir.shardings import MeshAxis
from ..ir.types import TensorSize, TensorSizes
from .memory_model.memory_rules import PACKED, MemoryRules
from .shardings.exchanged import Exchanged
from .shardings.propagation import values_of
from .shardings.shardings import Shardings
from .signatures import signature_of

_MOVED_BY = {
    "stablehlo.broadcast_in_dim": "broadcast_dimensions",
    "stablehlo.transpose": "permutation",
}
"""The attributes that define how an operation moves elements; a reshape has none."""


@dataclass(frozen=True)
class LocalSizes(TensorSizes):
    """The sizes of one device's parts of values, without padding: those of work and traffic."""

    shardings: Shardings = field(default_factory=Shardings)

    def of(self, value: ir.Value) -> TensorSize:
        whole = super().of(value)
        # A value in a host's memory takes none on the device, but is still read.
        if self.shardings.trivial or not (share := self.shardings.share(value)):
            return whole
        elements, size_bytes = (math.ceil(size * share) for size in (whole.elements, whole.bytes))
        return TensorSize(elements, whole.bits, size_bytes)

    def product_share(self, op: ir.Operation) -> float:
        """Returns the share of a product's work that one device does.

        A summed axis is split where all operands are: else one of them is gathered before. An axis
        of the mesh that splits the sum splits the result only afterwards, and counts once.
        """
        if self.shardings.trivial:
            return 1.0
        result = op.results[0]
        share, placement = float(self.shardings.share(result)), self.shardings.placement(result)
        of_result = set[MeshAxis]().union(*(() if placement is None else placement.axes))
        return share / math.prod(axis.size for axis in self.summed_axes(op) - of_result)

    def summed_axes(self, op: ir.Operation) -> set[MeshAxis]:
        """Returns the axes of the mesh along which devices sum different terms of a product."""
        signature = signature_of(op)
        if signature is None:
            return set()
        summed: dict[int, set[MeshAxis]] = {}
        for operand, axes in zip(op.operands, signature.operands, strict=True):
            placement = self.shardings.placement(operand)
            for number, axis in enumerate(axes):
                if axis and axis[0] not in signature.made:
                    found = set(() if placement is None else placement.axes[number])
                    summed[axis[0]] = found & summed.get(axis[0], found)
        return set[MeshAxis]().union(*summed.values())


class DeviceView:
    """The sizes of values on one device; those of whole values where nothing is sharded.

    Attributes:
      sizes: the sizes without padding, for the cost of operations.
      shardings: the placements of the values.
      rules: the layout and fusion rules of the target's compiler.
      exchanged: the exchanges between devices.
    """

    def __init__(
        self,
        shardings: Shardings | None = None,
        rules: MemoryRules = PACKED,
        exchanged: Exchanged | None = None,
    ) -> None:
        self.shardings, self.rules = shardings or Shardings(), rules
        self.exchanged = exchanged or Exchanged()
        self.sizes = LocalSizes(rules.multiplies_all_groups, shardings=self.shardings)
        self._bytes_by_type: dict[ir.Type, int | None] = {}
        self._part_bytes: dict[tuple[object, ...], int] = {}
        self._kept_axes: dict[tuple[object, ...], Mapping[int, int] | None] = {}

    @classmethod
    def of(cls, module: ir.Module, rules: MemoryRules = PACKED) -> DeviceView:
        """Returns the view of a module; pure. Fast for a module for one device."""
        shardings = Shardings.of(module)
        return cls(shardings, rules, None if shardings.trivial else Exchanged.of(module))

    def bytes_of(self, value: ir.Value) -> int | None:
        """Returns the bytes of the value on one device; None where it has no static size."""
        type_ = value.type
        if type_ not in self._bytes_by_type:
            self._bytes_by_type[type_] = self.rules.bytes_of(type_)
        size = self._bytes_by_type[type_]
        if self.shardings.trivial or not size:
            return size
        share, placement = self.shardings.share(value), self.shardings.placement(value)
        key = type_, share.as_integer_ratio(), placement
        if key not in self._part_bytes:
            # The split axes of a value that a pass added are not known.
            counts = None if placement is None or not share else placement.counts
            part = None if counts is None else self.rules.part_bytes(type_, counts)
            self._part_bytes[key] = math.ceil(size * share) if part is None else part
        return self._part_bytes[key]

    def kept_axes(self, op: ir.Operation) -> Mapping[int, int] | None:
        """Returns the result axis of each axis of a moved operand; None without a signature.
        Cached: many operations of a module move alike."""
        name = op.name
        attribute = op.attributes[_MOVED_BY[name]] if name in _MOVED_BY else None
        key = name, op.operands[0].type, op.results[0].type, attribute
        if key not in self._kept_axes:
            signature = signature_of(op)
            self._kept_axes[key] = None if signature is None else signature.kept_axes()
        return self._kept_axes[key]

    def local_shape(self, value: ir.Value) -> tuple[int, ...]:
        """Returns the shape of one device's part of the value; () where it is no array."""
        if not isinstance(value.type, ir.RankedTensorType):
            return ()
        whole = tuple(value.type.shape)
        return whole if self.shardings.trivial else self.shardings.local_shape(value) or whole

    def with_made(self, like: Mapping[ir.Value, ir.Value]) -> DeviceView:
        """Returns the view with values that edits added, as in `Shardings.with_made`."""
        if self.shardings.trivial:
            return self
        shardings, exchanged = self.shardings.with_made(like), self.exchanged.with_made(like)
        return DeviceView(shardings, self.rules, exchanged)

    def on(self, module: ir.Module, clone: ir.Module) -> DeviceView:
        """Returns the view of a module's clone, which must not be edited yet."""
        if self.shardings.trivial:
            return self
        counterparts = dict(zip(values_of(module), values_of(clone), strict=True))
        shardings, exchanged = self.shardings.on(counterparts), self.exchanged.on(counterparts)
        return DeviceView(shardings, self.rules, exchanged)

    def exchange_seconds(self, speed: Speed) -> float:
        """Returns the seconds of a step's exchanges; links of unknown speed count as 0."""
        return sum(each.seconds(speed) or 0.0 for each in self.exchanged.exchanges)
