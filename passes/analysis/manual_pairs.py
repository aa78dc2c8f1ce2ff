"""Pairs of a manual computation and a later one that reads what it returns, part by part.

JAX makes them of a `shard_map` whose gradient is taken outside of it: the second one is its
gradient, and each device reads in it the residuals that it returned from the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

from ..ir import walk
from ..ir.mesh import MANUAL_COMPUTATION
from ..ir.values import defining_op
from .loops.pairs import Passages
from .points.evaluator import Scope
from .points.operations import how


@dataclass(frozen=True)
class PassedResult:
    """A result of the forward computation that the backward one reads as it is placed.

    Attributes:
      result: its number.
      operands: the numbers of the operands that it is.
      is_alone: nothing else reads the result.
    """

    result: int
    operands: tuple[int, ...]
    is_alone: bool


@dataclass(frozen=True)
class ManualPair:
    """Two manual computations over the same axes of a mesh.

    Attributes:
      forward, backward: the computations.
      passed: the results of the first that the second reads.
      shared: numbers of an operand of the first, and of one of the second that is the same value in
        the same placement.
    """

    forward: ir.Operation
    backward: ir.Operation
    passed: tuple[PassedResult, ...]
    shared: tuple[tuple[int, int], ...]

    @property
    def bodies(self) -> tuple[ir.Block, ir.Block]:
        """Returns the blocks of both."""
        return self.forward.regions[0].blocks[0], self.backward.regions[0].blocks[0]

    @property
    def passages(self) -> Passages:
        """Returns, by value of the forward body, the arguments of the backward body that are all
        that reads the result that it is."""
        forward, backward = self.bodies
        returned = walk.terminator(forward).operands
        return {
            returned[each.result]: tuple(backward.arguments[n] for n in each.operands)
            for each in self.passed
            if each.is_alone
        }

    def equal(self) -> Iterator[tuple[ir.Value, ir.Value]]:
        """Yields arguments of the backward body, and values of the forward body that they equal."""
        forward, backward = self.bodies
        returned = walk.terminator(forward).operands
        for each in self.passed:
            for number in each.operands:
                yield backward.arguments[number], returned[each.result]
        for mine, its in self.shared:
            yield backward.arguments[its], forward.arguments[mine]


def manual_pairs(
    forward: ir.Block, backward: ir.Block, scope: Scope, passages: Passages
) -> list[ManualPair]:
    """Returns pairs of a computation in one block and one in another, or in the same.

    A computation is in one pair at most: with that of which it reads the most.

    Args:
      forward, backward: the blocks.
      scope: the values of both.
      passages: by value of the first what alone reads it in the second, where that is another.
    """
    makers = {walk.key(op): op for op in _computations(forward)}
    found: list[ManualPair] = []
    for op in _computations(backward):
        by_maker: dict[object, dict[int, list[int]]] = {}
        for number, operand in enumerate(op.operands):
            value = scope.resolve(operand)
            maker = defining_op(value)
            if maker is None or walk.key(maker) not in makers:
                continue
            result = ir.OpResult(value).result_number
            by_maker.setdefault(walk.key(maker), {}).setdefault(result, []).append(number)
        pairs = [_pair(makers[key], op, read, scope, passages) for key, read in by_maker.items()]
        found += [pair for pair in pairs if pair is not None]
    found.sort(key=lambda pair: -len(pair.passed))
    taken: set[object] = set()
    alone = []
    for pair in found:
        keys = {walk.key(pair.forward), walk.key(pair.backward)}
        if keys.isdisjoint(taken):
            taken |= keys
            alone.append(pair)
    return alone


def constant_arguments(
    computation: ir.Operation, scope: Scope
) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yields arguments of a manual computation's body that another one computes from constants, and
    what that returns: JAX takes what is invariant in a `shard_map` out of a scan.

    ``scope`` has the values around the computation.
    """
    taken = sdy.TensorShardingPerValueAttr(computation.attributes["in_shardings"]).shardings
    for number, operand in enumerate(computation.operands):
        value = scope.resolve(operand)
        maker = defining_op(value)
        if maker is None or maker.name != MANUAL_COMPUTATION:
            continue
        returned = sdy.TensorShardingPerValueAttr(maker.attributes["out_shardings"]).shardings
        result = ir.OpResult(value).result_number
        is_same = maker.attributes["manual_axes"] == computation.attributes["manual_axes"]
        inside = walk.terminator(maker.regions[0].blocks[0]).operands[result]
        if is_same and returned[result] == taken[number] and _is_of_constants(inside):
            yield computation.regions[0].blocks[0].arguments[number], inside


def _is_of_constants(value: ir.Value) -> bool:
    """Whether a value of a manual computation's body is computed from constants alone, so that it
    is the same wherever it is computed: random numbers and the number of a device are not."""
    seen: set[ir.Value] = set()
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        op = defining_op(each)
        if op is None or how(op) is None:
            return False
        waiting += op.operands
    return True


def _computations(block: ir.Block) -> list[ir.Operation]:
    return [v.operation for v in block.operations if v.operation.name == MANUAL_COMPUTATION]


def _pair(
    forward: ir.Operation,
    backward: ir.Operation,
    read: Mapping[int, list[int]],
    scope: Scope,
    passages: Passages,
) -> ManualPair | None:
    if forward.attributes["manual_axes"] != backward.attributes["manual_axes"]:
        return None
    given, taken, returned = (
        sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings
        for op, name in (
            (forward, "in_shardings"),
            (backward, "in_shardings"),
            (forward, "out_shardings"),
        )
    )
    passed = []
    for result, operands in read.items():
        value = forward.results[result]
        same = tuple(
            number
            for number in operands
            if taken[number] == returned[result] and backward.operands[number].type == value.type
        )
        if same:
            is_alone = len(same) == len(operands) and _is_read_by(value, backward, passages)
            passed.append(PassedResult(result, same, is_alone))
    if not passed:
        return None
    shared = tuple(
        (mine, its)
        for its, operand in enumerate(backward.operands)
        for mine, other in enumerate(forward.operands)
        if taken[its] == given[mine] and scope.number(operand) == scope.number(other)
    )
    return ManualPair(forward, backward, tuple(passed), shared)


def _is_read_by(value: ir.Value, reader: ir.Operation, passages: Passages) -> bool:
    """Whether one operation alone reads a value, through reshapes and passages."""
    uses = list(value.uses)
    if value in passages:
        return len(uses) == 1 and all(_is_read_by(x, reader, passages) for x in passages[value])
    return all(
        op == reader
        or (op.name == "stablehlo.reshape" and _is_read_by(op.results[0], reader, passages))
        for op in (use.owner.operation for use in uses)
    )
