"""Erasing operations and arguments: nothing is erased that something left behind reads.

The bindings free an operation also where its results are read. What reads them then reads freed
memory, and ends the process, now or much later. So this module alone erases (a test holds it), and
checks before: a rewrite that goes wrong is an error in words.
"""

from __future__ import annotations

from collections.abc import Iterator

from jax.extend.mlir import ir

from hloom.passes.ir import walk
from hloom.passes.ir.locations import source_line


class StillReadError(Exception):
    """What was to be erased is read by something that stays."""


def erase(*ops: ir.Operation) -> None:
    """Erases operations with all code in them, in whatever order they are given.

    Raises StillReadError, before anything is erased, where an operation that stays reads a result
    of one, or anything outside of one reads a value of the code in it.
    """
    if len(ops) == 1 and not any(True for _ in _reads_from(ops[0])):
        ops[0].erase()
        return
    group = {walk.key(op): op for op in ops}
    waiting = list(group.values())
    order: dict[object, ir.Operation] = {}
    """Each behind all that read it."""
    opened: set[object] = set()
    while waiting:
        op = waiting[-1]
        key = walk.key(op)
        if key in order:
            waiting.pop()
            continue
        readers = {} if key in opened else _readers(op, group)
        opened.add(key)
        left = [reader for at, reader in readers.items() if at not in order]
        if left:
            waiting += left
        else:
            order[key] = waiting.pop()
    for op in order.values():
        op.erase()


def erase_argument(block: ir.Block, number: int) -> None:
    """Erases an argument of a block. Raises StillReadError where something reads it."""
    argument = block.arguments[number]
    for use in argument.uses:
        raise _still_read(f"argument {number} of {_described(block.owner.operation)}", use)
    block.erase_argument(number)


def _readers(op: ir.Operation, group: dict[object, ir.Operation]) -> dict[object, ir.Operation]:
    """The operations of a group that read the results of one. Raises StillReadError for others."""
    found: dict[object, ir.Operation] = {}
    for use in _reads_from(op):
        reader = _in_group(use.owner.operation, group)
        if reader is None:
            raise _still_read(_described(op), use)
        found[walk.key(reader)] = reader
    return found


def _reads_from(op: ir.Operation) -> Iterator[ir.OpOperand]:
    """The uses of an operation's results. Raises StillReadError for uses of code in it outside."""
    for result in op.results:
        yield from result.uses
    if len(op.regions):
        for value in _inner_values(op):
            for use in value.uses:
                if not _is_inside(use.owner.operation, op):
                    raise _still_read(f"a value inside of {_described(op)}", use)


def _inner_values(op: ir.Operation) -> Iterator[ir.Value]:
    for region in op.regions:
        for block in region.blocks:
            yield from block.arguments
            for view in block.operations:
                yield from view.operation.results
                if len(view.operation.regions):
                    yield from _inner_values(view.operation)


def _is_inside(op: ir.Operation, outer: ir.Operation) -> bool:
    parent = op.parent
    while parent is not None:
        if parent.operation == outer:
            return True
        parent = parent.operation.parent
    return False


def _in_group(op: ir.Operation, group: dict[object, ir.Operation]) -> ir.Operation | None:
    """The operation of a group that is another one or holds it."""
    current: ir.Operation | None = op
    while current is not None:
        found = group.get(walk.key(current))
        if found is not None:
            return found
        current = None if current.parent is None else current.parent.operation
    return None


def _still_read(what: str, use: ir.OpOperand) -> StillReadError:
    return StillReadError(
        f"{what} was to be erased, and {_described(use.owner.operation)} still reads it"
    )


def _described(op: ir.Operation) -> str:
    line = source_line(op.location)
    return f"{op.name} of {line}" if line else op.name
