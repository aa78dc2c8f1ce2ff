"""Models the memory of a block with regions in loops, by hloom's model of XLA's memory.

A loop is one operation in the trace of its block: it reads the region's inputs, makes the results
that are read elsewhere, and has inside it the memory of one of its iterations.

The model adds the sums that the loop carries, in their types (`Accumulators`), the values gathered
before it, and the time of the region's products on the device, whole and in chunks (`RegionWork`).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from jax.extend.mlir import ir

from ..analysis.dimension_flow.result import DimensionFlow
from ..analysis.memory_model.layouts import transposing_bytes
from ..analysis.memory_model.peak import Peak, buffer_timeline, simulate
from ..analysis.memory_model.trace import OpTrace
from ..analysis.memory_model.tracer import trace_block
from ..analysis.program import BlockPrograms, Node, Program
from ..framework.target import Speed
from ..ir.op_facts import BufferUse
from ..ir.ops import facts_of
from ..ir.types import element_bits
from ..phase_loops.device_terms import DeviceTerms, device_terms
from ..phase_loops.exits import own_type, widened
from ..phase_loops.gathers import Gather
from .region import DimensionRegion, RegionFinder


@dataclass(frozen=True)
class LiveValue:
    """A value that is in memory at the peak.

    Attributes:
      number: its number in its block.
      bytes: its bytes on one device.
    """

    block: BlockMemory
    number: int
    bytes: int

    @property
    def value(self) -> ir.Value:
        return self.block.graph.values[self.number]


class BlockMemory:
    """The memory of a block and of the blocks in it; changes as regions become loops.

    Attributes:
      graph: the unmodified block.
      trace: the block with its loops.
    """

    def __init__(
        self,
        block: ir.Block,
        programs: BlockPrograms,
        parent: tuple[BlockMemory, int] | None = None,
    ) -> None:
        self.graph, self._programs = programs[block], programs
        self._parent = parent
        self._inside: dict[int, list[BlockMemory]] = {}
        for position, op in enumerate(self.graph.ops):
            if facts_of(op.name).holds_code:
                self._inside[position] = [
                    BlockMemory(inner, programs, (self, position))
                    for region in op.regions
                    for inner in region.blocks
                ]
        position_of = {op: position for position, op in enumerate(self.graph.ops)}
        self.trace = trace_block(self.graph, lambda op: self._around(position_of[op]))
        self._positions = list(range(len(self.trace.uses)))
        """By operation of the trace, its position in the graph; a loop has its last operation's."""
        self._peak: Peak | None = None

    @property
    def block(self) -> ir.Block:
        return self.graph.block

    @functools.cached_property
    def finder(self) -> RegionFinder:
        return RegionFinder(self.graph)

    @property
    def peak(self) -> Peak:
        if self._peak is None:
            self._peak = simulate(self.trace)
        return self._peak

    def _around(self, position: int) -> int:
        """Returns the bytes inside an operation with code in it."""
        inside = max(block.peak.bytes for block in self._inside[position])
        return max(inside, transposing_bytes(self.graph.ops[position], self._programs))

    def alive(self) -> Iterator[LiveValue]:
        """Yields the values in memory at the peak, here and in the code that runs then."""
        for value, size_bytes in self.peak.alive:
            yield LiveValue(self, value, size_bytes)
        if self._positions:
            inside = self._inside.get(self._positions[self.peak.position])
            if inside:
                yield from max(inside, key=lambda block: block.peak.bytes).alive()

    def put(self, trace: OpTrace, positions: list[int]) -> None:
        self.trace, self._positions = trace, positions
        self._changed()

    def _changed(self) -> None:
        self._peak = None
        if self._parent is not None:
            outer, position = self._parent
            place = outer._positions.index(position)
            outer.trace.inner[place] = outer._around(position)
            outer._changed()

    def collapsed(
        self, nodes: Collection[int], repeated: Collection[int]
    ) -> tuple[OpTrace, list[int], int]:
        """Returns the trace with one operation instead of some, by their positions in the graph.

        Operations that do not depend on them run before it. Also returns the positions, and the
        place of the new one. ``repeated`` are values that it does not read, although it is computed
        from them.
        """
        trace, taken = self.trace, set(nodes)
        inside = [n for n, position in enumerate(self._positions) if position in taken]
        chosen, last = set(inside), inside[-1]
        made = {value for n in inside for value in trace.makes[n]}
        reached = set(made)
        before, after = [], []
        for n in range(len(trace.uses)):
            if n in chosen:
                continue
            if n <= last and reached.isdisjoint(trace.reads[n]):
                before.append(n)
            else:
                after.append(n)
                if n <= last:
                    reached.update(trace.makes[n])
        free = made | set(repeated)
        read = dict.fromkeys(value for n in inside for value in trace.reads[n] if value not in free)
        outside = {value for n in (*before, *after) for value in trace.reads[n]} | trace.returned
        order = [*before, last, *after]
        found = replace(
            trace,
            uses=[trace.uses[n] for n in order],
            reads=[trace.reads[n] for n in order],
            makes=[trace.makes[n] for n in order],
            inner=[trace.inner[n] for n in order],
        )
        place = len(before)
        found.uses[place] = BufferUse.WHOLE
        found.reads[place] = list(read)
        found.makes[place] = [v for n in inside for v in trace.makes[n] if v in outside]
        found.inner[place] = 0
        return found, [self._positions[n] for n in order], place

    def iteration(self, region: DimensionRegion, trips: int) -> OpTrace:
        """Returns the trace of an iteration of a region's loop: with chunks of split values.

        A partial value takes no memory: it is added to the sum in place.
        """
        flow, chosen = region.flow, {node.number for node in region.nodes}
        places = [n for n, position in enumerate(self._positions) if position in chosen]
        sizes = list(self.trace.sizes)
        root = flow.program.root
        made = {value for node in region.nodes for value in node.results}
        for value in {*made, *root.arguments}:
            found = flow.of(value)
            if found.is_split or (value in made and value in region.large):
                sizes[value] = -(-sizes[value] // trips)
            elif found.is_partial:
                sizes[value] = 0
        return OpTrace(
            uses=[self.trace.uses[n] for n in places],
            reads=[self.trace.reads[n] for n in places],
            makes=[self.trace.makes[n] for n in places],
            sizes=sizes,
            inner=[0] * len(places),
            fills_apart_bytes=self.trace.fills_apart_bytes,
            copies_fills=self.trace.copies_fills,
            writes_over=self.trace.writes_over,
            inputs=frozenset(root.arguments),
            returned=frozenset(root.returned),
        )


class LoopMemory:
    """The memory of a block with one more region in a loop; `take` applies it.

    Attributes:
      rest_bytes: the peak of everything but the loop.
      around_bytes: the bytes in memory while it runs, without those inside the loop.
    """

    def __init__(self, memory: BlockMemory, region: DimensionRegion) -> None:
        self._memory, self._region = memory, region
        inside = [
            node.number for node in region.nodes if not region.repeated.issuperset(node.results)
        ]
        found = memory.collapsed(inside, region.repeated)
        self._trace, self._positions, self._place = found
        timeline = buffer_timeline(self._trace)
        self.rest_bytes = self.around_bytes = 0
        for position, alive_bytes in zip(timeline.positions, timeline.bytes, strict=True):
            if position == self._place:
                self.around_bytes = alive_bytes
            else:
                self.rest_bytes = max(self.rest_bytes, alive_bytes)
        self._iterations: dict[int, int] = {}

    def along(self, region: DimensionRegion) -> LoopMemory:
        """Returns the memory for another dimension of the same operations."""
        found = copy.copy(self)
        found._region, found._iterations = region, {}
        return found

    def iteration_bytes(self, trips: int) -> int:
        """Returns the memory of one of ``trips`` iterations."""
        if trips not in self._iterations:
            self._iterations[trips] = simulate(self._memory.iteration(self._region, trips)).bytes
        return self._iterations[trips]

    def loop_bytes(self, trips: int, beside: int = 0) -> int:
        """Returns the bytes in memory while the loop runs, and ``beside`` bytes in addition."""
        return self.around_bytes + self.iteration_bytes(trips) + beside

    def take(self, trips: int, beside: int = 0) -> None:
        """Makes the loop one of the block."""
        self._trace.inner[self._place] = self.iteration_bytes(trips) + beside
        self._memory.put(self._trace, self._positions)


class Accumulators:
    """The types of sums for one region; as a function the type of a partial value's sum.

    Float32 is the type of a sum of narrower numbers where all such accumulators together take less
    than the largest product that the loop avoids, as it is for the gradient of a head's weights
    where there are more than twice as many tokens as features; and where the sum is converted to
    float32 right away, so that the accumulator is the result. Others have their own type.

    Where the region sums over an axis that devices have parts of, each can add up its own terms,
    and sharded values that it reads can be gathered before the loop (``once``). Otherwise they
    exchange them with each chunk.

    Attributes:
      beside_bytes: the bytes of accumulators besides the results that they are converted to, and of
        gathered values.
      gathers: the values that are gathered before the loop.
      is_once: whether devices would otherwise exchange something with each chunk.
    """

    def __init__(
        self, region: DimensionRegion, gathers: Sequence[Gather] = (), *, once: bool = True
    ) -> None:
        flow = region.flow
        self._program = program = flow.program
        self._converted = {
            node.op.operands[0]
            for node in region.nodes
            if node.name == "stablehlo.convert" and flow.of(node.operands[0]).is_partial
        }
        saved = max(
            [
                program.bytes_of(value)
                for node in region.nodes
                for value in node.results
                if facts_of(node.name).is_product and value in region.large
            ],
            default=0,
        )
        self.gathers = tuple(gathers) if once else ()
        self._flow = flow if once else None
        sums = [value for value in program.root.returned if flow.of(value).is_partial]
        for self._widens in (True, False):
            self.beside_bytes = sum(map(self._beside_bytes, sums))
            if self.beside_bytes < saved:
                break
        self.is_once = bool(self.gathers) or any(
            self.terms(program.values[value]) is not None for value in sums
        )
        self.beside_bytes += sum(each.size for each in self.gathers)

    def __call__(self, value: ir.Value) -> ir.Type:
        wide = self._widens or value in self._converted
        return widened(value) if wide else own_type(value)

    def terms(self, value: ir.Value) -> DeviceTerms | None:
        """Returns how each device adds up its own terms of a value; None if they exchange them."""
        if self._flow is None:
            return None
        return device_terms(value, self._flow, self._program, self._program.device.shardings)

    def _beside_bytes(self, number: int) -> int:
        """Returns the bytes of a value's accumulator besides the result."""
        value = self._program.values[number]
        terms = self.terms(value)
        if terms is not None:
            return terms.local_elements(value.type) * (element_bits(self(value)) or 0) // 8
        return _wide_bytes(self._program, number) if self._widens else 0


def _wide_bytes(program: Program, value: int) -> int:
    """Returns the bytes of a float32 accumulator of a value; 0 where the value is no narrower."""
    own, wide = own_type(program.values[value]), widened(program.values[value])
    if own == wide:
        return 0
    return program.bytes_of(value) * (element_bits(wide) or 0) // (element_bits(own) or 1)


FILLED = 1.1
"""Products in chunks fill the device if they take no more than this factor of the time of whole
ones. Chunks of a thousand tokens of a head do so on an H100."""


class RegionWork:
    """The matrix products of a region."""

    def __init__(self, region: DimensionRegion, speed: Speed) -> None:
        self._flow: DimensionFlow = region.flow
        self._speed = speed
        self._sizes = region.flow.program.device.sizes
        self._products = [node for node in region.nodes if facts_of(node.op.name).is_product]

    def seconds(self, trips: int) -> float:
        """Returns the roofline time of all products, each done in so many chunks."""
        return sum(self._product_s(node, trips) for node in self._products)

    def fills(self, trips: int) -> bool:
        """Whether products in so many chunks take hardly more time than whole ones."""
        return self.seconds(trips) <= FILLED * self.seconds(1)

    def _product_s(self, node: Node, trips: int) -> float:
        """Returns a product's time: split values are read or written once; weights, and sums of
        gradients, in each trip."""
        values = self._flow.program.values
        bits, moved_bytes = 0, 0.0
        for value in (*node.operands, *node.results):
            size, flow = self._sizes.of(values[value]), self._flow.of(value)
            if flow.is_split:
                moved_bytes += size.bytes / trips
            elif flow.is_partial and trips > 1:
                moved_bytes += 2 * size.bytes
            else:
                moved_bytes += size.bytes
        for value in node.operands:
            bits = max(bits, self._sizes.of(values[value]).bits)
        work_s = node.flops / trips / self._speed.matrix_rate(bits)
        moved_s = moved_bytes / self._speed.bytes_per_s
        both_s = max(work_s, moved_s) if self._speed.overlaps else work_s + moved_s
        return trips * max(both_s, self._speed.kernel_s)
