"""Finds products to compute before a loop begins, because they free more memory than they take.

A loss head makes two products of the gradient of its logits: the initial value of the backward
loop, and the gradient of its weights. XLA is free to compute the latter after the loop, to overlap
exchanges there, and keeps the logits' gradient meanwhile, which is several times as large. With a
barrier the product comes first and is kept instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.program import Node, Program
from ..analysis.reach import reached
from ..analysis.shardings.shardings import Shardings
from ..ir import walk
from ..ir.op_facts import Category
from ..ir.ops import facts_of

_LIGHT = frozenset({Category.ELEMENTWISE, Category.MOVEMENT})


@dataclass(frozen=True)
class EarlyWork:
    """The work before a loop.

    Attributes:
      ops: its operations, in the order of the text.
      made: its results that others read, none of which is before the loop.
    """

    ops: tuple[ir.Operation, ...] = ()
    made: tuple[ir.Value, ...] = ()


def early_work(
    program: Program, loop: Node, shardings: Shardings, devices: int, done: Iterable[ir.Operation]
) -> EarlyWork:
    """Finds the products of a block that its loop should wait for.

    Each needs no result of the loop, and is the last to read values that are larger than its
    result; of values of the batch a device has its part, one in ``devices``. The operations that
    earlier loops wait for are ``done``: otherwise two loops would move the same product.
    """
    search = _Search(program, loop, done)
    ops: dict[int, Node] = {}
    for node in program.root.nodes:
        if node.flops and not node.blocks and node.number not in search.there:
            work = search.work(node)
            if work is None:
                continue
            freed = sum(map(program.bytes_of, search.freed(work))) // devices
            left = [(program.values[value], program.bytes_of(value)) for value in search.left(work)]
            if freed > sum(int(size * shardings.share(value)) for value, size in left):
                ops |= {each.number: each for each in work}
    done_now = [ops[number] for number in sorted(ops)]
    # Of all together: operands of one product from another's work come before the loop, too.
    made = tuple(program.values[value] for value in search.left(done_now))
    return EarlyWork(tuple(each.op for each in done_now), made)


class _Search:
    def __init__(self, program: Program, loop: Node, done: Iterable[ir.Operation]) -> None:
        self._program = program
        self._nodes = program.root.nodes
        self._loop = loop
        self._returned = set(program.root.returned)
        earlier = {walk.key(op) for op in done}
        numbers = [node.number for node in self._nodes if walk.key(node.op) in earlier]
        self.there = reached([loop.number, *numbers], self._makers)
        """The operations that the loop needs, the loop itself, and those done, by number."""

    def _makers(self, number: int) -> list[int]:
        makers = map(self._program.maker, self._nodes[number].reads())
        return [maker for maker in makers if maker is not None]

    def work(self, product: Node) -> list[Node] | None:
        """Returns a product, the light work that it needs, and light work on it before the loop.

        None where it needs another operation that is not before the loop.
        """
        found: dict[int, Node] = {}
        waiting = [product]
        while waiting:
            node = waiting.pop()
            found[node.number] = node
            for maker in self._makers(node.number):
                if maker in found or (maker in self.there and maker != self._loop.number):
                    continue
                if not self._is_light(self._nodes[maker]):
                    return None
                waiting.append(self._nodes[maker])
        for node in self._nodes[product.number + 1 : self._loop.number]:
            makers = set(self._makers(node.number))
            if self._is_light(node) and makers & found.keys():
                if makers - found.keys() - self.there:
                    return None
                found[node.number] = node
        work = [found[number] for number in sorted(found)]
        readers = {
            reader for value in self.left(work) for reader in self._program.readers(value)
        } - found.keys()
        return None if any(reader < self._loop.number for reader in readers) else work

    @staticmethod
    def _is_light(node: Node) -> bool:
        return facts_of(node.name).category in _LIGHT and not node.blocks and not node.effects

    def freed(self, work: list[Node]) -> Iterator[int]:
        """Yields the values that have no reader after the work, when the loop begins."""
        done = self.there - {self._loop.number} | {node.number for node in work}
        for value in dict.fromkeys(value for node in work for value in node.reads()):
            is_made = self._program.maker(value) in self.there
            if is_made and value not in self._returned and done.issuperset(self._readers(value)):
                yield value

    def left(self, work: list[Node]) -> list[int]:
        """Returns the results of the work that others read."""
        inside = {node.number for node in work}
        return [
            value
            for node in work
            for value in node.results
            if value in self._returned or not inside.issuperset(self._readers(value))
        ]

    def _readers(self, value: int) -> list[int]:
        return self._program.readers(value)
