"""Models the bodies of the loops that are planned together, and of the loops inside them.

A forward loop may have several backward loops, and a backward loop may be the forward loop of
others. Loops that are so connected are a group. A forward body may itself be a backward body: its
recomputation in later backward bodies starts from the values that the first loop of the chain
stored.

An inner pair's forward loop is in the outer forward body, its backward loop in the outer backward
body. The stacks of the inner forward loop reach the inner backward loop in one of two ways. Linked:
the outer loop stacks them once more. Rerun: the whole inner forward loop is cloned into the outer
backward body, right before the inner backward loop, and its stacks live for one outer iteration.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from jax.extend.mlir import ir

from ...analysis.device import DeviceView
from ...analysis.loops.counted import StackedOutput
from ...analysis.loops.pairs import LoopPair, nested_pairs
from ...analysis.program import FROM_OUTSIDE, Program
from ...ir import walk
from ...ir.op_facts import OpKind
from ...ir.types import tensor_bytes
from ...ir.values import defining_op

_DEEPEST = 4
"""The most levels of nested loops that are planned together."""


class ScanBody:
    """One forward body, and which of its values the backward bodies can access.

    Attributes:
      pairs: the forward loop with each of its backward loops. Only a loop with one has inner pairs,
        and an inner loop is in one pair.
      links: by value that the body reads from a stack of an earlier loop of the group, the body of
        that loop and the value that was stored.
      held: values read from stacks of earlier loops that have to be stored to be read again.
      again: by value of the body, an equal one that the backward body computes by itself, and that
        clones in it read.
    """

    def __init__(
        self,
        pairs: tuple[LoopPair, ...],
        device: DeviceView,
        parent: ScanBody | None = None,
        depth: int = 1,
    ) -> None:
        self.pairs, self.parent = pairs, parent
        self.forward = pairs[0].forward
        self.graph = Program(self.forward.body, device)
        self.constant = self.graph.constant_derived
        self.links: dict[int, tuple[ScanBody, int]] = {}
        self.held: set[int] = set()
        self.again: dict[int, ir.Value] = {}
        inner = inner_pairs(pairs[0]) if depth < _DEEPEST and len(pairs) == 1 else []
        self.children = [ScanBody((found,), device, self, depth + 1) for found in inner]
        handed_on = {
            residual.through.stack.number
            for child in self.children
            for residual in child.pairs[0].residuals
            if residual.through is not None
        }
        self.residuals = {
            residual.stack.number: residual
            for pair in reversed(pairs)
            for residual in pair.residuals
            if residual.stack.number not in handed_on
        }
        """Residuals whose stacks are not passed on to an inner pair, by the number of the stack."""
        index = self.graph.index
        self.residual_of = {
            index[self.residuals[number].stored]: self.residuals[number]
            for number in sorted(self.residuals, reverse=True)
        }
        numbers = {residual.stack.number for pair in pairs for residual in pair.residuals}
        self.stacked = {
            index[stack.value]: stack
            for stack in reversed(self.forward.stacks)
            if stack.number not in numbers and stack.slope == pairs[0].slope
        }
        self.position = self._position()

    def pair_with(self, backward: ir.Operation) -> int | None:
        """Returns the number of the pair with a backward loop; None if there is none."""
        numbers = (n for n, pair in enumerate(self.pairs) if pair.backward.op == backward)
        return next(numbers, None)

    def all(self) -> Iterator[ScanBody]:
        """This body and the inner ones, outer bodies first."""
        yield self
        for child in self.children:
            yield from child.all()

    @property
    def runs(self) -> int:
        """Returns how often the body runs for each run of the outermost loop."""
        trips = self.forward.trip_count
        return trips if self.parent is None else trips * self.parent.runs

    def kept_bytes(self, value: int, rerun: frozenset[ScanBody]) -> int:
        """Returns the bytes of all slices of a value in memory at one time if it were stacked."""
        return self.graph.bytes_of(value) * self._kept_slices(rerun)

    def _kept_slices(self, rerun: frozenset[ScanBody]) -> int:
        trips = self.forward.trip_count
        around = self.parent
        return trips if around is None or self in rerun else trips * around._kept_slices(rerun)

    @property
    def may_rerun(self) -> bool:
        """Whether the forward loop may be cloned into the outer backward body."""
        around = self.parent
        return around is not None and around.graph.kinds[self.position] is not OpKind.OPAQUE

    def stack(self, value: int) -> StackedOutput | None:
        """Returns the existing stack of a value of the body; None if it has none."""
        residual = self.residual_of.get(value)
        return residual.stack if residual else self.stacked.get(value)

    def is_there(self, value: int) -> bool:
        """Whether the backward body can read the value without saving or recomputing it."""
        if self.graph.producers[value] != FROM_OUTSIDE:
            return False
        forward = self.forward
        if value == forward.counter:
            return not forward.is_open
        if value < len(forward.body.arguments):
            return self.parent is None and value in forward.invariant
        return self.outside(value) is None

    def outside(self, value: int) -> tuple[ScanBody, int] | None:
        """Returns the value of an outer body that always equals this one; None if none does."""
        if self.parent is None or self.graph.producers[value] != FROM_OUTSIDE:
            return None
        forward = self.forward
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
        """Returns the bytes of a value from outside that a read in the backward loop keeps live.

        For values of an outermost body that `is_there` accepts. Of several backward loops the last
        one counts.
        """
        forward, backward = self.forward, self.pairs[0].backward.op
        for pair in self.pairs[1:]:
            if backward.is_before_in_block(pair.backward.op):
                backward = pair.backward.op
        if value == forward.counter:
            return 0
        inside = value < len(forward.body.arguments)
        outer = forward.op.operands[value] if inside else self.graph.values[value]
        maker = defining_op(outer)
        # A value made outside of a loop around both is live in all of that loop's iterations.
        if maker is None or maker.block != backward.block:
            return 0
        if any(not _stands_before(use.owner.operation, backward) for use in outer.uses):
            return 0  # live when the backward loop runs in any case
        return self.graph.bytes_of(value)

    def _position(self) -> int:
        """Returns the forward loop's position in the outer body; -1 for the outermost body."""
        return -1 if self.parent is None else self.parent.graph.ops.index(self.forward.op)


def inner_pairs(outer: LoopPair) -> list[LoopPair]:
    """Returns inner pairs of an outer pair, each loop in only one: in the one that stacks most."""
    chosen: list[LoopPair] = []
    taken: set[Hashable] = set()
    for pair in sorted(nested_pairs(outer), key=_stacked_bytes, reverse=True):
        loops = {walk.key(pair.forward.op), walk.key(pair.backward.op)}
        if not loops & taken:
            chosen.append(pair)
            taken |= loops
    return chosen


def _stacked_bytes(pair: LoopPair) -> int:
    trips = pair.forward.trip_count
    return sum((tensor_bytes(residual.stored.type) or 0) * trips for residual in pair.residuals)


def _stands_before(op: ir.Operation, loop: ir.Operation) -> bool:
    """Whether an operation, or its ancestor in the loop's block, is before the loop."""
    ancestor = walk.ancestor_in(loop.block, op)
    return ancestor != loop and ancestor.is_before_in_block(loop)
