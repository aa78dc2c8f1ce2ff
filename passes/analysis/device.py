"""A program on one device: what each value takes there, and what of the work is done there.

How values are split over devices and how the target's compiler lays them out stand side by side
here; what asks for the size of a value asks a `DeviceView`, mostly through a `Program`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from ..ir.types import TensorSize, TensorSizes
from .memory_model.memory_rules import PACKED, MemoryRules
from .shardings.shardings import Shardings
from .signatures import signature_of


@dataclass(frozen=True)
class LocalSizes(TensorSizes):
    """Sizes of what one device has of values, without padding: what work and traffic depend on."""

    shardings: Shardings = field(default_factory=Shardings)

    def of(self, value: ir.Value) -> TensorSize:
        whole = super().of(value)
        # What is in a host's memory takes none here, and is read all the same.
        if self.shardings.trivial or not (share := self.shardings.share(value)):
            return whole
        elements, size_bytes = (math.ceil(size * share) for size in (whole.elements, whole.bytes))
        return TensorSize(elements, whole.bits, size_bytes)

    def product_share(self, op: ir.Operation) -> float:
        """What is summed is split where all operands are: else one of them is gathered before."""
        if self.shardings.trivial:
            return 1.0
        share = float(self.shardings.share(op.results[0]))
        signature = signature_of(op)
        if signature is None:
            return share
        summed: dict[int, int] = {}
        for operand, axes in zip(op.operands, signature.operands, strict=True):
            for number, axis in enumerate(axes):
                if axis and axis[0] not in signature.made:
                    parts = self.shardings.devices_along(operand, number)
                    summed[axis[0]] = min(parts, summed.get(axis[0], parts))
        return share / math.prod(summed.values())


class DeviceView:
    """The sizes of values on one device; of all that they hold where nothing is sharded.

    Attributes:
      sizes: without padding, for the cost of operations.
      shardings: how the values are split over devices.
      rules: how the target's compiler lays values out in memory, and what it fuses.
    """

    def __init__(self, shardings: Shardings | None = None, rules: MemoryRules = PACKED) -> None:
        self.shardings, self.rules = shardings or Shardings(), rules
        self.sizes = LocalSizes(shardings=self.shardings)
        self._bytes_by_type: dict[ir.Type, int | None] = {}

    @classmethod
    def of(cls, module: ir.Module, rules: MemoryRules = PACKED) -> DeviceView:
        """That of a module; pure. Quick where it is for one device."""
        return cls(Shardings.of(module), rules)

    def bytes_of(self, value: ir.Value) -> int | None:
        """Bytes of the value on one device; None where it has no static size."""
        type_ = value.type
        if type_ not in self._bytes_by_type:
            self._bytes_by_type[type_] = self.rules.bytes_of(type_)
        size = self._bytes_by_type[type_]
        if self.shardings.trivial or not size:
            return size
        share, counts = self.shardings.share(value), self.shardings.counts_of(value)
        # Along which axes a value is split that a pass added is not known.
        part = self.rules.part_bytes(type_, counts) if share and counts is not None else None
        return math.ceil(size * share) if part is None else part

    def with_made(self, like: Mapping[ir.Value, ir.Value]) -> DeviceView:
        """With values that edits made, as `Shardings.with_made` has them."""
        return (
            self
            if self.shardings.trivial
            else DeviceView(self.shardings.with_made(like), self.rules)
        )

    def on(self, module: ir.Module, clone: ir.Module) -> DeviceView:
        """The same of a module's clone; it may not have been changed yet."""
        return (
            self
            if self.shardings.trivial
            else DeviceView(self.shardings.on(module, clone), self.rules)
        )
