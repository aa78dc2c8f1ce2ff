"""Stacks in the host's memory, and the slices of them that a loop loads an iteration ahead.

XLA starts such a load at the beginning of the loop's body and awaits it at the end: the slice takes
memory during the whole iteration, beside the one that the iteration works on.
"""

from __future__ import annotations

from collections.abc import Iterator

from jax.extend.mlir import ir

from ..ir import walk
from ..ir.custom_calls import is_stored_on_host, loads_ahead
from ..ir.values import defining_op


def uncounted_values(module: ir.Module) -> Iterator[ir.Value]:
    """Yields values that take no device memory in their block: those on the host, and those loaded
    ahead, which count for as long as the loop runs."""
    for op in walk.operations(module.operation):
        if op.name == "stablehlo.while":
            for number in _stored_on_host(op):
                yield walk.terminator(op.regions[1].blocks[0]).operands[number]
                yield from _carried(op, number)
                yield from _read_by_loops(op.results[number])
            for load in loads_ahead(op).values():
                yield from (load.operands[0], load.results[0])


def _stored_on_host(loop: ir.Operation) -> Iterator[int]:
    """Yields the carries of a loop that store slices on the host."""
    body = loop.regions[1].blocks[0]
    for number, value in enumerate(walk.terminator(body).operands):
        update = defining_op(value)
        if (
            update is not None
            and update.name == "stablehlo.dynamic_update_slice"
            and update.operands[0] == body.arguments[number]
            and is_stored_on_host(update)
        ):
            yield number


def _carried(loop: ir.Operation, number: int) -> Iterator[ir.Value]:
    """Yields a loop's carry: its argument and result, and its operand where only that reads it."""
    yield loop.results[number]
    for region in loop.regions:
        yield region.blocks[0].arguments[number]
    if len(list(loop.operands[number].uses)) == 1:
        yield loop.operands[number]


def _read_by_loops(stack: ir.Value) -> Iterator[ir.Value]:
    for use in stack.uses:
        if (loop := use.owner.operation).name == "stablehlo.while":
            yield loop.results[use.operand_number]
            for region in loop.regions:
                yield region.blocks[0].arguments[use.operand_number]
