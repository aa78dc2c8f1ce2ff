"""Finds the clones that a cut requires in the backward bodies, and the stored values they read."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from ...analysis.loops.pairs import LoopPair, Residual
from ...ir import walk
from .bodies import ScanBody
from .cut import CutProblem


@dataclass(frozen=True)
class BodySite:
    """An operation of the backward body that reads residuals which are no longer stored.

    Attributes:
      op: the operation. The backward loop of an inner pair has a site for the reads of its body.
      reads: pairs of a value that the operation reads today and the forward value that it equals.
      cloned: the forward operations to clone right before the operation, in order.
    """

    op: ir.Operation
    reads: tuple[tuple[ir.Value, ir.Value], ...]
    cloned: tuple[ir.Operation, ...]


@dataclass
class BodyClones:
    """The clones in the backward body of one pair.

    ``leaves`` are the stored values that the clones start from; ``gone`` are the residuals that the
    pair no longer needs; ``asked`` is whether other pairs need values of its forward body.
    """

    sites: list[BodySite] = field(default_factory=list)
    leaves: set[int] = field(default_factory=set)
    cloned: list[int] = field(default_factory=list)
    gone: list[Residual] = field(default_factory=list)
    asked: bool = False


_Wanted = dict[Hashable, list[int]]
"""By the key of an operation of a backward body, the forward values to have right before it."""


class CloneSites:
    """The sites of the bodies of a group, for the saved vertices ``kept``.

    Residuals whose stacks are ``held``, by body and number of the stack, stay, even if the backward
    bodies could obtain their values otherwise.

    Attributes:
      of: by body, the clones in the backward body of each of its pairs.
    """

    def __init__(
        self, problem: CutProblem, kept: frozenset[int], held: Collection[tuple[ScanBody, int]] = ()
    ) -> None:
        self.problem, self.kept, self.held = problem, kept, held
        self.of: dict[ScanBody, list[BodyClones]] = {}
        self._wanted: dict[ScanBody, list[_Wanted]] = {
            body: [{} for _ in body.pairs] for body in problem.bodies
        }
        # Inner ones first, and those at the end of a chain: they read values of the others.
        for body in reversed(problem.bodies):
            self.of[body] = [self._write(body, number) for number in range(len(body.pairs))]

    def is_kept(self, body: ScanBody, value: int) -> bool:
        """Whether a value of a body is saved."""
        return self.problem.network.vertices[body, value] in self.kept

    def _write(self, body: ScanBody, number: int) -> BodyClones:
        pair = body.pairs[number]
        written = BodyClones(
            gone=[residual for residual in pair.residuals if self._is_gone(body, residual)]
        )
        wanted, reads = self._wanted[body][number], _reads(body, pair, written.gone)
        written.asked = bool(wanted)
        for child in body.children:
            wanted.setdefault(walk.key(child.pairs[0].backward.op), [])
        rerun = {
            walk.key(child.pairs[0].backward.op): child.position
            for child in body.children
            if child in self.problem.rerun
        }
        made: set[int] = set()
        for view in pair.backward.body.operations:
            op = view.operation
            key = walk.key(op)
            if key not in reads and key not in wanted:
                continue
            read = reads.get(key, [])
            values = [value for _, value in read] + wanted.get(key, [])
            forced = [rerun[key]] if key in rerun else []
            cloned = _Closure(self, body, number, key).of(values, forced, made, written.leaves)
            written.cloned += cloned
            written.sites.append(
                BodySite(
                    op=op,
                    reads=tuple((value, body.graph.values[same]) for value, same in read),
                    cloned=tuple(body.graph.ops[position] for position in cloned),
                )
            )
        return written

    def _is_gone(self, body: ScanBody, residual: Residual) -> bool:
        number = residual.stack.number
        if number not in body.residuals or (body, number) in self.held:
            return False
        value = body.graph.index[residual.stored]
        return (
            not self.is_kept(body, value)
            or body.is_there(value)
            or body.residual_of[value].stack.number != number
        )

    def want(self, body: ScanBody, number: int, key: Hashable, value: int) -> None:
        """Requests a value of a forward body in the backward body of one of its pairs."""
        self._wanted[body][number].setdefault(key, []).append(value)


def _reads(
    body: ScanBody, pair: LoopPair, gone: list[Residual]
) -> dict[Hashable, list[tuple[ir.Value, int]]]:
    """Returns, by the key of an operation of the backward body, its reads of dropped residuals."""
    reads: dict[Hashable, dict[tuple[ir.Value, int], None]] = {}
    for residual in gone:
        for read in residual.reads:
            for use in read.uses:
                op = walk.ancestor_in(pair.backward.body, use.owner.operation)
                entry = (read, body.graph.index[residual.stored])
                reads.setdefault(walk.key(op), {})[entry] = None
    return {op: list(entries) for op, entries in reads.items()}


@dataclass
class _Closure:
    """The operations to clone right before one operation of the backward body of a pair."""

    sites: CloneSites
    body: ScanBody
    number: int
    key: Hashable

    def of(
        self, wanted: list[int], forced: list[int], made: set[int], leaves: set[int]
    ) -> list[int]:
        """Returns the positions of the operations to clone for the wanted values, without those in
        ``made``.

        Operations at ``forced`` positions are cloned in any case. Results of the clones are added
        to ``made``, and the stored values that they start from to ``leaves``.
        """
        body, graph = self.body, self.body.graph
        clones: set[int] = set()
        stack = list(wanted)
        for position in forced:
            if not made.issuperset(graph.results[position]):
                clones.add(position)
                made.update(graph.results[position])
                stack += graph.operands[position]
        while stack:
            value = stack.pop()
            if value in made:
                continue
            if self.sites.is_kept(body, value):
                self._start_from(value, leaves)
            elif value in body.links:
                self._follow(*body.links[value])
                made.add(value)
            elif not self.sites.problem.is_recomputable(body, value):
                self._start_from(value, leaves)
            else:
                producer = graph.producers[value]
                clones.add(producer)
                made.update(graph.results[producer])
                stack += graph.operands[producer]
        return sorted(clones)

    def _follow(self, before: ScanBody, value: int) -> None:
        """Requests the values that an earlier loop of a chain stored."""
        number = before.pair_with(self.body.pairs[self.number].backward.op)
        assert number is not None
        self.sites.want(before, number, self.key, value)

    def _start_from(self, value: int, leaves: set[int]) -> None:
        outside = self.body.outside(value)
        if outside is not None:
            around, same = outside
            inner = self.body
            while inner.parent is not around:
                assert inner.parent is not None
                inner = inner.parent
            key = walk.key(inner.pairs[0].backward.op)
            self.sites.want(around, 0, key, same)
        elif value not in self.body.again and not self.body.is_there(value):
            leaves.add(value)
