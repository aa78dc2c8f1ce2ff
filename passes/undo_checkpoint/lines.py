"""Straight-line code behind a barrier that computes again what was computed in front of it."""

from __future__ import annotations

from collections.abc import Collection

from jax.extend.mlir import ir

from ..analysis.purity import is_cheap
from ..analysis.value_numbers import BARRIER, ValueNumbers, has_no_effect
from ..ir import walk
from ..ir.erase import erase
from ..ir.values import defining_op


def barriers_in(block: ir.Block) -> list[ir.Operation]:
    """The optimization barriers of a block."""
    return [view.operation for view in block.operations if view.operation.name == BARRIER]


def merge_across_barriers(block: ir.Block) -> list[ir.Operation]:
    """Lets readers of what is computed again read what was computed first.

    Gives the operations that remain in place of those that were computed again. Where only cheap
    work is computed again nothing is done. XLA merges what no barrier keeps apart.
    """
    if not barriers_in(block):
        return []
    numbers, apart = ValueNumbers(), ValueNumbers(through_barriers=False)
    first: dict[int, ir.Operation] = {}
    merged: list[tuple[ir.Operation, ir.Operation]] = []
    for view in block.operations:
        op = view.operation
        if not len(op.results) or not has_no_effect(op) or numbers.same(op.results[0]) is not None:
            continue
        earlier = first.setdefault(numbers.of(op.results[0]), op)
        if earlier != op and apart.of(op.results[0]) != apart.of(earlier.results[0]):
            merged.append((op, earlier))
    if all(is_cheap(op) for op, _ in merged):
        return []
    bypass([op for op, _ in merged], block)
    for op, earlier in merged:
        for result, same in zip(op.results, earlier.results, strict=True):
            result.replace_all_uses_with(same)
    kept = [earlier for _, earlier in merged]
    erase_unread([op for op, _ in merged])
    return kept


def bypass(ops: Collection[ir.Operation], block: ir.Block) -> None:
    """Removes the barriers of a block that some operations read through."""
    crossed: dict[ir.Value, ir.Operation] = {}
    for op in ops:
        for value in walk.values_read(op):
            while (made := defining_op(value)) is not None and made.name == BARRIER:
                if made.block == block:
                    crossed[made.results[0]] = made
                value = made.operands[ir.OpResult(value).result_number]
    for barrier in crossed.values():
        for result, operand in zip(barrier.results, barrier.operands, strict=True):
            result.replace_all_uses_with(operand)
    erase(*crossed.values())


def erase_unread(ops: Collection[ir.Operation]) -> None:
    """Erases those of some operations, and of what they read, that nothing reads any more."""
    waiting = {walk.key(op): op for op in ops}
    while waiting:
        _, op = waiting.popitem()
        if not has_no_effect(op) or any(True for result in op.results for _ in result.uses):
            continue
        for value in walk.values_read(op):
            maker = defining_op(value)
            if maker is not None and len(maker.results):
                waiting[walk.key(maker)] = maker
        erase(op)
