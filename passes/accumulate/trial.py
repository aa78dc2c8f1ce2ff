"""Tries to cut one dimension: which products are in loops, and which are summed.

A dimension is the batch of a step where gradients are sums over it: where loops hold products whose
results are partial sums that no later loop waits for, and where of the results in an argument's
shape more bytes are sums than are concatenated from chunks. Cut along the hidden units of a
perceptron, its forward pass has partial sums, too, but the rest waits for them; cut along the
models of an ensemble, each model's gradient is a chunk.

A program is a training step where it has gradients, which the data flow shows. A layer is a
product, and its gradient is another one:

    y = x @ w            the dimension b of x is passed through to y
    dw = x.T @ dy        b is contracted; dy is computed from y, the result is of w's dimensions

So a product is a gradient's if it contracts a dimension that a layer, a product that it is computed
from, passes through; if it has a dimension of the layer's other operand; and if it reads the
layer's inputs: an operand with the dimension that is computed from the same products, and from
arguments with the dimension that the layer's is computed from. The last condition separates a step
from a network that is only run: there a hidden dimension is passed through by one layer and
contracted by the next, but in the one it comes from its weights, and in the other from weights of
its own; queries and keys have theirs from products.

A gradient of each example has the dimension itself, and the value returned from it has not: it is
summed later, once it is clipped.

A value computed from such products is a gradient or an update of a parameter, and is returned in
the shape of an argument. A loss is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..analysis.dimension_flow.dimensions import ProgramDimensions
from ..analysis.dimension_flow.flow import Flow
from ..analysis.dimension_flow.result import DimensionFlow, Seed
from ..analysis.dimension_flow.solve import dimension_flow
from ..analysis.program import Code, Node, Program
from ..analysis.signatures.signature import Combine
from ..ir.op_facts import Category
from ..ir.ops import facts_of


def has_gradients(program: Program, dimensions: ProgramDimensions) -> bool:
    """Whether the program returns values computed from gradients, in the shape of an argument."""
    shapes = {program.shapes[argument] for argument in program.root.arguments} - {(), None}
    returned = [value for value in program.root.returned if program.shapes[value] in shapes]
    if not returned or not dimensions.products:
        return False
    return _Search(program, dimensions).finds(returned)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A product, and a dimension that it passes through.

    Attributes:
      product: the product, as a source.
      arguments: the arguments with the dimension from which its operands with it are computed.
      having: these operands.
      others: the dimensions of its other operands.
    """

    product: int
    arguments: int
    having: tuple[int, ...]
    others: frozenset[int]


class _Sources:
    """The sources that values are computed from, as bits: arguments and products' results.

    Where products of earlier iterations are left out, each layer of a scan is one of its own.
    """

    def __init__(
        self, program: Program, dimensions: ProgramDimensions, *, earlier_iterations: bool
    ) -> None:
        arguments = program.root.arguments
        self._made_of: dict[int, int] = {value: 1 << at for at, value in enumerate(arguments)}
        self.bits = {
            node.number: 1 << (len(arguments) + at)
            for at, (node, _) in enumerate(dimensions.products)
        }
        self.arguments = (1 << len(arguments)) - 1
        self._carried = -1 if earlier_iterations else self.arguments
        self._walk(program.root)

    def of(self, values: Iterable[int]) -> int:
        found = 0
        for value in values:
            found |= self._made_of.get(value, 0)
        return found

    def products_of(self, values: Iterable[int]) -> int:
        return self.of(values) & ~self.arguments

    def _walk(self, block: Code) -> None:
        for node in block.nodes:
            if node.category is Category.LOOP:
                self._loop(node)
            elif node.blocks:
                self._code(node)
            elif node.category is Category.RELABEL:
                self._pass(node.operands, node.results)
            else:
                made = self.of(node.operands) | self.bits.get(node.number, 0)
                self._made_of.update(dict.fromkeys(node.results, made))

    def _loop(self, node: Node) -> None:
        """Lets a body read in the next iteration what it returns, until nothing changes."""
        body = node.blocks[1]
        self._pass(node.operands, body.arguments)
        while True:
            before = self._sources_of_each(body.arguments)
            self._walk(body)
            self._pass(body.returned, body.arguments, self._carried)
            if self._sources_of_each(body.arguments) == before:
                break
        self._pass(node.operands, node.results)
        self._pass(body.returned, node.results)

    def _code(self, node: Node) -> None:
        for block in node.blocks:
            # The choice of a conditional, whose blocks have no arguments, is none of the sources.
            if block.arguments:
                self._pass(node.operands, block.arguments)
            self._walk(block)
            self._pass(block.returned, node.results)

    def _pass(self, values: Iterable[int], others: Iterable[int], kinds: int = -1) -> None:
        for value, other in zip(values, others, strict=True):
            sources = self._made_of.get(value, 0) & kinds
            self._made_of[other] = self._made_of.get(other, 0) | sources

    def _sources_of_each(self, values: Iterable[int]) -> list[int]:
        return [self._made_of.get(value, 0) for value in values]


class _Search:
    def __init__(self, program: Program, dimensions: ProgramDimensions) -> None:
        self._program = program
        self._dimensions = dimensions
        self._products = [node for node, _ in dimensions.products]
        self._near = _Sources(program, dimensions, earlier_iterations=False)
        self._having: dict[int, int] = {}
        for value in program.root.arguments:
            for dimension in dimensions.of(value):
                self._having[dimension] = self._having.get(dimension, 0) | self._near.of([value])

    def finds(self, returned: Sequence[int]) -> bool:
        """Whether a returned value is computed from a gradient.

        First a product counts that an iteration's own results lead to. A recurrent layer's may
        reach the step's results by the state of the next iteration alone, e.g. a neuron's that
        returns its state before the input is added.
        """
        products = {}
        for node in self._products:
            bit = self._near.bits[node.number]
            behind = [value for value in returned if self._near.of([value]) & bit]
            if behind:
                products[node] = self._summed(node, behind)
        layers: dict[int, list[_Layer]] = {}
        for node in self._products:
            for dimension in self._of_all(node.results):
                layers.setdefault(dimension, []).append(self._layer(node, dimension))
        if any(self._is_gradient(*each, layers, self._near) for each in products.items()):
            return True
        far = _Sources(self._program, self._dimensions, earlier_iterations=True)
        return any(self._is_gradient(*each, layers, far) for each in products.items())

    def _summed(self, node: Node, behind: Iterable[int]) -> frozenset[int]:
        """Returns the dimensions that a product contracts, and those that it and all of its
        operands have, but not all returned values computed from it: those of gradients of each
        example that are summed later."""
        made, kept = self._of_all(node.results), map(self._dimensions.of, behind)
        each = made.intersection(*map(self._dimensions.of, node.operands))
        return (self._of_all(node.operands) - made) | (each - frozenset.intersection(*kept))

    def _layer(self, node: Node, dimension: int) -> _Layer:
        having = [value for value in node.operands if dimension in self._dimensions.of(value)]
        return _Layer(
            self._near.bits[node.number],
            self._near.of(having) & self._having.get(dimension, 0),
            tuple(having),
            self._of_all(value for value in node.operands if value not in having),
        )

    def _is_gradient(
        self, node: Node, summed: Iterable[int], layers: dict[int, list[_Layer]], sources: _Sources
    ) -> bool:
        made, behind = self._of_all(node.results), sources.of(node.operands)
        for dimension in summed:
            having = [value for value in node.operands if dimension in self._dimensions.of(value)]
            for layer in layers.get(dimension, ()):
                if (
                    behind & layer.product
                    and not made.isdisjoint(layer.others)
                    and any(self._reads_the_same(value, layer, sources) for value in having)
                ):
                    return True
        return False

    def _reads_the_same(self, value: int, layer: _Layer, sources: _Sources) -> bool:
        """Whether a value is computed from the sources of the layer's operand, in an iteration and
        in all of them."""
        return bool(self._near.of([value]) & layer.arguments) and all(
            each.products_of([value]) == each.products_of(layer.having)
            for each in (self._near, sources)
        )

    def _of_all(self, values: Iterable[int]) -> frozenset[int]:
        return frozenset[int]().union(*map(self._dimensions.of, values))


@dataclass(frozen=True)
class CutTrial:
    """A dimension, and the effect of the loops over it.

    Attributes:
      sums_products: whether products in loops are summed for values after all loops.
      sums_gradients: whether in a step these are gradients, which are mostly sums.
      whole_share: the share of all products' FLOPs that would be done on the whole of it, or that
        do not depend on it, though they are no work on sums such as an optimizer's.
      whole_product: the largest of these; None where there is none.
      pieces: how many results of the program would be concatenated from chunks.
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
        """Returns the rank: less is better; of equal ones the earlier dimension is taken."""
        return round(self.whole_share, 2), self.phases, self.pieces

    @property
    def is_best(self) -> bool:
        """Whether no other dimension can rank before it."""
        return self.rank <= (0.0, 1, 0)

    @property
    def likeness(self) -> tuple[bool, int, tuple[float, int, int]]:
        """Returns a key: the less, the more the dimension is like a batch."""
        return not self.sums_gradients, self.pieces, self.rank


def tried(program: Program, seeds: Sequence[Seed], most_phases: int | None) -> CutTrial:
    """Tries to cut a dimension. Raises TooManyPhasesError."""
    flow = dimension_flow(program, seeds, most_phases=most_phases)
    products = _whole_products(flow)
    summed = _summed(flow) or _summed(flow, reductions=True)
    return CutTrial(
        flow=flow,
        sums_products=bool(summed),
        sums_gradients=bool(summed) and _are_sums(flow),
        whole_share=sum(node.flops for node in products) / (program.flops or 1.0),
        whole_product=max(products, key=lambda node: node.flops, default=None),
        pieces=sum(found.flow.is_split and found.returned for found in flow.exits),
    )


def _loop_of(flow: DimensionFlow, node: Node) -> int:
    """Returns the loop that an operation is in; 0 outside of all."""
    made = (flow.of(value) for value in node.results)
    return max((each.phase for each in made if not each.is_whole), default=0)


def _whole_products(flow: DimensionFlow) -> list[Node]:
    """Returns products outside of the loops that read other data than sums."""
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
    """Returns values that an operation reads whole although loops have chunks or terms of them."""
    fit = flow.fits.get(node.number)
    if fit is None:
        return []
    return [*(node.operands[place] for place in fit.finished), *fit.captured]


def _summed(flow: DimensionFlow, *, reductions: bool = False) -> list[Node]:
    """Returns the products that are summed for values after the loops.

    None where more of them are summed for later loops. With ``reductions`` products count, too,
    that other operations after them sum, e.g. gradients of each example that are clipped before.
    """
    wanted_in: dict[int, int] = {}
    """By value the last loop that has a value computed from it."""
    final: list[Node] = []
    counted: set[int] = set()
    balance = 0.0
    for node in reversed(flow.program.root.nodes):
        phase = _loop_of(flow, node)
        products, flops = [], 0.0
        if phase and node.flops:
            products, flops = list(_sums(flow, node, reductions)), node.flops
        elif phase and reductions and _reduces(flow, node):
            products = [each for each in _behind(flow, node) if each.number not in counted]
            counted.update(each.number for each in products)
            flops = sum(each.flops for each in products)
        if products:
            sums = [value for value in node.results if _is_sum(flow.of(value))]
            if any(wanted_in.get(value, 0) > phase for value in sums):
                balance -= flops
            else:
                balance += flops
                final += products
        last = max((phase, *(wanted_in.get(value, 0) for value in node.results)))
        for value in node.reads():
            wanted_in[value] = max(wanted_in.get(value, 0), last)
    return final if balance > 0 else []


def _sums(flow: DimensionFlow, node: Node, reductions: bool) -> Iterator[Node]:
    """Yields the products, the operation itself or in it, that are summed over the dimension."""
    if facts_of(node.op.name).is_product:
        if any(_is_sum(flow.of(value)) for value in node.results):
            yield node
        return
    for block in node.blocks:
        for inner in block.nodes:
            if inner.flops:
                yield from _sums(flow, inner, reductions)
            elif reductions and _reduces(flow, inner):
                yield from _behind(flow, inner)


def _reduces(flow: DimensionFlow, node: Node) -> bool:
    """Whether an operation sums arrays over the dimension: a scalar does not count."""
    shapes = flow.program.shapes
    return any(_is_sum(flow.of(value)) and shapes[value] for value in node.results) and not any(
        _is_sum(flow.of(value)) for value in node.operands
    )


def _behind(flow: DimensionFlow, node: Node) -> Iterator[Node]:
    """Yields the products from whose results, in chunks, an operation in a loop is computed."""
    seen = set(node.operands)
    waiting = [*seen]
    while waiting:
        value = waiting.pop()
        maker = flow.program.makers.get(value)
        if maker is None or not flow.of(value).is_split:
            continue
        if maker.flops:
            yield maker
            continue
        new = set(maker.operands) - seen
        seen |= new
        waiting += new


def _are_sums(flow: DimensionFlow) -> bool:
    """Whether more bytes of the results in an argument's shape are summed than concatenated.

    Updates of values with the dimension itself, as weights have their units, are concatenated.
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
