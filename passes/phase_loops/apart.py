"""Parts of a loop or a conditional that do not depend on the dimension, done once by themselves.

A scan over layers may carry a random key beside the data, and what is drawn from the last key is
read by a loop over chunks again: code, or work too heavy to repeat with every chunk. So the key has
to be known before that loop. What the key is made of depends on no chunk: a loop that carries these
values alone, as a rule a key and a counter, computes it before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..analysis.program import Code, Node
from ..ir.op_facts import Category
from .copies import Form, LoopCopies, OperationCopy, Read
from .program import LoopProgram


@dataclass(frozen=True)
class PartApart:
    """A part of an operation that stands before all loops.

    Attributes:
      node: the operation.
      values: the results of it that are read of the part.
      copies: the operations in the part.
    """

    node: Node
    values: tuple[int, ...]
    copies: LoopCopies

    @property
    def reads(self) -> tuple[int, ...]:
        """What it reads from outside."""
        return tuple(self.copies.outside)


def parts_apart(program: LoopProgram) -> list[PartApart]:
    """The parts that loops need before they begin, although they make the same, the first first."""
    wanted: dict[int, int] = {}
    """By value the first loop that needs it to be known before."""
    found: list[PartApart] = []

    def want(values: Iterable[int], loop: int) -> None:
        for value in map(program.behind, values):
            wanted[value] = min(loop, wanted.get(value, loop))

    for node in reversed(program.nodes):
        phase = program.phase_of(node)
        flows = [program.of(value) for value in node.results]
        if node.category is Category.RELABEL and phase:
            continue
        done_before = [loop for value in node.results if (loop := wanted.get(value))]
        if done_before and (not phase or any(flow.given for flow in flows)):
            want(node.reads(), min(done_before))
        loop = phase or max(map(program.loop_of_whole, node.results), default=0)
        if loop:
            want((value for value in node.reads() if program.loop_of_whole(value) != loop), loop)
        early = {
            value: wanted[value]
            for value, flow in zip(node.results, flows, strict=True)
            if phase and flow.is_whole and wanted.get(value, phase + 1) <= phase
        }
        part = _Finder(program, node).part(tuple(early)) if early else None
        if part is not None:
            found.append(part)
            want(part.reads, min(early.values()))
    found.reverse()
    return found


_DIVIDED = frozenset({Category.RELABEL, Category.CONDITIONAL, Category.LOOP})
"""Rules of operations that can be written with some of their results only."""


class _Finder:
    """Finds what some whole results of an operation are made of."""

    def __init__(self, program: LoopProgram, node: Node) -> None:
        self._program = program
        self._node = node
        self._needed: set[int] = set()
        self._outside: dict[int, None] = {}
        self._waiting: list[int] = []
        self._arguments = {
            argument: (loop, place)
            for loop in (node, *_inside(node))
            if loop.category is Category.LOOP
            for block in loop.blocks
            for place, argument in enumerate(block.arguments)
        }

    def part(self, values: tuple[int, ...]) -> PartApart | None:
        """The part that makes these; None where it is none of its own."""
        if self._node.category not in (Category.LOOP, Category.CONDITIONAL):
            return None
        held = self._program.held_inside(self._node)
        own = dict.fromkeys(self._node.results, self._node)
        self._waiting += values
        while self._waiting:
            value = self._waiting.pop()
            if value in self._needed or value in self._outside:
                continue
            if not (self._program.of(value).is_whole or value in held):
                return None
            node = own.get(value)
            if value in self._program.inner:
                node = self._program.any_maker(value)
            elif node is None:
                self._outside[self._program.behind(value)] = None
                continue
            self._needed.add(value)
            if value in self._arguments:
                self._carry(*self._arguments[value])
            elif node is None or not self._make(node, value):
                return None
        copies = LoopCopies(0, outside=self._outside)
        for node in (self._node, *_inside(self._node)):
            if not self._needed.isdisjoint(node.results):
                copies.by_node[node.number] = [self._copy(node)]
        return PartApart(self._node, values, copies)

    def _make(self, node: Node, value: int) -> bool:
        """Whether an operation can make one of its results alone; what it needs for that is due."""
        place = node.results.index(value)
        if node.category is Category.LOOP:
            self._carry(node, place)
        elif node.category is Category.CONDITIONAL:
            self._waiting.append(node.operands[0])
            self._waiting += (block.returned[place] for block in node.blocks)
        elif node.category is Category.RELABEL:
            self._waiting.append(node.operands[place])
        else:
            self._waiting += node.operands
        return node.category in (Category.LOOP, Category.CONDITIONAL) or not node.blocks

    def _carry(self, loop: Node, place: int) -> None:
        condition, body = loop.blocks
        self._waiting += (
            loop.results[place],
            loop.operands[place],
            condition.arguments[place],
            body.arguments[place],
            body.returned[place],
            condition.returned[0],
        )

    def _copy(self, node: Node) -> OperationCopy:
        places = tuple(at for at, value in enumerate(node.results) if value in self._needed)
        operands, returned = node.operands, tuple(block.returned for block in node.blocks)
        if node.category in (Category.LOOP, Category.RELABEL):
            operands = tuple(operands[place] for place in places)
        if node.category is Category.LOOP:
            condition, carried = returned
            returned = condition, tuple(carried[place] for place in places)
        elif node.category is Category.CONDITIONAL:
            returned = tuple(tuple(each[place] for place in places) for each in returned)
        return OperationCopy(
            node,
            None,
            self._read(operands),
            tuple(map(self._read, returned)),
            places if node.category in _DIVIDED and len(places) < len(node.results) else None,
        )

    def _read(self, values: tuple[int, ...]) -> tuple[Read, ...]:
        return tuple(
            (value, Form.LOCAL)
            if value in self._needed
            else (self._program.behind(value), Form.OUTSIDE)
            for value in values
        )


def _inside(node: Node) -> Iterator[Node]:
    blocks: tuple[Code, ...] = node.blocks
    for block in blocks:
        yield from block.inside()
