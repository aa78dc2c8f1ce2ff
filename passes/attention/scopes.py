"""Scopes: the blocks of a module that are read as one program, forward and backward bodies
together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.loops.counted import invariant_carries
from ..analysis.loops.paired import paired
from ..analysis.loops.pairs import LoopPair, loop_pairs, nested_pairs
from ..analysis.points.evaluator import Scope
from ..analysis.value_numbers import ValueNumbers
from ..ir import walk
from ..ir.ops import facts_of

_StandsFor = Mapping[ir.Value, ir.Value]


@dataclass(frozen=True)
class LoopScope:
    """A scope, and the pair of loops whose bodies it is, if any.

    Attributes:
      scope: the values.
      pair: the pair; None for one block.
      is_nested: the pair's loops are in the bodies of another pair.
    """

    scope: Scope
    pair: LoopPair | None = None
    is_nested: bool = False


def scopes_of(module: ir.Module) -> Iterator[LoopScope]:
    """Yields the scopes of all code of a module, outer ones first."""
    for function in walk.functions(module).values():
        for block in function.regions[0].blocks:  # none of a function that is only declared
            yield from _scopes_of_block(block, ValueNumbers(), {})


def _scopes_of_block(
    block: ir.Block, numbers: ValueNumbers, stands_for: _StandsFor
) -> Iterator[LoopScope]:
    yield LoopScope(Scope(numbers, [block], stands_for))
    pairs = _pairs_alone(loop_pairs(block))
    for pair in pairs:
        yield from _scopes_of_pair(pair, numbers, stands_for, is_nested=False)
    yield from _scopes_inside(block, pairs, numbers, stands_for)


def _scopes_inside(
    block: ir.Block, pairs: list[LoopPair], numbers: ValueNumbers, stands_for: _StandsFor
) -> Iterator[LoopScope]:
    """Yields the scopes of code inside a block, apart from that of pairs."""
    taken = {walk.key(loop.op) for pair in pairs for loop in (pair.forward, pair.backward)}
    for view in block.operations:
        op = view.operation
        if not facts_of(op.name).holds_code or walk.key(op) in taken:
            continue
        for region in op.regions:
            for inner in region.blocks:
                more = dict(stands_for)
                if op.name == "stablehlo.while" and inner == op.regions[1].blocks[0]:
                    for number in invariant_carries(op):
                        more[inner.arguments[number]] = op.operands[number]
                yield from _scopes_of_block(inner, numbers.copy(), more)


def _scopes_of_pair(
    pair: LoopPair, numbers: ValueNumbers, stands_for: _StandsFor, *, is_nested: bool
) -> Iterator[LoopScope]:
    inside = paired(numbers, pair)
    more = dict(stands_for)
    for loop in (pair.forward, pair.backward):
        for number in loop.invariant:
            more[loop.body.arguments[number]] = loop.op.operands[number]
    for residual in pair.residuals:
        for read in residual.reads:
            more[read] = residual.stored
    bodies = [pair.forward.body, pair.backward.body]
    yield LoopScope(Scope(inside, bodies, more), pair, is_nested)
    inner = _pairs_alone(nested_pairs(pair))
    for each in inner:
        yield from _scopes_of_pair(each, inside, more, is_nested=True)
    for body in bodies:
        own = _pairs_alone(loop_pairs(body))
        for each in own:
            yield from _scopes_of_pair(each, inside, more, is_nested=True)
        yield from _scopes_inside(body, [*inner, *own], inside, more)


def _pairs_alone(pairs: list[LoopPair]) -> list[LoopPair]:
    """Returns the pairs whose loops are in no other pair."""
    count: dict[object, int] = {}
    for pair in pairs:
        for loop in (pair.forward, pair.backward):
            count[walk.key(loop.op)] = count.get(walk.key(loop.op), 0) + 1
    return [
        pair
        for pair in pairs
        if count[walk.key(pair.forward.op)] == count[walk.key(pair.backward.op)] == 1
    ]
