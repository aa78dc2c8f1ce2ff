"""The forward bodies of a pair of loops and of the pairs inside it.

An inner pair's forward loop is in the outer forward body, its backward loop in the outer backward
body. The stacks of the inner forward loop reach the inner backward loop in one of two ways. Linked:
the outer loop stacks them once more. Rerun: the whole inner forward loop is cloned into the outer
backward body, right before the inner backward loop, and its stacks live for one outer iteration.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction

from jax.extend.mlir import ir

from hloom.passes.analysis.autodiff import has_remat_name, is_backward, is_rematerialized
from hloom.passes.analysis.block_graph import FROM_OUTSIDE, BlockGraph
from hloom.passes.analysis.loops.counted import StackedOutput, defining_op
from hloom.passes.analysis.loops.pairs import LoopPair, loop_pairs, nested_pairs
from hloom.passes.ir import walk
from hloom.passes.ir.locations import operation_name
from hloom.passes.ir.op_facts import Kind

_DEEPEST = 4
"""The most levels of nested loops that are planned together."""


class ScanBody:
    """One forward body, and which of its values the backward body can access."""

    def __init__(self, pair: LoopPair, parent: ScanBody | None = None, depth: int = 1) -> None:
        self.pair, self.parent = pair, parent
        self.graph = BlockGraph.of(pair.forward.body)
        self.constant = self.graph.constant_derived
        inner = _separate(pair) if depth < _DEEPEST else []
        self.children = [ScanBody(found, self, depth + 1) for found in inner]
        handed_on = {
            residual.through.stack.number
            for child in self.children
            for residual in child.pair.residuals
            if residual.through is not None
        }
        self.residuals = [
            residual for residual in pair.residuals if residual.stack.number not in handed_on
        ]
        """Residuals whose stacks are not passed on to an inner pair."""
        index = self.graph.index
        self.residual_of = {
            index[residual.stored]: residual for residual in reversed(self.residuals)
        }
        numbers = {residual.stack.number for residual in pair.residuals}
        self.stacked = {
            index[stack.value]: stack
            for stack in reversed(pair.forward.stacks)
            if stack.number not in numbers and stack.slope == pair.slope
        }
        self.position = self._position()

    def all(self) -> Iterator[ScanBody]:
        """This body and the inner ones, outer bodies first."""
        yield self
        for child in self.children:
            yield from child.all()

    @property
    def runs(self) -> int:
        """How often the body runs for each run of the outermost body."""
        return 1 if self.parent is None else self.pair.forward.trip_count * self.parent.runs

    def kept_bytes(self, value: int, rerun: frozenset[ScanBody]) -> int:
        """Bytes of all slices of a value that would be in memory at one time if it were stacked.

        Counted for each iteration of the outermost loop.
        """
        return math.ceil(self.graph.size(value) * self._kept_slices(rerun))

    def _kept_slices(self, rerun: frozenset[ScanBody]) -> Fraction:
        if self.parent is None:
            return Fraction(1)
        if self not in rerun:
            return self.pair.forward.trip_count * self.parent._kept_slices(rerun)
        return Fraction(self.pair.forward.trip_count, self.outermost.pair.forward.trip_count)

    @property
    def may_rerun(self) -> bool:
        """Whether the forward loop may be cloned into the outer backward body."""
        around = self.parent
        return around is not None and around.graph.kinds[self.position] is not Kind.OPAQUE

    @property
    def outermost(self) -> ScanBody:
        return self if self.parent is None else self.parent.outermost

    def stack(self, value: int) -> StackedOutput | None:
        """The existing stack of a value of the body; None if it has none."""
        residual = self.residual_of.get(value)
        return residual.stack if residual else self.stacked.get(value)

    def is_there(self, value: int) -> bool:
        """Whether the backward body can access the value without saving or recomputing it."""
        if self.graph.producers[value] != FROM_OUTSIDE:
            return False
        forward = self.pair.forward
        if value == forward.counter:
            return not forward.is_open
        if value < len(forward.body.arguments):
            return self.parent is None and value in forward.invariant
        return self.outside(value) is None

    def outside(self, value: int) -> tuple[ScanBody, int] | None:
        """The value of an outer body that always equals this one; None if none does."""
        if self.parent is None or self.graph.producers[value] != FROM_OUTSIDE:
            return None
        forward = self.pair.forward
        same = self.graph.values[value]
        if value < len(forward.body.arguments):
            if value not in forward.invariant:
                return None
            same = forward.op.operands[value]
        body: ScanBody | None = self.parent
        while body is not None:
            if same in body.graph.index:
                return body, body.graph.index[same]
            body = body.parent
        return None

    def bytes_from_outside(self, value: int) -> int:
        """Bytes of a value from outside that the backward loop would keep alive by reading it.

        Counted for each iteration. For values of an outermost body that `is_there` accepts.
        """
        forward, backward = self.pair.forward, self.pair.backward
        if value == forward.counter:
            return 0
        inside = value < len(forward.body.arguments)
        outer = forward.op.operands[value] if inside else self.graph.values[value]
        maker = defining_op(outer)
        # What is made outside of a loop around both is alive in all of that one's iterations.
        if maker is None or maker.block != backward.op.block:
            return 0
        if any(not _stands_before(use.owner.operation, backward.op) for use in outer.uses):
            return 0  # alive when the backward loop runs in any case
        return -(-self.graph.size(value) // forward.trip_count)

    def _position(self) -> int:
        """The forward loop's position in the outer body; -1 for the outermost body."""
        return -1 if self.parent is None else self.parent.graph.ops.index(self.pair.forward.op)


def outermost_bodies(pairs: Iterable[LoopPair]) -> list[ScanBody]:
    """The bodies of the pairs of loops in a block that may be rewritten.

    A loop may be in several pairs.
    """
    return [
        ScanBody(pair)
        for pair in pairs
        if _is_ad(pair)
        and not has_remat_name(pair.backward.op)
        and not is_rematerialized(pair.backward.body)
    ]


def _separate(outer: LoopPair) -> list[LoopPair]:
    """The inner pairs of an outer pair, without those that share a loop with another pair."""
    blocks = outer.forward.body, outer.backward.body
    taken = {
        loop
        for block in blocks
        for pair in loop_pairs(block)
        if _is_ad(pair)
        for loop in (pair.forward.op, pair.backward.op)
    }
    chosen: list[LoopPair] = []
    for pair in nested_pairs(outer):
        loops = {pair.forward.op, pair.backward.op}
        if _is_ad(pair) and not loops & taken:
            chosen.append(pair)
            taken |= loops
    return chosen


def _is_ad(pair: LoopPair) -> bool:
    """Whether the second loop is the first one's backward pass: by name, else by its direction."""
    if operation_name(pair.backward.op.location):
        return is_backward(pair.backward.op) and not is_backward(pair.forward.op)
    return pair.reversed_


def _stands_before(op: ir.Operation, loop: ir.Operation) -> bool:
    """Whether an operation, or its ancestor in the loop's block, is before the loop."""
    ancestor = walk.ancestor_in(loop.block, op)
    return ancestor != loop and ancestor.is_before_in_block(loop)
