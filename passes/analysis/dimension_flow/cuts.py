"""Sources of cuts of whole values, found through the operations before them that can be cut too.

A loop that reads a chunk of `broadcast(bias)` needs no cut at all, where the broadcast adds the
axis; one that reads a chunk of `one_hot(labels)` needs a chunk of the labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...ir.op_facts import Category
from ..program import Node, Program
from ..purity import is_table
from ..signatures.signature import AxisLayout
from .flow import Flow

Cut = tuple[int, AxisLayout]
"""A value by number, and the axis that is cut."""


@dataclass(frozen=True, slots=True)
class CutStep:
    """A part of an operation's result, computed from parts of its operands.

    Attributes:
      node: the operation; None where the value is another one under another name.
      operands: by position the axis of an operand that is cut; the others are read whole.
    """

    node: Node | None
    operands: dict[int, Cut]


class CutSources:
    """Finds the sources of cuts of a program's values."""

    def __init__(self, program: Program, flow_of: Callable[[int], Flow]) -> None:
        self._program = program
        self._flow_of = flow_of
        self._passed: dict[int, int] = {}
        for node in program.root.inside():
            if node.category is Category.LOOP:
                body = node.blocks[1]
                for argument, returned, start in zip(
                    body.arguments, body.returned, node.operands, strict=True
                ):
                    if argument == returned:
                        self._passed[argument] = start

    def of(self, cuts: Iterable[Cut]) -> dict[Cut, Cut]:
        """Returns the sources, in the order in which they are found, each with its first cut.

        A source is an argument, a value that is finished, or one of which no part follows from
        parts of operands: an iota, a table, a sorted axis.
        """
        sources: dict[Cut, Cut] = {}
        seen: set[Cut] = set()
        for wanted in cuts:
            waiting = [wanted]
            while waiting:
                cut = waiting.pop()
                if cut in seen:
                    continue
                seen.add(cut)
                step = self.step(*cut)
                if step is None:
                    sources.setdefault(cut, wanted)
                else:
                    waiting += reversed(step.operands.values())
        return sources

    def step(self, value: int, layout: AxisLayout) -> CutStep | None:
        """Returns the step that computes a part of a whole value; None where no step does."""
        if value in self._passed:
            return CutStep(None, {0: (self._passed[value], layout)})
        node = self._program.makers.get(value)
        if node is None or not self._flow_of(value).is_whole:
            return None
        number = node.results.index(value)
        if node.category is Category.RELABEL:
            return CutStep(None, {number: (node.operands[number], layout)})
        if node.op.name == "stablehlo.constant":
            return None if is_table(node.op) else CutStep(node, {})
        signature = self._program.signature_of(node)
        place = None if signature is None else signature.place_in(signature.results[number], layout)
        if signature is None or place is None:
            return None
        operands = {
            at: (operand, part)
            for at, (operand, axes) in enumerate(
                zip(node.operands, signature.operands, strict=True)
            )
            if (part := signature.layout_of(axes, place)) is not None
        }
        if not operands and node.name != "stablehlo.broadcast_in_dim":
            return None
        return CutStep(node, operands)
