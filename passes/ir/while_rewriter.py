"""Rebuilding a while loop with other carries.

MLIR fixes an operation's number of operands and results, so that a loop with more or fewer carries
is a new operation, which takes over the old one's blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from . import walk
from .build import integer_like, typed, zeros_in_steps
from .clone import rebuilt
from .erase import erase, erase_argument
from .locations import rematerialized
from .values import shape_of


@dataclass
class Replacements:
    """The operations and values with which earlier edits replaced planned ones."""

    ops: list[ir.Operation] = field(default_factory=list)
    """Old loops, in the order of their edits: empty, unused, and still to be erased."""
    values: dict[ir.Value, ir.Value] = field(default_factory=dict)
    _loops: dict[ir.Value, ir.Operation] = field(default_factory=dict)
    """New loops by the old one's first result: the bindings hash an operation by its operands,
    which edits exchange; the hash of a value stays."""
    bodies: list[ir.Block] = field(default_factory=list)
    """Blocks where edits have left operations that nothing reads."""
    like: dict[ir.Value, ir.Value] = field(default_factory=dict)
    """For each value that an edit added, the planned value whose data it holds, stacks or slices.
    A new value may have the address of an erased one: this entry is the valid one."""

    def note_like(self, made: Iterable[ir.Value], planned: ir.Value) -> None:
        """Records the planned value that new values are like."""
        first = self.like.get(planned, planned)
        self.like.update((value, first) for value in made)

    def note_clones(self, clones: Mapping[ir.Value, ir.Value]) -> None:
        """Records the results of clones, and of operations inside them, by their originals."""
        for old, new in clones.items():
            self.note_like([new], old)
            if ir.OpResult(old).result_number == 0:
                clone, op = (ir.OpResult(value).owner.operation for value in (new, old))
                for made, planned in zip(
                    walk.values_inside(clone), walk.values_inside(op), strict=True
                ):
                    self.note_like([made], planned)

    def op(self, planned: ir.Operation) -> ir.Operation:
        """Returns a planned operation's replacement: a loop may have been replaced repeatedly."""
        while len(planned.results) and (newer := self._loops.get(planned.results[0])) is not None:
            planned = newer
        return planned

    def put_loop(self, old: ir.Operation, new: ir.Operation) -> None:
        """Records the new loop that replaces an old one; every loop has a result."""
        self.ops.append(old)
        self._loops[old.results[0]] = new

    def value(self, planned: ir.Value) -> ir.Value:
        """Returns the replacement of a planned value."""
        while (newer := self.values.get(planned)) is not None:
            planned = newer
        return planned


class WhileRewriter:
    """The rebuilding of a while loop with other carries."""

    def __init__(self, op: ir.Operation) -> None:
        self.op = op
        self.body = op.regions[1].blocks[0]
        self.terminator = walk.terminator(self.body)
        self.operands = list(op.operands)
        self.returned: dict[int, ir.Value] = {}
        """By carry, its next value, where the present terminator does not return only that."""
        self.dropped: set[int] = set()
        self._positions: dict[int, int] = {}
        self.updates: list[ir.Operation] = []
        self.like: list[tuple[list[ir.Value], ir.Value]] = []
        """New values, and the value that they are like, for ``Replacements.like``."""
        self.initial: list[ir.Operation] = []
        """The operations right before the loop that compute the initial values of added stacks."""

    def add(self, initial: ir.Value) -> int:
        """Adds an invariant carry; returns its number before any is dropped."""
        arguments: list[ir.Value] = [
            region.blocks[0].add_argument(initial.type, self.op.location)
            for region in self.op.regions
        ]
        argument = arguments[-1]
        self.like.append((arguments, initial))
        self.operands.append(initial)
        number = len(self.operands) - 1
        self.returned[number] = argument
        return number

    def drop(self, number: int) -> None:
        self.dropped.add(number)

    def drop_stack(self, number: int, update: ir.Operation) -> None:
        """Drops a stacked output together with the update that writes it."""
        self.drop(number)
        self.updates.append(update)

    def add_stack(
        self, value: ir.Value, trip_count: int, index: ir.Value, location: ir.Location | None = None
    ) -> int:
        """Adds a stacked output that stores ``value`` at ``index``, both of the body.

        Returns its number before any carry is dropped. Without a location its operations are named
        as added by rematerialization.
        """
        shape = shape_of(value)
        location = location or rematerialized(value.location)
        with ir.InsertionPoint(self.op), location:
            steps = zeros_in_steps(typed(value, [trip_count, *shape]))
        self.initial += steps
        self.like.append(([steps[-1].results[0]], value))
        number = self.add(steps[-1].results[0])
        carried = self.body.arguments[number]
        with ir.InsertionPoint(self.terminator), location:
            zero = integer_like(index, 0)
            slice_ = stablehlo.ReshapeOp(typed(value, [1, *shape]), value).result
            starts = [index, *[zero] * len(shape)]
            update = stablehlo.DynamicUpdateSliceOp(carried, slice_, starts)
        self.like.append(([slice_, update.result], value))
        self.returned[number] = update.result
        return number

    def position(self, number: int) -> int:
        """Returns the number of a kept carry in the new loop, once that is built."""
        return self._positions[number]

    def apply(self, replaced: Replacements) -> ir.Operation:
        """Builds the new loop right before the old one, which keeps neither regions nor uses."""
        op = self.op
        kept = [number for number in range(len(self.operands)) if number not in self.dropped]
        self._positions = {number: position for position, number in enumerate(kept)}
        # Read only now: the terminator's operands may have been exchanged since.
        returned = dict(enumerate(self.terminator.operands)) | self.returned
        with ir.InsertionPoint(self.terminator), self.terminator.location:
            stablehlo.ReturnOp([returned[number] for number in kept])
        erase(self.terminator, *self.updates)
        for region in op.regions:
            for number in sorted(self.dropped, reverse=True):
                erase_argument(region.blocks[0], number)
        operands = [self.operands[number] for number in kept]
        new = rebuilt(op, operands, [operand.type for operand in operands])
        for made, value in self.like:
            replaced.note_like(made, value)
        results: list[ir.Value] = [*op.results, *self.operands[len(op.results) :]]
        for number, position in self._positions.items():
            replaced.note_like([new.results[position]], results[number])
        for number, result in enumerate(op.results):
            if number not in self.dropped:
                replaced.values[result] = new.results[self.position(number)]
                result.replace_all_uses_with(replaced.values[result])
        replaced.put_loop(op, new)
        return new
