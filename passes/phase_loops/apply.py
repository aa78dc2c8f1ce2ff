"""Writes the loops of a plan in place of the operations that they hold."""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from hloom.passes.analysis.dimension_flow.program import FlowNode
from hloom.passes.ir.locations import scoped
from hloom.passes.ir.op_facts import FlowRule
from hloom.passes.phase_loops.by_parts import write_by_parts
from hloom.passes.phase_loops.leaving import LoopExit
from hloom.passes.phase_loops.loop import LoopWriter
from hloom.passes.phase_loops.plan import LoopsPlan, PhaseLoop, place_loops


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
        self._rounded: list[ir.Operation] = []

    def write(self, loop: PhaseLoop) -> None:
        if not loop.exits:
            return
        by_node = loop.copies.by_node
        first = by_node[min(by_node)][0].node.op
        with scoped(first.location, self._scope):
            if self._plan.parts is None:
                left: Sequence[ir.Value] = LoopWriter(self._plan, loop, self._outside).write()
            else:
                left = write_by_parts(self._plan, self._plan.parts, loop, self._outside)
            for found, made in zip(loop.exits, left, strict=True):
                self._leave(found, made)

    def _leave(self, found: LoopExit, made: ir.Value) -> None:
        """Makes what left a loop the value that others read."""
        for number in found.widened:
            self._replace(self._plan.program.program.values[number], made)
        if made.type != found.type:
            rounded = stablehlo.ConvertOp(found.type, made)
            self._rounded.append(rounded.operation)
            made = rounded.result
        self._replace(found.value, made)

    def _replace(self, value: ir.Value, made: ir.Value) -> None:
        value.replace_all_uses_with(made)
        self._replaced[value] = made

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

    def erase(self) -> None:
        """Erases what the loops replace; what is another value under another name becomes that."""
        for node in reversed(self._plan.gone):
            self._rename(node)
            node.op.erase()
        for made in self._rounded:
            if not any(made.results[0].uses):
                made.erase()

    def _rename(self, node: FlowNode) -> None:
        program = self._plan.program
        if node.rule is not FlowRule.BARRIER:
            return
        for number, result in zip(node.results, node.op.results, strict=True):
            if program.of(number).is_whole:
                behind = self._outside(number)
                result.replace_all_uses_with(behind)
                self._replaced[result] = behind
