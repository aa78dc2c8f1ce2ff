"""Writes the loops of a plan in place of the operations that they hold."""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..analysis.program import Node
from ..ir import walk
from ..ir.erase import erase
from ..ir.locations import scoped
from .apart import PartApart
from .body import ChunkWriter
from .by_parts import write_by_parts
from .leaving import LoopExit
from .loop import LoopWriter
from .plan import LoopsPlan, PhaseLoop, place_loops


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
    apart = {walk.key(part.node.op): writer.write_part(part) for part in plan.apart}
    for loop, place in zip(plan.loops, places, strict=True):
        before = apart.get(walk.key(place.before), place.before)
        for op in place.moved:
            apart.get(walk.key(op), op).move_before(before)
        with ir.InsertionPoint(before):
            writer.write(loop)
    writer.clear()


class _Writer:
    def __init__(self, plan: LoopsPlan, scope: str, replaced: dict[ir.Value, ir.Value]) -> None:
        self._plan = plan
        self._scope = scope
        self._replaced = replaced
        self._rounded: list[ir.Operation] = []

    def write_part(self, part: PartApart) -> ir.Operation:
        """Writes what is computed before the loops where the whole operation stands."""
        op = part.node.op
        with ir.InsertionPoint(op), scoped(op.location, self._scope):
            chunks = ChunkWriter(self._plan.program, part.copies, None, self._outside)
            chunks.write()
            made = [chunks.value(number) for number in part.values]
        for number, value in zip(part.values, made, strict=True):
            planned = self._plan.program.program.values[number]
            planned.replace_all_uses_with(value)
            self._replaced[planned] = value
        return ir.OpResult(made[0]).owner.operation

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
        value = self._plan.program.program.values[number]
        return self._replaced.get(value, value)

    def clear(self) -> None:
        """Erases what the loops replace; what is another value under another name becomes that."""
        for node in self._plan.gone:
            self._rename(node)
        erase(*(node.op for node in self._plan.gone))
        for made in self._rounded:
            if not any(made.results[0].uses):
                erase(made)

    def _rename(self, node: Node) -> None:
        program = self._plan.program
        for number, result in zip(node.results, node.op.results, strict=True):
            behind = program.behind(number)
            if behind != number:
                self._replaced[result] = self._outside(behind)
                result.replace_all_uses_with(self._replaced[result])
