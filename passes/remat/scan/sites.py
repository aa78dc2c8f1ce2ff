"""The clones that a cut requires in the backward bodies, and the stored values they start from."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from hloom.passes.analysis.loops.pairs import Residual
from hloom.passes.ir import walk
from hloom.passes.remat.scan.bodies import ScanBody
from hloom.passes.remat.scan.cut import CutProblem


@dataclass(frozen=True)
class BodySite:
    """An operation of the backward body that reads residuals which are no longer stored.

    Attributes:
      op: the operation. The backward loop of an inner pair has a site for what its body needs.
      reads: pairs of a value that the operation reads today and the forward value that it equals.
      cloned: the forward operations to clone right before the operation, in order.
    """

    op: ir.Operation
    reads: tuple[tuple[ir.Value, ir.Value], ...]
    cloned: tuple[ir.Operation, ...]


@dataclass
class BodyClones:
    """The clones in the backward body of one pair.

    ``leaves`` are the stored values that the clones start from; ``gone`` are the residuals that are
    no longer needed.
    """

    sites: list[BodySite] = field(default_factory=list)
    leaves: set[int] = field(default_factory=set)
    cloned: list[int] = field(default_factory=list)
    gone: list[Residual] = field(default_factory=list)


class CloneSites:
    """The sites of an outermost body and its inner bodies, for the saved vertices ``kept``.

    Residuals in ``held`` stay, even if the backward body could obtain their values otherwise.
    """

    def __init__(
        self, problem: CutProblem, kept: frozenset[int], held: Collection[Residual] = ()
    ) -> None:
        self.problem, self.kept, self.held = problem, kept, held
        self.of: dict[ScanBody, BodyClones] = {}
        self._wanted: dict[ScanBody, dict[Hashable, list[int]]] = {
            body: {} for body in problem.bodies
        }
        for body in reversed(problem.bodies):  # inner ones first: they read outer values
            self.of[body] = self._write(body)

    def _is_kept(self, body: ScanBody, value: int) -> bool:
        return self.problem.first[body] + value in self.kept

    def _write(self, body: ScanBody) -> BodyClones:
        written = BodyClones(
            gone=[residual for residual in body.residuals if self._is_gone(body, residual)]
        )
        wanted, reads = self._wanted[body], self._reads(body, written.gone)
        for child in body.children:
            wanted.setdefault(walk.key(child.pair.backward.op), [])
        rerun = {
            walk.key(child.pair.backward.op): child.position
            for child in body.children
            if child in self.problem.rerun
        }
        made: set[int] = set()
        for view in body.pair.backward.body.operations:
            op = view.operation
            key = walk.key(op)
            if key not in reads and key not in wanted:
                continue
            pairs = reads.get(key, [])
            values = [value for _, value in pairs] + wanted.get(key, [])
            forced = [rerun[key]] if key in rerun else []
            cloned = self._closure(body, values, forced, made, written.leaves)
            written.cloned += cloned
            written.sites.append(
                BodySite(
                    op=op,
                    reads=tuple((read, body.graph.values[value]) for read, value in pairs),
                    cloned=tuple(body.graph.ops[position] for position in cloned),
                )
            )
        return written

    def _is_gone(self, body: ScanBody, residual: Residual) -> bool:
        if residual in self.held:
            return False
        value = body.graph.index[residual.stored]
        return (
            not self._is_kept(body, value)
            or body.is_there(value)
            or body.residual_of[value] is not residual
        )

    def _reads(
        self, body: ScanBody, gone: list[Residual]
    ) -> dict[Hashable, list[tuple[ir.Value, int]]]:
        """By the key of an operation of the backward body, its reads of residuals that are gone."""
        backward = body.pair.backward.body
        reads: dict[Hashable, dict[tuple[ir.Value, int], None]] = {}
        for residual in gone:
            for read in residual.reads:
                for use in read.uses:
                    op = walk.ancestor_in(backward, use.owner.operation)
                    entry = (read, body.graph.index[residual.stored])
                    reads.setdefault(walk.key(op), {})[entry] = None
        return {op: list(entries) for op, entries in reads.items()}

    def _closure(
        self,
        body: ScanBody,
        wanted: list[int],
        forced: list[int],
        made: set[int],
        leaves: set[int],
    ) -> list[int]:
        """Positions of the operations to clone for the wanted values, without those in ``made``.

        Operations at ``forced`` positions are cloned in any case. Results of the clones are added
        to ``made``, and the stored values that they start from to ``leaves``.
        """
        graph = body.graph
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
            if self._is_kept(body, value) or not self.problem.is_recomputable(body, value):
                self._start_from(body, value, leaves)
                continue
            producer = graph.producers[value]
            clones.add(producer)
            made.update(graph.results[producer])
            stack += graph.operands[producer]
        return sorted(clones)

    def _start_from(self, body: ScanBody, value: int, leaves: set[int]) -> None:
        outside = body.outside(value)
        if outside is not None:
            around, same = outside
            inner = body
            while inner.parent is not around:
                assert inner.parent is not None
                inner = inner.parent
            key = walk.key(inner.pair.backward.op)
            self._wanted[around].setdefault(key, []).append(same)
        elif not body.is_there(value):
            leaves.add(value)
