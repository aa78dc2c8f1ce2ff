"""Scopes: blocks of a module that are read as one program, forward and backward bodies together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.loops.counted import invariant_carries
from ..analysis.loops.paired import paired
from ..analysis.loops.pairs import loop_pairs, nested_pairs, pairs_through
from ..analysis.manual_pairs import ManualPair, constant_arguments, manual_pairs
from ..analysis.points.evaluator import Scope
from ..analysis.value_numbers import ValueNumbers
from ..ir import walk
from ..ir.mesh import MANUAL_COMPUTATION
from ..ir.ops import facts_of
from .site import Border, ends_of

_StandsFor = Mapping[ir.Value, ir.Value]


@dataclass(frozen=True)
class BorderedScope:
    """A scope, and what is between its forward and its backward code.

    Attributes:
      scope: the values.
      borders: the pairs of loops and of manual computations in whose bodies it is, one in the
        bodies of the other; none for one block.
    """

    scope: Scope
    borders: tuple[Border, ...] = ()


def scopes_of(module: ir.Module) -> Iterator[BorderedScope]:
    """Yields the scopes of all code of a module, outer ones first."""
    for function in walk.functions(module).values():
        for block in function.regions[0].blocks:  # none of a function that is only declared
            yield from _scopes_of_block(block, ValueNumbers(), {})


def _scopes_of_block(
    block: ir.Block, numbers: ValueNumbers, stands_for: _StandsFor
) -> Iterator[BorderedScope]:
    scope = Scope(numbers, [block], stands_for)
    yield BorderedScope(scope)
    if not any(facts_of(view.operation.name).holds_code for view in block.operations):
        return
    pairs = _alone(_pairs_in(block, scope))
    for pair in pairs:
        yield from _scopes_of_pair((pair,), scope)
    yield from _scopes_inside(block, pairs, scope)


def _pairs_in(block: ir.Block, scope: Scope) -> list[Border]:
    return [*loop_pairs(block), *manual_pairs(block, block, scope, {})]


def _scopes_inside(
    block: ir.Block, pairs: Sequence[Border], around: Scope
) -> Iterator[BorderedScope]:
    """Yields the scopes of code inside a block, apart from that of pairs."""
    taken = {walk.key(op) for pair in pairs for op in ends_of(pair)}
    for view in block.operations:
        op = view.operation
        if not facts_of(op.name).holds_code or walk.key(op) in taken:
            continue
        for region in op.regions:
            for inner in region.blocks:
                numbers, more = around.numbers.copy(), dict(around.stands_for)
                if op.name == "stablehlo.while" and inner == op.regions[1].blocks[0]:
                    for number in invariant_carries(op):
                        more[inner.arguments[number]] = op.operands[number]
                elif op.name == MANUAL_COMPUTATION:
                    _know(constant_arguments(op, around), numbers, more)
                yield from _scopes_of_block(inner, numbers, more)


def _know(
    equal: Iterable[tuple[ir.Value, ir.Value]],
    numbers: ValueNumbers,
    stands_for: dict[ir.Value, ir.Value],
) -> None:
    """Notes values of manual computations that equal others on each device."""
    for value, other in equal:
        numbers.equate(value, other)
        stands_for[value] = other


def _scopes_of_pair(borders: tuple[Border, ...], around: Scope) -> Iterator[BorderedScope]:
    """Yields the scopes of the bodies of the last of some borders."""
    pair = borders[-1]
    more = dict(around.stands_for)
    if isinstance(pair, ManualPair):
        inside = around.numbers.copy()
        for end in ends_of(pair):
            _know(constant_arguments(end, around), inside, more)
        _know(pair.equal(), inside, more)
    else:
        inside = paired(around.numbers, pair)
        for loop in (pair.forward, pair.backward):
            for number in loop.invariant:
                more[loop.body.arguments[number]] = loop.op.operands[number]
        for residual in pair.residuals:
            for read in residual.reads:
                more[read] = residual.stored
    forward, backward = pair.bodies
    scope = Scope(inside, pair.bodies, more)
    yield BorderedScope(scope, borders)
    across: list[Border] = [*manual_pairs(forward, backward, scope, pair.passages)]
    across += (
        pairs_through(forward, backward, pair.passages)
        if isinstance(pair, ManualPair)
        else nested_pairs(pair)
    )
    own = [each for body in pair.bodies for each in _pairs_in(body, scope)]
    inner = _alone([*across, *own])
    for each in inner:
        outer = borders if each in across else ()
        yield from _scopes_of_pair((*outer, each), scope)
    for body in pair.bodies:
        yield from _scopes_inside(body, inner, scope)


def _alone(pairs: Sequence[Border]) -> list[Border]:
    """Returns the pairs whose loops or computations are in no other pair."""
    count = Counter(walk.key(op) for pair in pairs for op in ends_of(pair))
    return [pair for pair in pairs if all(count[walk.key(op)] == 1 for op in ends_of(pair))]
