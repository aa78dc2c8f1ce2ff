"""Writes the loops of a plan in place of the operations that they hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from hloom.passes.analysis.dimension_flow.flow import Combine
from hloom.passes.analysis.dimension_flow.program import FlowNode
from hloom.passes.ir.locations import scoped
from hloom.passes.ir.op_facts import FlowRule
from hloom.passes.ir.types import element_bits
from hloom.passes.phase_loops.body import ChunkWriter
from hloom.passes.phase_loops.identities import identity
from hloom.passes.phase_loops.leaving import Leaves, LoopExit
from hloom.passes.phase_loops.plan import LoopsPlan, PhaseLoop, place_loops
from hloom.passes.phase_loops.slices import ChunkStart, scalar, stack_type, write_chunk

_COMBINES: dict[Combine, Callable[..., ir.Value]] = {
    Combine.SUM: stablehlo.add,
    Combine.MAX: stablehlo.maximum,
    Combine.MIN: stablehlo.minimum,
}


def apply_loops(
    plan: LoopsPlan, scope: str, replaced: dict[ir.Value, ir.Value] | None = None
) -> None:
    """Writes the loops, and erases what they replace.

    Args:
      plan: the loops.
      scope: the name-stack component of the operations that are added.
      replaced: values of the program that others took the place of, for several plans of one block;
        what this one replaces is added.

    Raises NotLoopableError, before anything is edited, where the loops have no place in the block
    as it is now.
    """
    replaced = {} if replaced is None else replaced
    places = place_loops(plan, replaced)
    writer = _Writer(plan, scope, replaced)
    for loop, place in zip(plan.loops, places, strict=True):
        for op in place.moved:
            op.move_before(place.before)
        with ir.InsertionPoint(place.before):
            writer.write(loop)
    writer.erase()


class _Writer:
    def __init__(self, plan: LoopsPlan, scope: str, replaced: dict[ir.Value, ir.Value]) -> None:
        self._plan = plan
        self._scope = scope
        self._replaced = replaced

    def write(self, loop: PhaseLoop) -> None:
        if not loop.exits:
            return
        by_node = loop.copies.by_node
        first = by_node[min(by_node)][0].node.op
        with scoped(first.location, self._scope):
            carried: Sequence[ir.Value] = self._loop(loop)
            if self._plan.rest:
                start = self._plan.trips * self._plan.length
                index = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
                chunk = ChunkStart(scalar(index, start), scalar(index, 0), self._plan.rest)
                carried = self._chunk(loop, chunk, carried)
            for found, value in zip(loop.exits, carried, strict=True):
                self._leave(found, value)

    def _outside(self, number: int) -> ir.Value:
        """A value as it is known outside of loops."""
        program = self._plan.program
        value = program.program.values[number]
        if value in self._replaced:
            return self._replaced[value]
        node = program.maker(number)
        if node is not None and node.rule is FlowRule.BARRIER and program.phase_of(node):
            return self._outside(node.operands[node.results.index(number)])
        return value

    def _leave(self, found: LoopExit, carried: ir.Value) -> None:
        """Makes what a loop carried the value that others read."""
        value, made = found.value, carried
        if found.leaves is Leaves.STACKED:
            if made.type != value.type:
                made = stablehlo.reshape(value.type, made)
        elif made.type != value.type:
            made = stablehlo.convert(value.type, made)
        value.replace_all_uses_with(made)
        self._replaced[value] = made

    def _loop(self, loop: PhaseLoop) -> Sequence[ir.Value]:
        index = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
        starts = [scalar(index, 0), *map(self._start, loop.exits)]
        types = [start.type for start in starts]
        made = stablehlo.WhileOp(types, starts)
        location = made.operation.location
        condition = made.operation.regions[0].blocks.append(
            *types, arg_locs=[location] * len(types)
        )
        with ir.InsertionPoint(condition):
            trips = scalar(index, self._plan.trips)
            less = stablehlo.ComparisonDirectionAttr.get("LT")
            stablehlo.ReturnOp([stablehlo.compare(condition.arguments[0], trips, less)])
        body = made.operation.regions[1].blocks.append(*types, arg_locs=[location] * len(types))
        with ir.InsertionPoint(body):
            count, *carried = body.arguments
            length = self._plan.length
            start = count if length == 1 else stablehlo.multiply(count, scalar(index, length))
            chunk = ChunkStart(start, scalar(index, 0), length)
            returned = self._chunk(loop, chunk, carried)
            stablehlo.ReturnOp([stablehlo.add(count, scalar(index, 1)), *returned])
        return [*made.operation.results][1:]

    def _start(self, found: LoopExit) -> ir.Value:
        type_ = self._carried_type(found)
        return identity(type_, found.flow.combine or Combine.SUM)

    def _carried_type(self, found: LoopExit) -> ir.RankedTensorType:
        type_ = ir.RankedTensorType(found.value.type)
        if found.flow.layout is not None and found.leaves is Leaves.STACKED:
            return ir.RankedTensorType(stack_type(type_, found.flow.layout))
        return ir.RankedTensorType.get(type_.shape, found.element)

    def _chunk(
        self, loop: PhaseLoop, chunk: ChunkStart, carried: Sequence[ir.Value]
    ) -> list[ir.Value]:
        """Writes a chunk; returns what is carried after it."""
        writer = ChunkWriter(self._plan.program, loop.copies, chunk, self._outside)
        writer.write()
        return [
            self._carry(found, writer.value(found.number), before, chunk)
            for found, before in zip(loop.exits, carried, strict=True)
        ]

    def _carry(
        self, found: LoopExit, made: ir.Value, before: ir.Value, chunk: ChunkStart
    ) -> ir.Value:
        if found.leaves is Leaves.SAME:
            return made
        if found.flow.layout is not None:
            return write_chunk(before, made, found.flow.layout, chunk)
        assert found.flow.combine is not None
        return _COMBINES[found.flow.combine](before, _term(made, before.type))

    def erase(self) -> None:
        """Erases what the loops replace; what is another value under another name becomes that."""
        for node in reversed(self._plan.gone):
            self._rename(node)
            node.op.erase()

    def _rename(self, node: FlowNode) -> None:
        program = self._plan.program
        if node.rule is not FlowRule.BARRIER:
            return
        for number, result in zip(node.results, node.op.results, strict=True):
            if program.of(number).is_whole:
                behind = self._outside(number)
                result.replace_all_uses_with(behind)
                self._replaced[result] = behind


def _term(made: ir.Value, type_: ir.Type) -> ir.Value:
    """A term in the type of its accumulator.

    A matrix product that nothing else reads is made in that type, which is its own sum unrounded:
    the GPU then adds it to the accumulator inside of the product, and no term is in memory.
    """
    product = _product_behind(made)
    if product is not None:
        element = ir.RankedTensorType(product.type).element_type
        wide = ir.RankedTensorType(type_).element_type
        if _is_wider(wide, element):
            shape = ir.RankedTensorType(product.type).shape
            product.set_type(ir.RankedTensorType.get(shape, wide))
            return product
    return made if made.type == type_ else stablehlo.convert(type_, made)


def _product_behind(made: ir.Value) -> ir.Value | None:
    """The product that a term is, or is converted from, where nothing else reads it."""
    if len(list(made.uses)):
        return None
    op = made.owner.operation
    if op.name == "stablehlo.convert" and not isinstance(op.operands[0].owner, ir.Block):
        made = op.operands[0]
        op = made.owner.operation
        if len(list(made.uses)) > 1:
            return None
    return made if op.name == "stablehlo.dot_general" else None


def _is_wider(wide: ir.Type, element: ir.Type) -> bool:
    if not (isinstance(wide, ir.FloatType) and isinstance(element, ir.FloatType)):
        return False
    return (element_bits(wide) or 0) > (element_bits(element) or 0)
