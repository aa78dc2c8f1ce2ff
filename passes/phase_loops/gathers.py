"""Finds values to gather once, before the loops that read them.

Where a loop goes over chunks of a dimension that devices have a part of each, and parameters are
sharded over the same devices (FSDP), each chunk would gather the parameters that its products read.
They are the same for all chunks. So a sharding constraint before the loop gives them the sharding
that the products need, and the loop reads the result.

Before, with the batch of x and the rows of w sharded over 8 devices::

    %r:2 = stablehlo.while(%i = %zero, %sum = %zeros) cond { %i < 4 } do {
      %chunk = stablehlo.dynamic_slice %x, %start  : tensor<2x16xf32>
      %h = stablehlo.dot_general %chunk, %w        : tensor<2x64xf32>
      ...

After::

    %whole = sdy.sharding_constraint %w <@mesh, [{}, {}]>
    %r:2 = stablehlo.while(%i = %zero, %sum = %zeros) cond { %i < 4 } do {
      %chunk = stablehlo.dynamic_slice %x, %start  : tensor<2x16xf32>
      %h = stablehlo.dot_general %chunk, %whole    : tensor<2x64xf32>
      ...

Shardy's partitioner determines the gathers (`analysis/shardings/exchanges`), so that weights that
are not moved, e.g. those of experts, are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from ..analysis.dimension_flow.result import DimensionFlow
from ..analysis.program import Code, Node, Program
from ..analysis.shardings.exchanges import PlacedExchange
from ..analysis.shardings.shardings import Shardings
from ..ir import walk
from ..ir.op_facts import Category
from ..ir.shardings import CONSTRAINT, ValueSharding, constraint_placement
from ..ir.types import tensor_bytes

_REORDERS = frozenset(
    {
        "stablehlo.convert",
        "stablehlo.dynamic_slice",
        "stablehlo.reshape",
        "stablehlo.slice",
        "stablehlo.transpose",
    }
)
"""Operations whose first operand, gathered, gives their result gathered."""


@dataclass(frozen=True)
class Gather:
    """A value that loops read, and its sharding when it is gathered.

    Attributes:
      number: the value.
      placement: its sharding without the axes of the mesh that the loops' dimension is sharded
        along.
      size: its bytes on a device.
      is_stack: a loop inside of a chunk, over layers, would gather a part of it at a time.
      between: constraints, by number, between it and the readers of the gathered value that would
        split it again: on explicit axes one follows the operation that makes it narrower.
    """

    number: int
    placement: ValueSharding
    size: int
    is_stack: bool
    between: frozenset[int] = frozenset()

    @property
    def added_bytes(self) -> int:
        """Returns the memory that microbatches take beyond that of gathering it in each of them.

        XLA keeps a value gathered outside of loops over layers from the forward to the backward
        pass: at the peak between them all of it is in memory anyway.
        """
        return self.size if self.is_stack else 0


def gathers_of(
    flow: DimensionFlow,
    shardings: Shardings,
    exchanges: Callable[[], Iterable[PlacedExchange]],
    names: Collection[str] | None = None,
) -> tuple[Gather, ...]:
    """Finds the values that loops over the dimension would gather again with each chunk; pure.

    If a value is made narrower before it is gathered, it is the narrower one; for a stack of
    layers, all of it.

    Args:
      flow: the dimension's flow, in a whole module, in a block or in a part of one.
      shardings: the module's shardings.
      exchanges: finds the module's exchanges; raises ValueError where they are unknown.
      names: the axes of the mesh along which values are gathered; None for any.
    """
    placements = (
        shardings.placement(flow.program.values[number])
        for number in flow.program.root.arguments
        if flow.of(number).is_whole
    )
    if not any(
        each is not None and (each.is_split if names is None else each.names & set(names))
        for each in placements
    ):
        return ()
    try:
        found = exchanges()
    except ValueError:  # Shardy's partitioner refuses the program: its exchanges are unknown
        return ()
    return tuple(_Finder(flow, shardings, names).found(found))


@dataclass
class _Source:
    """The gathers of a value."""

    names: set[str] = field(default_factory=set)
    is_stack: bool = False
    between: set[int] = field(default_factory=set)


class _Finder:
    def __init__(
        self, flow: DimensionFlow, shardings: Shardings, names: Collection[str] | None
    ) -> None:
        self._flow = flow
        self._program: Program = flow.program
        self._shardings = shardings
        self._names = names
        root = self._program.root
        self._operations = {walk.key(node.op) for node in root.inside() if node.results}
        self._own = {*root.arguments, *(value for node in root.nodes for value in node.results)}
        self._unchanged = dict(_unchanged(root))

    def found(self, exchanges: Iterable[PlacedExchange]) -> Iterator[Gather]:
        sources: dict[int, _Source] = {}
        for each in exchanges:
            names = self._gathered(each)
            if not names or each.operand not in self._program.index:
                continue
            source = self._source(self._program.index[each.operand])
            if source is not None and self._is_data(source):
                found = sources.setdefault(source, _Source())
                found.names |= names
                found.is_stack |= each.exchange.runs > 1
                if each.operand is not None:
                    found.between.update(self._splitting(each.operand, names))
        for number, source_of in sorted(sources.items()):
            value = self._program.values[number]
            placement = self._shardings.placement(value)
            if placement is None or source_of.names.isdisjoint(placement.names):
                continue
            wanted = placement.along(placement.names - source_of.names)
            size = (tensor_bytes(value.type) or 0) // math.prod(wanted.counts.values())
            between = frozenset(source_of.between)
            yield Gather(number, wanted, size, source_of.is_stack, between)

    def _gathered(self, placed: PlacedExchange) -> set[str]:
        """Returns the axes of the mesh along which operations of the program gather a value."""
        exchange = placed.exchange
        if exchange.kind != "all-gather":
            return set()
        if self._operations.isdisjoint(
            walk.key(each) for each in placed.readers if len(each.results)
        ):
            return set()
        names = set(exchange.axes)
        return names if self._names is None else names.intersection(self._names)

    def _splitting(self, value: ir.Value, names: Collection[str]) -> Iterator[int]:
        """Yields constraints after a value that keep it split along axes it is gathered along."""
        waiting = [value]
        while waiting:
            for use in waiting.pop().uses:
                op = use.owner.operation
                if op.name != CONSTRAINT or constraint_placement(op).names.isdisjoint(names):
                    continue
                number = self._program.index.get(op.results[0])
                node = None if number is None else self._program.makers.get(number)
                if node is not None:
                    yield node.number
                    waiting.append(op.results[0])

    def _is_data(self, value: int) -> bool:
        """Whether a value is the same for all chunks, and not computed from less, e.g. zeros."""
        node = self._program.makers.get(value)
        less = node is not None and sum(map(self._bytes, node.operands)) < self._bytes(value)
        return self._flow.of(value).is_whole and not less

    def _source(self, value: int) -> int | None:
        """Returns the value outside of the program's own loops that one is a part or reordering of.

        A wider value does not replace a narrower one.
        """
        while True:
            before = self._before(value)
            if before is None:
                return value if value in self._own else None
            if value in self._own and self._bytes(before) > self._bytes(value):
                return value
            value = before

    def _before(self, value: int) -> int | None:
        if value in self._unchanged:
            return self._unchanged[value]
        node = self._program.makers.get(value)
        if node is None or not self._flow.of(value).is_whole:
            return None
        if node.category is Category.RELABEL:
            return None
        return node.operands[0] if node.name in _REORDERS else None

    def _bytes(self, value: int) -> int:
        return self._program.bytes_of(value)


def _unchanged(code: Code) -> Iterator[tuple[int, int]]:
    """Yields each invariant argument of a loop's body, with the loop's operand for it."""
    for node in _loops(code):
        body = node.blocks[-1]
        for argument, returned, given in zip(
            body.arguments, body.returned, node.operands, strict=False
        ):
            if argument == returned:
                yield argument, given


def _loops(code: Code) -> Iterator[Node]:
    for node in code.nodes:
        if node.category is Category.LOOP:
            yield node
        for block in node.blocks:
            yield from _loops(block)
