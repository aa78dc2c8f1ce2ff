"""What cutting one dimension would give: which products are in loops, and which are summed.

A dimension is the batch of a step where gradients are sums over it: where loops hold products whose
results are partial sums that no later loop waits for, and where more bytes of what has an
argument's shape are sums than are put together from chunks. Cut along the hidden units of a
perceptron, its forward pass has partial sums, too, but the rest waits for them; cut along the
models of an ensemble, each model's gradient is a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..analysis.dimension_flow.flow import Flow
from ..analysis.dimension_flow.result import DimensionFlow, Seed
from ..analysis.dimension_flow.solve import dimension_flow
from ..analysis.program import Node, Program
from ..analysis.signatures.signature import Combine
from ..ir.ops import facts_of


@dataclass(frozen=True)
class CutTrial:
    """A dimension, and what the loops over it would do.

    Attributes:
      flow: the flow of it.
      sums_products: whether products in loops are summed for what comes after all loops.
      sums_gradients: whether in a step these are gradients, which are mostly sums.
      whole_share: the share of all products' FLOPs that would be done on the whole of it, or that
        do not depend on it, though they are no work on sums such as an optimizer's.
      whole_product: the largest of these; None where there is none.
      pieces: how many results of the program would be put together from chunks.
    """

    flow: DimensionFlow
    sums_products: bool
    sums_gradients: bool
    whole_share: float
    whole_product: Node | None
    pieces: int

    @property
    def phases(self) -> int:
        return len(self.flow.phases)

    @property
    def rank(self) -> tuple[float, int, int]:
        """The less the better; of equals the earlier one is taken."""
        return round(self.whole_share, 2), self.phases, self.pieces

    @property
    def is_best(self) -> bool:
        """Whether no other dimension can rank before it."""
        return self.rank <= (0.0, 1, 0)

    @property
    def likeness(self) -> tuple[bool, int, tuple[float, int, int]]:
        """The less the more it is like a batch, of which results of a step have no chunks."""
        return not self.sums_gradients, self.pieces, self.rank


def tried(program: Program, seeds: Sequence[Seed], most_phases: int | None) -> CutTrial:
    """What cutting a dimension gives. Raises TooManyPhasesError."""
    flow = dimension_flow(program, seeds, most_phases=most_phases)
    products = _whole_products(flow)
    summed = _summed(flow)
    return CutTrial(
        flow=flow,
        sums_products=bool(summed),
        sums_gradients=bool(summed) and _are_sums(flow),
        whole_share=sum(node.flops for node in products) / (program.flops or 1.0),
        whole_product=max(products, key=lambda node: node.flops, default=None),
        pieces=sum(found.flow.is_split and found.returned for found in flow.exits),
    )


def _loop_of(flow: DimensionFlow, node: Node) -> int:
    """The loop that an operation is in; 0 outside of all."""
    made = (flow.of(value) for value in node.results)
    return max((each.phase for each in made if not each.is_whole), default=0)


def _whole_products(flow: DimensionFlow) -> list[Node]:
    """Products outside of the loops that other data than sums goes into."""
    restored: set[int] = set()
    found = []
    for node in flow.program.root.nodes:
        if _loop_of(flow, node):
            continue
        reads_pieces = not restored.isdisjoint(node.reads()) or any(
            flow.of(value).is_split for value in _finished(flow, node)
        )
        if reads_pieces:
            restored.update(node.results)
        invariant = all(flow.of(value).is_invariant for value in node.results)
        if node.flops and (invariant or reads_pieces):
            found.append(node)
    return found


def _finished(flow: DimensionFlow, node: Node) -> list[int]:
    """The values that an operation reads whole although loops have chunks or terms of them."""
    fit = flow.fits.get(node.number)
    if fit is None:
        return []
    return [*(node.operands[place] for place in fit.finished), *fit.captured]


def _summed(flow: DimensionFlow) -> list[Node]:
    """The products that are summed for what comes after the loops.

    None where more of them are summed for later loops.
    """
    wanted_in: dict[int, int] = {}
    """By value the last loop that something made of it is in."""
    final: list[Node] = []
    balance = 0.0
    for node in reversed(flow.program.root.nodes):
        phase = _loop_of(flow, node)
        products = list(_sums(flow, node)) if phase and node.flops else []
        if products:
            sums = [value for value in node.results if _is_sum(flow.of(value))]
            if any(wanted_in.get(value, 0) > phase for value in sums):
                balance -= node.flops
            else:
                balance += node.flops
                final += products
        last = max((phase, *(wanted_in.get(value, 0) for value in node.results)))
        for value in node.reads():
            wanted_in[value] = max(wanted_in.get(value, 0), last)
    return final if balance > 0 else []


def _sums(flow: DimensionFlow, node: Node) -> Iterator[Node]:
    """The products, the operation itself or in it, that are summed over the dimension."""
    if facts_of(node.op.name).is_product:
        if any(_is_sum(flow.of(value)) for value in node.results):
            yield node
        return
    for block in node.blocks:
        for inner in block.nodes:
            if inner.flops:
                yield from _sums(flow, inner)


def _are_sums(flow: DimensionFlow) -> bool:
    """Whether of what is returned in an argument's shape more bytes are summed than put together.

    Updates of what has the dimension itself, as weights have their units, are put together.
    """
    program = flow.program
    divided = {
        program.shapes[argument]
        for argument in program.root.arguments
        if flow.of(argument).is_split
    }
    sums = pieces = 0
    for found in flow.exits:
        value = program.index[found.value]
        if _is_sum(found.flow):
            sums += program.bytes_of(program.index[found.smallest])
        elif found.flow.is_split and found.returned and program.shapes[value] in divided:
            pieces += program.bytes_of(value)
    return sums > pieces


def _is_sum(flow: Flow) -> bool:
    return flow.combine is Combine.SUM
