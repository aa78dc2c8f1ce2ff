"""Whether a program is a training step: whether it has gradients, told by how data flows.

A layer is a product, and its gradient is another one:

    y = x @ w            the dimension b of x is passed through to y
    dw = x.T @ dy        b is contracted; dy is made of y, the result is of w's dimensions

So a product is of a gradient where a dimension that it contracts is passed through by a product
that it is made of, a layer, where it has a dimension of the layer's other operand, and where it
reads what the layer reads: an operand with the dimension that is made of the same products, and of
arguments with the dimension that the layer's is made of. The last tells a step from a network that
is only run: there a hidden dimension is passed through by one layer and contracted by the next, but
the one has it of its weights, and the other of weights of its own; queries and keys have theirs of
products.

What is made of such products is a gradient or an update of a parameter, and is returned in the
shape of an argument. A loss is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..analysis.dimension_flow.dimensions import ProgramDimensions
from ..analysis.program import Code, Node, Program
from ..ir.op_facts import Category


def has_gradients(program: Program, dimensions: ProgramDimensions) -> bool:
    """Whether the program returns what is made of gradients, in the shape of an argument."""
    shapes = {program.shapes[argument] for argument in program.root.arguments} - {(), None}
    returned = [value for value in program.root.returned if program.shapes[value] in shapes]
    if not returned or not dimensions.products:
        return False
    return _Search(program, dimensions).finds(returned)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A product, and a dimension that it passes through.

    Attributes:
      product: it, as a source.
      arguments: the arguments with the dimension that its operands with it are made of.
      products: the products that these are made of.
      others: the dimensions of its other operands.
    """

    product: int
    arguments: int
    products: int
    others: frozenset[int]


class _Search:
    """Sources are bits of a number: of each argument, and of each product's result.

    In a loop products of earlier iterations are no sources: each layer of a scan is one of its own.
    """

    def __init__(self, program: Program, dimensions: ProgramDimensions) -> None:
        self._dimensions = dimensions
        arguments = program.root.arguments
        self._made_of: dict[int, int] = {value: 1 << at for at, value in enumerate(arguments)}
        self._products = [node for node, _ in dimensions.products]
        self._bits = {
            node.number: 1 << (len(arguments) + at) for at, node in enumerate(self._products)
        }
        self._arguments = (1 << len(arguments)) - 1
        self._having: dict[int, int] = {}
        for value in arguments:
            for dimension in dimensions.of(value):
                self._having[dimension] = self._having.get(dimension, 0) | self._made_of[value]
        self._walk(program.root)

    def finds(self, returned: Iterable[int]) -> bool:
        wanted = self._sources(returned)
        layers: dict[int, list[_Layer]] = {}
        for node in self._products:
            for dimension in self._of_all(node.results):
                layers.setdefault(dimension, []).append(self._layer(node, dimension))
        return any(
            self._is_gradient(node, layers)
            for node in self._products
            if wanted & self._bits[node.number]
        )

    def _layer(self, node: Node, dimension: int) -> _Layer:
        having = [value for value in node.operands if dimension in self._dimensions.of(value)]
        others = [value for value in node.operands if value not in having]
        sources = self._sources(having)
        return _Layer(
            self._bits[node.number],
            sources & self._having.get(dimension, 0),
            sources & ~self._arguments,
            self._of_all(others),
        )

    def _is_gradient(self, node: Node, layers: dict[int, list[_Layer]]) -> bool:
        made, behind = self._of_all(node.results), self._sources(node.operands)
        for dimension in self._of_all(node.operands) - made:
            sources = [
                self._made_of.get(value, 0)
                for value in node.operands
                if dimension in self._dimensions.of(value)
            ]
            for layer in layers.get(dimension, ()):
                if (
                    behind & layer.product
                    and not made.isdisjoint(layer.others)
                    and any(
                        each & layer.arguments and each & ~self._arguments == layer.products
                        for each in sources
                    )
                ):
                    return True
        return False

    def _of_all(self, values: Iterable[int]) -> frozenset[int]:
        return frozenset[int]().union(*map(self._dimensions.of, values))

    def _sources(self, values: Iterable[int]) -> int:
        found = 0
        for value in values:
            found |= self._made_of.get(value, 0)
        return found

    def _walk(self, block: Code) -> None:
        for node in block.nodes:
            if node.category is Category.LOOP:
                self._loop(node)
            elif node.blocks:
                self._code(node)
            elif node.category is Category.RELABEL:
                self._pass(node.operands, node.results)
            else:
                made = self._sources(node.operands) | self._bits.get(node.number, 0)
                self._made_of.update(dict.fromkeys(node.results, made))

    def _loop(self, node: Node) -> None:
        """What a body returns it may read in the next iteration, and so on."""
        body = node.blocks[1]
        self._pass(node.operands, body.arguments)
        while True:
            before = self._sources_of_each(body.arguments)
            self._walk(body)
            self._pass(body.returned, body.arguments, self._arguments)
            if self._sources_of_each(body.arguments) == before:
                break
        self._pass(node.operands, node.results)
        self._pass(body.returned, node.results)

    def _code(self, node: Node) -> None:
        for block in node.blocks:
            # Of a conditional, whose blocks have no arguments, the choice is none of the sources.
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
