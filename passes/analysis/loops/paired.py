"""Equal values of a forward and of a backward body in iterations with one index."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from jax.extend.mlir import ir

from ...ir import walk
from ...ir.ops import BARRIER
from ..purity import is_cheap
from ..value_numbers import ValueNumbers, has_no_effect
from .counted import affine_in
from .pairs import LoopPair


def paired(numbers: ValueNumbers, pair: LoopPair) -> ValueNumbers:
    """Returns numbers that are equal for values of two bodies that are equal at one index.

    ``numbers`` are those of the values around the loops.
    """
    loops = (pair.forward, pair.backward)
    for loop in loops:
        for number in loop.invariant:
            numbers.of(loop.op.operands[number])  # once for all pairs that read it
    inside = numbers.copy()
    for loop in loops:
        for number in loop.invariant:
            inside.equate(loop.body.arguments[number], loop.op.operands[number])
    for residual in pair.residuals:
        for read in residual.reads:
            inside.equate(read, residual.stored)
    if not pair.forward.is_open:
        index = pair.residuals[0].stack.update.operands[2]
        for value in _indices(pair):
            inside.equate(value, index)
    return inside


def _indices(pair: LoopPair) -> Iterable[ir.Value]:
    """Yields the values of the backward body that are its index of the stacks, however computed."""
    counter = pair.backward.body.arguments[pair.backward.counter]
    line = affine_in(pair.index, counter)
    yield pair.index
    for value in results_in(pair.backward.body) if line is not None else ():
        if value.type == pair.index.type and affine_in(value, counter) == line:
            yield value


def results_in(block: ir.Block) -> Iterable[ir.Value]:
    """Yields the results of the operations of a block."""
    for view in block.operations:
        yield from view.operation.results


def may_compute_again(pair: LoopPair) -> bool:
    """Whether a backward body has expensive work that resembles some of the forward body.

    Most have none, and this check is faster than numbering the values.
    """
    done = {_looks(op) for op in _expensive(pair.forward.body)}
    return any(_looks(op) in done for op in _expensive(pair.backward.body))


def _expensive(block: ir.Block) -> Iterable[ir.Operation]:
    for view in block.operations:
        op = view.operation
        if op.name != BARRIER and len(op.results) and not is_cheap(op) and has_no_effect(op):
            yield op


def _looks(op: ir.Operation) -> Hashable:
    if len(op.regions):
        return op.name  # the code inside may match in parts
    attributes = walk.readable_attributes(op)
    types = tuple(value.type for value in (*op.operands, *op.results))
    return op.name, types, tuple(attributes.items())
