"""Passes values of forward code to backward code, through the loops and manual computations around
both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

from ..analysis.loops.counted import counted_loop
from ..analysis.loops.pairs import LoopPair
from ..analysis.manual_pairs import ManualPair
from ..analysis.purity import erase_dead
from ..ir import mesh, walk
from ..ir.build import reshaped, slice_of_stack, typed, zeros
from ..ir.clone import rebuilt
from ..ir.erase import erase, erase_argument
from ..ir.shardings import MeshAxis, ValueSharding, sharding_of
from ..ir.values import defining_op, is_read, shape_of
from ..ir.while_rewriter import Replacements, WhileRewriter
from .site import Border, ends_of


@dataclass
class BorderCrossing:
    """The values that pass a border for attentions. Zeros are their placeholders until `rebuild`.

    Attributes:
      border: the pair of loops or of manual computations.
      outer: the crossing of the pair in whose bodies they are; None outside of pairs.
    """

    border: Border
    outer: BorderCrossing | None
    _passed: list[tuple[ir.Value, ir.Value]] = field(default_factory=list)
    """Values of the forward body, and their placeholders in the backward body."""
    _brought: list[tuple[ir.Value, ir.Value]] = field(default_factory=list)
    """Values before a loop, and their placeholders inside it."""
    _between: dict[tuple[ir.Value, int], ir.Value] = field(default_factory=dict)
    """Zeros in the bodies of outer loops, by the value in front of these and the side."""
    _forward: ir.Operation | None = None
    """The forward operation, once it is rebuilt."""

    def pass_on(self, value: ir.Value) -> ir.Value:
        """Returns, at an insertion point in the backward body, a value of the forward body."""
        stand_in = zeros(value.type)
        self._passed.append((value, stand_in))
        return stand_in

    def bring(self, value: ir.Value, body: ir.Block) -> ir.Value:
        """Returns, at a point in a loop's body, a value from in front of all loops around it."""
        outer = self.outer
        if outer is not None and isinstance(outer.border, LoopPair):
            side = self.border.bodies.index(body)
            if (value, side) not in self._between:
                end = ends_of(self.border)[side]
                with ir.InsertionPoint(end), end.location:
                    self._between[value, side] = outer.bring(value, end.block)
            value = self._between[value, side]
        stand_in = zeros(value.type)
        self._brought.append((value, stand_in))
        return stand_in

    def rebuild(self) -> None:
        """Rebuilds both operations with the values that cross; the second one loses what nothing
        reads. Crossings inside have to be rebuilt before.
        """
        if isinstance(self.border, ManualPair):
            self._rebuild_computations(self.border)
        else:
            self._rebuild_loops(self.border)

    def drop_unread(self) -> None:
        """Drops the results of the forward operation that nothing reads. Those of the crossings
        outside are dropped before."""
        assert self._forward is not None
        block = self._forward.block
        erase_dead(block)
        if isinstance(self.border, ManualPair):
            _drop_results(self._forward)
        else:
            _drop_stacks(self._forward)
        erase_dead(block)

    def _rebuild_loops(self, pair: LoopPair) -> None:
        replaced = Replacements()
        forward = WhileRewriter(pair.forward.op)
        index = pair.residuals[0].stack.update.operands[2]
        numbers: dict[ir.Value, int] = {}
        for value, _ in self._passed:
            if value not in numbers:
                count = pair.forward.trip_count
                numbers[value] = forward.add_stack(value, count, index, value.location)
        self._carry(forward)
        self._forward = forward.apply(replaced)
        erase(forward.op)
        backward = WhileRewriter(pair.backward.op)
        self._carry(backward)
        carried: dict[ir.Value, int] = {}
        for value, stand_in in self._passed:
            if value not in carried:
                stack = self._forward.results[forward.position(numbers[value])]
                carried[value] = backward.add(self._read_behind(stack, backward.op))
            maker = defining_op(stand_in)
            assert maker is not None
            with ir.InsertionPoint(maker), maker.location:
                part = slice_of_stack(backward.body.arguments[carried[value]], pair.index)
                read = reshaped(part, shape_of(value))
            stand_in.replace_all_uses_with(read)
        erase_dead(backward.body)
        for residual in pair.residuals:
            for number in residual.operands:
                uses = backward.body.arguments[number].uses
                if all(use.owner.operation == backward.terminator for use in uses):
                    backward.drop(number)
        backward.apply(replaced)
        erase(backward.op)

    def _carry(self, edit: WhileRewriter) -> None:
        """Lets a loop carry values from outside, whose placeholders are in its body."""
        numbers: dict[ir.Value, int] = {}
        for value, stand_in in self._brought:
            maker = defining_op(stand_in)
            if maker is None or maker.block != edit.body:
                continue
            if value not in numbers:
                numbers[value] = edit.add(value)
            stand_in.replace_all_uses_with(edit.body.arguments[numbers[value]])

    def _rebuild_computations(self, pair: ManualPair) -> None:
        forward = ManualRewriter(pair.forward)
        numbers = {value: forward.add_result(value) for value in dict(self._passed)}
        self._forward = forward.apply()
        backward = ManualRewriter(pair.backward)
        arguments: dict[ir.Value, ir.Value] = {}
        for value, stand_in in self._passed:
            if value not in arguments:
                given = self._read_behind(self._forward.results[numbers[value]], pair.backward)
                arguments[value] = backward.add_operand(given, value.type)
            stand_in.replace_all_uses_with(arguments[value])
        erase_dead(backward.body)
        for each in pair.passed:
            for number in each.operands:
                if not is_read(backward.body.arguments[number]):
                    backward.drop_operand(number)
        backward.apply()

    def _read_behind(self, value: ir.Value, end: ir.Operation) -> ir.Value:
        """Returns a value, of the block of the forward operation, in front of the backward one."""
        if self.outer is None:
            return value
        with ir.InsertionPoint(end), end.location:
            return self.outer.pass_on(value)


class Crossings:
    """The crossings of the attentions of a module."""

    def __init__(self) -> None:
        self._all: dict[object, BorderCrossing] = {}

    def of(self, borders: Sequence[Border]) -> BorderCrossing | None:
        """Returns the crossing of the last of some borders, of which each is in the one before."""
        if not borders:
            return None
        key = walk.key(ends_of(borders[-1])[0])
        if key not in self._all:
            self._all[key] = BorderCrossing(borders[-1], self.of(borders[:-1]))
        return self._all[key]

    def rebuild(self) -> None:
        """Rebuilds all operations that are crossed, and removes what nothing reads any more."""
        crossings = list(self._all.values())  # outer ones first
        for each in reversed(crossings):
            each.rebuild()
        for each in crossings:
            each.drop_unread()


def _drop_stacks(loop: ir.Operation) -> None:
    found = counted_loop(loop)
    if found is None:
        return
    unread = [stack for stack in found.stacks if not is_read(loop.results[stack.number])]
    if unread:
        edit = WhileRewriter(loop)
        for stack in unread:
            edit.drop_stack(stack.number, stack.update)
        loop = edit.apply(Replacements())
        erase(edit.op)
    erase_dead(loop.regions[1].blocks[0])


def _drop_results(computation: ir.Operation) -> None:
    unread = [n for n, result in enumerate(computation.results) if not is_read(result)]
    edit = ManualRewriter(computation)
    for number in unread:
        edit.drop_result(number)
    erase_dead(edit.apply().regions[0].blocks[0])


class ManualRewriter:
    """The rebuilding of a manual computation, which takes over the block of the old one."""

    def __init__(self, op: ir.Operation) -> None:
        self.op = op
        self.body = op.regions[0].blocks[0]
        self._inputs = list(zip(op.operands, _shardings(op, "in_shardings"), strict=True))
        terminator = walk.terminator(self.body)
        self._outputs = [
            (value, result.type, sharding)
            for value, result, sharding in zip(
                terminator.operands, op.results, _shardings(op, "out_shardings"), strict=True
            )
        ]
        self._dropped_operands: set[int] = set()
        self._dropped_results: set[int] = set()

    def add_operand(self, value: ir.Value, own: ir.Type) -> ir.Value:
        """Adds an operand, divided along its first axis as `add_result` divides; returns the
        argument, a device's part of it."""
        self._inputs.append((value, self._divided(own)))
        return self.body.add_argument(own, self.op.location)

    def add_result(self, value: ir.Value) -> int:
        """Returns the number, before any is dropped, of a result that has each device's value along
        its first axis."""
        count = math.prod(mesh.manual_sizes(self.op).values())
        first, *rest = shape_of(value)
        whole = typed(value, [first * count, *rest])
        self._outputs.append((value, whole, self._divided(value.type)))
        return len(self._outputs) - 1

    def drop_operand(self, number: int) -> None:
        self._dropped_operands.add(number)

    def drop_result(self, number: int) -> None:
        self._dropped_results.add(number)

    def apply(self) -> ir.Operation:
        """Builds the new operation right before the old one, which is erased.

        Its kept results have the numbers that they had, less those that are dropped.
        """
        op, terminator = self.op, walk.terminator(self.body)
        inputs = [x for n, x in enumerate(self._inputs) if n not in self._dropped_operands]
        kept = [n for n in range(len(self._outputs)) if n not in self._dropped_results]
        outputs = [self._outputs[number] for number in kept]
        with ir.InsertionPoint(terminator), terminator.location:
            sdy.ReturnOp([value for value, _, _ in outputs])
        erase(terminator)
        for number in sorted(self._dropped_operands, reverse=True):
            erase_argument(self.body, number)
        attributes = walk.attributes(op)
        attributes["in_shardings"] = sdy.TensorShardingPerValueAttr.get([x for _, x in inputs])
        attributes["out_shardings"] = sdy.TensorShardingPerValueAttr.get([x for *_, x in outputs])
        new = rebuilt(op, [x for x, _ in inputs], [type_ for _, type_, _ in outputs], attributes)
        for position, number in enumerate(kept):
            if number < len(op.results):
                op.results[number].replace_all_uses_with(new.results[position])
        erase(op)
        return new

    def _divided(self, own: ir.Type) -> sdy.TensorShardingAttr:
        named = mesh.mesh_of_computation(self.op)
        assert named is not None
        axes = tuple(MeshAxis(name, "", n) for name, n in mesh.manual_sizes(self.op).items())
        rank = len(shape_of(own))
        placement = ValueSharding(str(named), (axes, *[()] * (rank - 1)), (True,) * rank)
        return sharding_of(placement, own.context)


def _shardings(op: ir.Operation, name: str) -> list[ir.Attribute]:
    return [*sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings]
