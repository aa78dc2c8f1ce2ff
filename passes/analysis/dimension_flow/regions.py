"""Operations with code in them: loops, conditionals, manual computations, calls.

Their code runs in a loop over chunks as a whole, or it is not cut at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

from ...ir.mesh import manual_axes
from ...ir.op_facts import Category
from ...ir.shardings import placement_of
from ..program import Code, Node
from ..signatures.signature import AxisLayout, Combine
from .flow import WHOLE, Flow, FlowState, Needs, StuckError


class BlockFlows(Protocol):
    """The interface of a walker that finds the flows in a block."""

    state: FlowState

    def block(self, block: Code, needs: Needs, *, inside: bool) -> None: ...

    def flow(self, value: int, *, inside: bool) -> Flow: ...


@dataclass(frozen=True, slots=True)
class RegionFlows:
    """The flows of an operation's results, computed from its code in a loop."""

    results: tuple[Flow, ...]
    needs: Needs


class CodeRegion(ABC):
    """The code of an operation."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def flows(self, walker: BlockFlows) -> RegionFlows:
        """Returns the results' flows. Raises StuckError where a value is needed whole in there."""
        needs = Needs()
        return RegionFlows(tuple(self._results(walker, needs)), needs)

    @abstractmethod
    def _results(self, walker: BlockFlows, needs: Needs) -> Sequence[Flow]: ...

    def defined(self) -> Iterator[int]:
        """Yields the values in the code that have flows of their own."""
        for block in self.node.blocks:
            yield from block.defined()

    def starts(self, results: Sequence[Flow]) -> Iterator[tuple[int, AxisLayout]]:
        """Yields the operands that are carried as split values."""
        yield from ()

    def sources(self, values: Sequence[int], state: FlowState) -> frozenset[int]:
        """Returns the values outside that these always equal or follow from; none where they depend
        on the iteration.
        """
        found: set[int] = set()
        makers = ChainMap(*(block.makers for block in self.node.blocks))
        seen, waiting = set[int](), list(values)
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            source = self._source(value)
            if source is not None:
                found.add(source)
            elif value in makers and not makers[value].blocks:
                read = makers[value].operands
                waiting += [operand for operand in read if not state.of(operand).is_whole]
            else:
                return frozenset()
        return frozenset(found)

    def _source(self, value: int) -> int | None:
        """Returns the value outside that one in the code always is; None where there is none."""
        for block in self.node.blocks:
            if value in block.arguments:
                return self._start(block.arguments.index(value))
        return value if value in self.node.reads() else None

    def _start(self, argument: int) -> int | None:
        """Returns the value outside that an argument of the code always is."""
        return self.node.operands[argument]

    def _stuck(self, *values: int) -> StuckError:
        return StuckError(self.node, values)

    def _joined(self, flows: Sequence[Flow], others: Sequence[Flow]) -> list[Flow]:
        found = []
        for one, other in zip(flows, others, strict=True):
            both = joined(one, other)
            if both is None:
                raise self._stuck()
            found.append(both)
        return found

    def _cut(
        self, wanted: Sequence[Flow], flows: Sequence[Flow], values: Sequence[int], needs: Needs
    ) -> None:
        """Adds the cuts of whole values that are carried or returned as split ones."""
        for want, flow, value in zip(wanted, flows, values, strict=True):
            if want.layout is not None and flow.is_whole:
                needs.cut(value, want.layout, self.node)


class LoopRegion(CodeRegion):
    """A while loop: a carry's flow joins those of its initial value and of the body's result."""

    def _start(self, argument: int) -> int | None:
        body = self.node.blocks[1]
        passed = body.returned[argument] == body.arguments[argument]
        return self.node.operands[argument] if passed else None

    def starts(self, results: Sequence[Flow]) -> Iterator[tuple[int, AxisLayout]]:
        for number, flow in enumerate(results):
            if flow.layout is not None:
                yield number, flow.layout

    def _results(self, walker: BlockFlows, needs: Needs) -> Sequence[Flow]:
        condition, body = self.node.blocks
        operands = self.node.operands
        inits = [walker.flow(value, inside=True) for value in operands]
        carries = list(inits)
        while True:
            found = Needs()
            for argument, flow in zip(condition.arguments, carries, strict=True):
                walker.state.put(argument, flow)
            for argument, flow in zip(body.arguments, carries, strict=True):
                walker.state.put(argument, flow)
            walker.block(body, found, inside=True)
            returned = [walker.flow(value, inside=True) for value in body.returned]
            joined = self._joined(carries, returned)
            if joined == carries:
                break
            carries = joined
        walker.block(condition, found, inside=True)
        if not walker.flow(condition.returned[0], inside=True).is_whole:
            raise self._stuck(condition.returned[0])
        self._cut(carries, inits, operands, found)
        self._cut(carries, returned, body.returned, found)
        needs.add(found)
        return carries


class ConditionalRegion(CodeRegion):
    """Branches: all chunks take the same one; the flows of their results are joined."""

    def _results(self, walker: BlockFlows, needs: Needs) -> Sequence[Flow]:
        choice = self.node.operands[0]
        if not walker.flow(choice, inside=True).is_whole:
            raise self._stuck(choice)
        returned = []
        for block in self.node.blocks:
            walker.block(block, needs, inside=True)
            returned.append([walker.flow(value, inside=True) for value in block.returned])
        results = returned[0]
        for flows in returned[1:]:
            results = self._joined(results, flows)
        for block, flows in zip(self.node.blocks, returned, strict=True):
            self._cut(results, flows, block.returned, needs)
        return results


class CallRegion(CodeRegion):
    """A call of a function, whose values have flows only while this call is walked."""

    def defined(self) -> Iterator[int]:
        yield from ()

    def _results(self, walker: BlockFlows, needs: Needs) -> Sequence[Flow]:
        [block] = self.node.blocks
        for argument, value in zip(block.arguments, self.node.operands, strict=True):
            walker.state.put(argument, walker.flow(value, inside=True))
        try:
            walker.block(block, Needs(), inside=True)
            return [walker.flow(value, inside=True) for value in block.returned]
        finally:
            walker.state.forget(block.defined())


class ManualRegion(CodeRegion):
    """Code on each device's part of the values.

    The devices' parts are the major factor of an axis that is split over them by hand, so that a
    dimension which is cut in each part alike is one of the part, too.
    """

    def _results(self, walker: BlockFlows, needs: Needs) -> Sequence[Flow]:
        [block] = self.node.blocks
        read, made = computation_counts(self.node.op)
        for argument, value, counts in zip(block.arguments, self.node.operands, read, strict=True):
            flow = _divided(walker.flow(value, inside=True), counts)
            if flow is None:
                raise self._stuck(value)
            walker.state.put(argument, flow)
        walker.block(block, needs, inside=True)
        returned = [walker.flow(value, inside=True) for value in block.returned]
        return [_multiplied(flow, counts) for flow, counts in zip(returned, made, strict=True)]


def computation_counts(op: ir.Operation) -> tuple[list[dict[int, int]], list[dict[int, int]]]:
    """Returns, for operands and results of a manual computation, the devices along each axis."""
    manual = manual_axes(op)

    def counts(name: str) -> list[dict[int, int]]:
        shardings = sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings
        return [placement_of(each, op).along(manual).counts for each in shardings]

    return counts("in_shardings"), counts("out_shardings")


def _divided(flow: Flow, counts: dict[int, int]) -> Flow | None:
    if flow.layout is None:
        return WHOLE if flow.is_whole else flow
    outer, rest = divmod(flow.layout.outer, counts.get(flow.layout.axis, 1))
    return None if rest else replace(flow, layout=replace(flow.layout, outer=outer))


def _multiplied(flow: Flow, counts: dict[int, int]) -> Flow:
    if flow.layout is None:
        return flow
    outer = flow.layout.outer * counts.get(flow.layout.axis, 1)
    return replace(flow, layout=replace(flow.layout, outer=outer))


_REGIONS: dict[Category, type[CodeRegion]] = {
    Category.CONDITIONAL: ConditionalRegion,
    Category.LOOP: LoopRegion,
    Category.MANUAL: ManualRegion,
}


def region_of(node: Node) -> CodeRegion | None:
    """Returns the code of an operation; None where it has none, or none that is known."""
    kind = CallRegion if node.is_call else _REGIONS.get(node.category)
    return None if kind is None or not node.blocks else kind(node)


def joined(one: Flow, other: Flow) -> Flow | None:
    """Returns the flow of a value that may have either of two flows; None where none fits.

    A whole value can be cut, and is also its own maximum; it is a sum only where it is zero.
    """
    if one == other:
        return one
    if one.is_whole and other.is_whole:
        return WHOLE
    if not one.is_whole and not other.is_whole:
        return None
    known, rest = (other, one) if one.is_whole else (one, other)
    if known.is_split or rest.zero or known.combine is not Combine.SUM:
        return known
    return None
