"""A program and a flow through it, from which loops are planned: producers, phases, repeated work.

Values are numbers, as in `Program`.
"""

from __future__ import annotations

from collections.abc import Collection

from ..analysis.dimension_flow.cuts import CutSources
from ..analysis.dimension_flow.flow import WHOLE, Flow
from ..analysis.dimension_flow.result import DimensionFlow
from ..analysis.program import Node, Program
from ..analysis.purity import is_table
from ..ir.op_facts import Category
from ..ir.ops import facts_of

_LIGHT = frozenset({Category.CONSTANT, Category.ELEMENTWISE, Category.MOVEMENT})


class LoopProgram:
    """The program that loops are planned from; values are numbers.

    Attributes:
      program: the program, or the part of one, that the flow goes through.
      inner: the values of code inside of operations.
      seeds: where the dimension is given, in values that operations make.
      sources: the values that cuts are computed from.
    """

    def __init__(
        self, flow: DimensionFlow, remade_bytes: int | None = None, held: Collection[int] = ()
    ) -> None:
        """With ``remade_bytes`` loops compute values again that save so many bytes (`is_remade`),
        but never the whole values that are ``held`` for them."""
        self.flow = flow
        self._held_whole = frozenset(held)
        self._remade_bytes = remade_bytes
        self.program: Program = flow.program
        root = self.program.root
        self._makers = root.makers
        self.inner: set[int] = set()
        self._held: dict[int, frozenset[int]] = {}
        self._phases: dict[int, int] = {}
        self.seeds = {self.program.index[seed.value] for seed in flow.seeds} & self._makers.keys()
        for node in root.nodes:
            self._phases[node.number] = self._phase(node)
            if node.blocks and self._phases[node.number]:
                self._read_code(node)
        self.sources = CutSources(self.program, self._flow_as_made)
        self._behind = {
            result: operand
            for node in root.nodes
            if node.category is Category.RELABEL and self._phases[node.number]
            for result, operand in zip(node.results, node.operands, strict=True)
        }
        self._bytes_inside = self._least_bytes({})
        self._bytes_beside_arguments = self._least_bytes(dict.fromkeys(root.arguments, 0))
        self._loops_of_whole = self._find_loops_of_whole()

    @property
    def nodes(self) -> list[Node]:
        return self.program.root.nodes

    @property
    def phases(self) -> int:
        """Returns the number of loops."""
        return max(self._phases.values(), default=0)

    def of(self, value: int) -> Flow:
        return self.flow.of(value)

    def maker(self, value: int) -> Node | None:
        """Returns the maker of a value in the program's own block; None for an argument."""
        return self._makers.get(value)

    def any_maker(self, value: int) -> Node | None:
        """Returns the operation that makes a value, at any nesting; None for an argument."""
        return self.program.makers.get(value)

    def phase_of(self, node: Node) -> int:
        """Returns the loop that an operation of the program's own block is in; 0 if in none."""
        return self._phases[node.number]

    def held(self, node: Node) -> frozenset[int]:
        """Returns values that code around an operation reads in full, not being whole."""
        return self._held.get(node.number, frozenset())

    def held_inside(self, node: Node) -> frozenset[int]:
        """Returns values that an operation's own code reads in full although they are not whole."""
        fit = self.flow.fits.get(node.number)
        return self.held(node) | frozenset(() if fit is None else fit.captured)

    def behind(self, value: int) -> int:
        """Returns the value outside of loops: for a result of a repeated barrier, its operand.

        A barrier in a loop separates computations there; outside of it there is none.
        """
        while value in self._behind:
            value = self._behind[value]
        return value

    def is_sunk(self, value: int) -> bool:
        """Whether a loop computes a whole value again, since its operands take less memory.

        This holds for the same data in another order too, of which products read the original:
        outside of the loop it would be a copy.
        """
        least = self._bytes_inside.get(value)
        if least is None or value in self._held_whole:
            return False
        reorders = self._makers[value].name in ("stablehlo.reshape", "stablehlo.transpose")
        return reorders or least < self.program.bytes_of(value)

    def is_remade(self, value: int) -> bool:
        """Whether a loop that reads all of a whole value computes it again, mostly from arguments.

        These are in memory anyway, and the copy of one trip is not held for all: weights that are
        cast, masked, normalized, or reversed for a convolution's backward pass. A loop written by
        hand does the same.
        """
        if self.is_sunk(value):
            return True
        least = self._bytes_beside_arguments.get(value)
        if self._remade_bytes is None or least is None or value in self._held_whole:
            return False
        return self.program.bytes_of(value) - least >= self._remade_bytes

    def loop_of_whole(self, value: int) -> int:
        """Returns the loop that makes a whole value too, or by light work on such; 0 for none."""
        return self._loops_of_whole.get(self.behind(value), 0)

    def _find_loops_of_whole(self) -> dict[int, int]:
        """Finds e.g. the count of steps of a loop that carries a chunk, and its uses.

        Only light work is done again in the loop, once a chunk.
        """
        found: dict[int, int] = {}
        for node in self.nodes:
            phase = self._phases[node.number]
            if node.category is Category.RELABEL:
                continue
            if not phase and found and self._is_light(node):
                phase = max((found.get(self.behind(value), 0) for value in node.reads()), default=0)
            if phase:
                made = (value for value in node.results if self.of(value).is_whole)
                found.update(dict.fromkeys(made, phase))
        return found

    def _phase(self, node: Node) -> int:
        if not self.seeds.isdisjoint(node.results):
            return 0
        flows = (self.of(value) for value in node.results)
        return max((flow.phase for flow in flows if not flow.is_whole), default=0)

    def _flow_as_made(self, value: int) -> Flow:
        """Returns the flow of a whole value for one that is given as cut, and made whole."""
        return WHOLE if value in self.seeds else self.of(value)

    def _read_code(self, node: Node) -> None:
        held = self.held_inside(node)
        for block in node.blocks:
            self.inner.update(block.defined())
            for inner in block.inside():
                if held:
                    self._held[inner.number] = held

    def _least_bytes(self, known: dict[int, int]) -> dict[int, int]:
        """Returns, by whole result of light work, bytes that a loop holds that computes it again.

        ``known`` has the bytes of other values.
        """
        least = dict(known)
        for node in self.nodes:
            if not self._is_light(node):
                continue
            [value] = node.results
            sources = set(map(self.behind, node.operands))
            inside = sum(least.get(read, self.program.bytes_of(read)) for read in sources)
            least[value] = min(self.program.bytes_of(value), inside)
        return {value: size for value, size in least.items() if value not in known}

    def _is_light(self, node: Node) -> bool:
        if node.effects or len(node.results) != 1 or node.blocks:
            return False
        if facts_of(node.op.name).category not in _LIGHT or is_table(node.op):
            return False
        return self.of(node.results[0]).is_whole
