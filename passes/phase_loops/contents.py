"""Finds the operations that the body of a loop holds, and the values that each of them reads.

A value is read in a loop in one of three forms: as the loop makes it (`Form.LOCAL`), as it is known
outside of the loop (`Form.OUTSIDE`), or as a part, cut along an axis, of a whole value. The part of
a value that only loops read is computed from parts of its operands, where those give it.

Parts of a loop or a conditional that do not depend on the dimension are done once by themselves.
A scan over layers may carry a random key beside the data, and what is drawn from the last key is
read by a loop over chunks again: code, or work too heavy to repeat with every chunk. So the key has
to be known before that loop. The key depends on no chunk: a loop that carries only the values that
it is computed from, as a rule a key and a counter, computes it before.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ..analysis.dimension_flow.cuts import CutStep
from ..analysis.dimension_flow.flow import Flow
from ..analysis.dimension_flow.result import DimensionFlow
from ..analysis.program import Code, Node
from ..analysis.signatures.signature import AxisLayout
from ..framework.errors import NotPossibleError
from ..ir.op_facts import Category
from ..ir.ops import facts_of
from .program import LoopProgram

IOTA = "stablehlo.iota"


class Form(enum.Enum):
    """How a value is read in a loop, if not as a part that is cut."""

    LOCAL = "local"
    OUTSIDE = "outside"


Read = tuple[int, Form | AxisLayout]
"""A value by number, and its form."""


@dataclass(frozen=True, slots=True)
class OperationCopy:
    """An operation in the body of a loop.

    Attributes:
      node: the operation.
      layout: of a copy that makes a part of a whole result, the part; None of one that makes its
        results as the flow gives them.
      reads: the values of its operands.
      returned: the results of each block of its code; empty for a copy that makes a part.
      places: of a copy that makes some of the results only, which ones; of a barrier and a loop
        also which operands it has. None of one that makes them all.
    """

    node: Node
    layout: AxisLayout | None
    reads: tuple[Read, ...]
    returned: tuple[tuple[Read, ...], ...] = ()
    places: tuple[int, ...] | None = None

    @property
    def results(self) -> tuple[int, ...]:
        """Returns the values that it makes."""
        if self.places is None:
            return self.node.results
        return tuple(self.node.results[place] for place in self.places)


@dataclass
class LoopCopies:
    """The contents of one loop.

    Attributes:
      phase: the loop.
      by_node: the copies of each operation, by its number, however deeply nested.
      aliases: parts that are the same as those of other values.
      slices: parts that are cut from whole values, each with the form of its source.
      outside: values that are read as they are known outside, in order.
    """

    phase: int
    by_node: dict[int, list[OperationCopy]] = field(default_factory=dict)
    aliases: dict[Read, Read] = field(default_factory=dict)
    slices: dict[Read, Read] = field(default_factory=dict)
    outside: dict[int, None] = field(default_factory=dict)


class CopyFinder:
    """Finds the contents of the loop of one phase.

    ``needs_outside`` is called with each value that has to be known outside; ``is_made_outside``
    says which whole values are known there anyhow, so that cutting them costs nothing.
    """

    def __init__(
        self,
        program: LoopProgram,
        phase: int,
        needs_outside: Callable[[int], None],
        is_made_outside: Callable[[int], bool],
    ) -> None:
        self._found = LoopCopies(phase)
        self._barriers: dict[int, tuple[Node, dict[int, Read]]] = {}
        self._program = program
        self._flow: DimensionFlow = program.flow
        self._phase = phase
        self._needs_outside = needs_outside
        self._is_made_outside = is_made_outside
        self._seen: set[Read] = set()
        self._waiting: list[Read] = []

    def find(self, exits: Iterable[int]) -> LoopCopies:
        """Finds the contents of the loop that these values leave. Raises NotPossibleError."""
        for value in exits:
            self._want((value, Form.LOCAL))
            while self._waiting:
                self._find(*self._waiting.pop())
        for number, (node, by_place) in self._barriers.items():
            places = tuple(sorted(by_place))
            reads = tuple(by_place[place] for place in places)
            self._found.by_node[number] = [OperationCopy(node, None, reads, places=places)]
        return self._found

    def of(self, value: int) -> Flow:
        return self._program.of(value)

    def local(self, value: int) -> Read:
        """Returns how a loop reads its chunk or term of a value."""
        flow = self.of(value)
        if value in self._program.inner or self._is_local(value, flow):
            return value, Form.LOCAL
        if flow.layout is None:
            node = self._program.maker(value)
            raise NotPossibleError(
                f"phase {self._phase} would have to combine the terms of phase {flow.phase} again",
                None if node is None else node.op,
            )
        return value, flow.layout

    def _is_local(self, value: int, flow: Flow) -> bool:
        """Whether the loop computes a value, instead of cutting it from a known one."""
        node = self._program.maker(value)
        if node is None or value in self._program.seeds:
            return False
        if self._program.behind(value) != value:
            return True
        return flow.given or self._program.phase_of(node) == self._phase

    def _whole(self, value: int, *, cut: bool = False) -> Read:
        """Returns how a loop reads all of a value, to ``cut`` a part of it or unchanged."""
        program = self._program
        value = program.behind(value)
        if value in program.inner:
            return value, Form.LOCAL
        made_here = program.loop_of_whole(value) == self._phase
        is_local = made_here or (program.is_sunk if cut else program.is_remade)(value)
        if self.of(value).is_whole and is_local:
            return value, Form.LOCAL
        return value, Form.OUTSIDE

    def _read(self, node: Node, value: int, layout: AxisLayout | None, held: bool) -> Read:
        """Returns how an operation reads a value; ``held`` if known in full though not whole."""
        if held or self.of(value).is_whole:
            if layout is not None:
                return value, layout
            if held:
                return self._program.behind(value), Form.OUTSIDE
            return self._whole(value)
        return self.local(value)

    def _want(self, read: Read) -> None:
        if read not in self._seen:
            self._seen.add(read)
            self._waiting.append(read)

    def _find(self, value: int, form: Form | AxisLayout) -> None:
        if form is Form.OUTSIDE:
            self._found.outside[value] = None
            self._needs_outside(value)
        elif form is Form.LOCAL:
            node = self._program.any_maker(value)
            if self._program.behind(value) != value:
                assert node is not None
                self._copy_barrier(node, node.results.index(value))
            elif node is not None:
                self._copy(node)
        else:
            self._cut(value, form)

    def _copy_barrier(self, node: Node, place: int) -> None:
        """Copies the part of a barrier that the loop reads: other operands may be whole, or of
        other loops.
        """
        read = self.local(node.operands[place])
        self._barriers.setdefault(node.number, (node, {}))[1][place] = read
        self._want(read)

    def _copy(self, node: Node) -> None:
        """Copies the operation as the flow gives it, with all code in it."""
        copies = self._found.by_node.setdefault(node.number, [])
        if any(copy.layout is None for copy in copies):
            return
        if node.is_call:
            raise NotPossibleError("a function that is called is not cut", node.op)
        if node.effects:
            raise NotPossibleError("it has side effects, which a loop would repeat", node.op)
        fit = self._flow.fits.get(node.number)
        finished = frozenset(() if fit is None else fit.finished)
        cuts = dict(() if fit is None else fit.cuts)
        held = self._program.held(node)
        reads = tuple(
            self._read(node, value, cuts.get(place), place in finished or value in held)
            for place, value in enumerate(node.operands)
        )
        returned = tuple(self._returned(node, block) for block in node.blocks)
        copies.append(OperationCopy(node, None, reads, returned))
        for read in itertools.chain(reads, *returned):
            self._want(read)

    def _returned(self, node: Node, block: Code) -> tuple[Read, ...]:
        """Returns how the end of a block of an operation's code reads the block's results."""
        if node.category is Category.LOOP and block is node.blocks[0]:
            return (self._whole(block.returned[0]),)
        held = self._program.held_inside(node)
        return tuple(
            self._read(node, value, None if layout is None else layout, value in held)
            for value, layout in (
                (value, self._wanted_layout(value, result, held))
                for value, result in zip(block.returned, node.results, strict=True)
            )
        )

    def _wanted_layout(self, value: int, result: int, held: frozenset[int]) -> AxisLayout | None:
        """Returns the part that code returns of a whole value in it."""
        layout = self.of(result).layout
        return layout if self.of(value).is_whole or value in held else None

    def _cut(self, value: int, layout: AxisLayout) -> None:
        read: Read = (value, layout)
        behind = self._program.behind(value)
        if behind != value:
            self._found.aliases[read] = behind, layout
            self._want((behind, layout))
            return
        step = self._step(value, layout)
        if step is None:
            base: Read = (value, Form.OUTSIDE)
            if self.of(value).is_whole:
                base = self._whole(value, cut=True)
            self._found.slices[read] = base
            self._want(base)
            return
        if step.node is None:
            [source] = step.operands.values()
            self._found.aliases[read] = source
            self._want(source)
            return
        reads: tuple[Read, ...] = tuple(
            step.operands[place] if place in step.operands else self._whole(operand)
            for place, operand in enumerate(step.node.operands)
        )
        copies = self._found.by_node.setdefault(step.node.number, [])
        copies.append(OperationCopy(step.node, layout, reads))
        for each in reads:
            self._want(each)

    def _step(self, value: int, layout: AxisLayout) -> CutStep | None:
        program = self._program
        whole = self.of(value).is_whole or value in program.seeds
        if not whole:
            return None
        # To read a part costs nothing, unless the value is made again from less, e.g. a mask.
        made_outside = value not in program.inner and self._is_made_outside(value)
        if made_outside and not program.is_sunk(value):
            return None
        node = program.any_maker(value)
        if node is not None and node.op.name == IOTA:
            return CutStep(node, {})
        step = program.sources.step(value, layout)
        if step is None or step.node is None:
            return step
        light = facts_of(step.node.op.name).category in _CUTTABLE
        return step if light and len(step.node.results) == 1 and not step.node.effects else None


_CUTTABLE = frozenset(
    {
        Category.CONSTANT,
        Category.CONTRACTION,
        Category.ELEMENTWISE,
        Category.INDEXED,
        Category.MOVEMENT,
        Category.REDUCTION,
        Category.RELABEL,
    }
)
"""Operations whose parts cost no more than their share of the whole."""


@dataclass(frozen=True)
class PartApart:
    """A part of an operation that is computed before all loops.

    Attributes:
      node: the operation.
      values: the results of it that are read from the part.
      copies: the operations in the part.
    """

    node: Node
    values: tuple[int, ...]
    copies: LoopCopies

    @property
    def reads(self) -> tuple[int, ...]:
        """Returns the values that it reads from outside."""
        return tuple(self.copies.outside)


def parts_apart(program: LoopProgram) -> list[PartApart]:
    """Returns the parts that loops need before they begin, and compute too, in order."""
    wanted: dict[int, int] = {}
    """By value, the first loop that needs it to be known before."""
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
        part = _PartFinder(program, node).part(tuple(early)) if early else None
        if part is not None:
            found.append(part)
            want(part.reads, min(early.values()))
    found.reverse()
    return found


_DIVIDED = frozenset({Category.RELABEL, Category.CONDITIONAL, Category.LOOP})
"""Rules of operations that can be written with some of their results only."""


class _PartFinder:
    """Finds the operations that some whole results of an operation are computed from."""

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
        """Returns the part that makes these values; None where they have no separate part."""
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
        """Whether an operation can make one of its results alone; its needs are queued."""
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
