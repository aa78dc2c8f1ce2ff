"""Data-flow graph of a block, as arrays: operations, values, their producers and users."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from ..ir import walk
from ..ir.op_facts import Kind
from .purity import CHEAP_KINDS, kind_of
from .shards import Shards

FROM_OUTSIDE = -1
"""Producer of block arguments and of values that are defined outside the block."""

_SMALL_REDUCTION = 16
"""A reduction that reads this many times what it writes is worth its place in memory: a sixteenth
of a value costs less than another pass over the whole of it."""


@dataclass
class BlockGraph:
    """Operations and values of one block, by index in textual order.

    An operation that holds regions reads what its regions read: a loop, a branch or a reduction is
    one vertex. Values from outside the block that its operations read are among the values, with
    the producer FROM_OUTSIDE. Sizes are bytes on one device, by ``shards``.
    """

    block: ir.Block
    shards: Shards = field(default_factory=Shards)
    ops: list[ir.Operation] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    operands: list[list[int]] = field(default_factory=list)
    results: list[list[int]] = field(default_factory=list)
    values: list[ir.Value] = field(default_factory=list)
    sizes: list[int | None] = field(default_factory=list)
    producers: list[int] = field(default_factory=list)
    users: list[list[int]] = field(default_factory=list)
    index: dict[ir.Value, int] = field(default_factory=dict)
    _sizeless: set[int] = field(default_factory=set)
    _size_by_type: dict[ir.Type, int | None] = field(default_factory=dict)

    @classmethod
    def of(cls, block: ir.Block, shards: Shards | None = None) -> BlockGraph:
        graph = cls(block, shards or Shards())
        for argument in block.arguments:
            graph._add_value(argument, FROM_OUTSIDE)
        for view in block.operations:
            graph._add_operation(view.operation)
        return graph

    def _add_value(self, value: ir.Value, producer: int) -> int:
        number = self.index[value] = len(self.values)
        self.values.append(value)
        type_ = value.type
        if type_ not in self._size_by_type:
            self._size_by_type[type_] = self.shards.rules.bytes_of(type_)
        size = self._size_by_type[type_]
        self.sizes.append(size if self.shards.trivial else self.shards.bytes_of(value))
        if size is None:
            self._sizeless.add(number)
        self.producers.append(producer)
        self.users.append([])
        return number

    def _add_operation(self, op: ir.Operation) -> None:
        position = len(self.ops)
        kind, index = kind_of(op), self.index
        read = [
            index[value] if value in index else self._add_value(value, FROM_OUTSIDE)
            for value in op.operands
        ]
        if kind not in CHEAP_KINDS and len(op.regions):
            for inner in walk.operations(op):
                read += [self.index[value] for value in inner.operands if value in self.index]
        read = list(dict.fromkeys(read))
        self.ops.append(op)
        self.names.append(op.name)
        self.operands.append(read)
        for value in read:
            self.users[value].append(position)
        made = [self._add_value(result, position) for result in op.results]
        self.results.append(made)
        if self._sizeless and not self._sizeless.isdisjoint(read + made):
            kind = Kind.OPAQUE
        self.kinds.append(kind)

    def size(self, value: int) -> int:
        """Bytes of a value; 0 where it has no static size."""
        return self.sizes[value] or 0

    @functools.cached_property
    def constant_derived(self) -> list[bool]:
        """For each value, whether it is computed from constants and iotas alone."""
        derived = [False] * len(self.values)
        for position, kind in enumerate(self.kinds):
            if kind not in CHEAP_KINDS:
                continue
            if all(derived[value] for value in self.operands[position]):
                for value in self.results[position]:
                    derived[value] = True
        return derived

    def is_cheap(self, value: int) -> bool:
        """Whether the value is made in this block by an operation that is cheap to recompute."""
        producer = self.producers[value]
        return producer != FROM_OUTSIDE and self.kinds[producer] in CHEAP_KINDS

    def is_pure(self, value: int) -> bool:
        """Whether the value is made in this block by an operation that may be recomputed."""
        producer = self.producers[value]
        return producer != FROM_OUTSIDE and self.kinds[producer] is not Kind.OPAQUE

    def is_small_reduction(self, value: int) -> bool:
        """Whether the value is a reduction's result, much smaller than what the reduction reads."""
        producer = self.producers[value]
        if producer == FROM_OUTSIDE or self.kinds[producer] is not Kind.REDUCTION:
            return False
        read = sum(self.size(operand) for operand in self.operands[producer])
        return read >= _SMALL_REDUCTION * self.size(value)
