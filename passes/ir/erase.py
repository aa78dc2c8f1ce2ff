"""Erasing operations and arguments: nothing is erased that a remaining operation reads.

The bindings free an operation even where its results are read. The reader then reads freed memory,
which ends the process, now or much later. So this module alone erases (a test checks that), and
checks first: a rewrite that goes wrong raises an error.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

from jax.extend.mlir import ir

from . import walk
from .locations import source_line


class StillReadError(Exception):
    """An operation that stays reads a value that was to be erased."""


def erase(*ops: ir.Operation) -> None:
    """Erases operations with all code in them; their order does not matter.

    Raises StillReadError, before anything is erased, where an operation that stays reads a result
    of one, or anything outside of one reads a value of the code in it.
    """
    if len(ops) == 1 and not any(True for _ in _reads_from(ops[0])):
        ops[0].erase()
        return
    group = _Group(ops)
    waiting = list(group.keys)
    order: dict[Hashable, None] = {}
    """The operations, each after all its readers."""
    opened: set[Hashable] = set()
    while waiting:
        key = waiting[-1]
        if key in order:
            waiting.pop()
            continue
        readers = () if key in opened else _readers(group.keys[key], group)
        opened.add(key)
        left = [reader for reader in readers if reader not in order]
        if left:
            waiting += left
        else:
            order[waiting.pop()] = None
    for key in order:
        group.keys[key].erase()


def replace(op: ir.Operation, values: Iterable[ir.Value]) -> None:
    """Replaces the results of an operation with other values, and erases it."""
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    erase(op)


class _Group:
    """Operations that are erased together.

    Attributes:
      keys: each operation by a key, that of one without results its number: `walk.key` would hash
        its operands, once for each of them.
    """

    def __init__(self, ops: Iterable[ir.Operation]) -> None:
        self.keys: dict[Hashable, ir.Operation] = {}
        self._without_results: list[ir.Operation] = []
        for op in ops:
            if self._key(op) is None:
                self._without_results.append(op)
                self.keys[len(self._without_results)] = op
            elif self._key(op) not in self.keys:
                self.keys[self._key(op)] = op

    def key_around(self, op: ir.Operation) -> Hashable | None:
        """Returns the key of the operation of the group that ``op`` is or is inside of."""
        current: ir.Operation | None = op
        while current is not None:
            key = self._key(current)
            if key in self.keys:
                return key
            current = None if current.parent is None else current.parent.operation
        return None

    def _key(self, op: ir.Operation) -> Hashable | None:
        """Returns the key that an operation has in the group; None for one without results outside
        of it."""
        if len(op.results):
            return walk.key(op)
        found = (number for number, each in enumerate(self._without_results, 1) if each == op)
        return next(found, None)


def erase_argument(block: ir.Block, number: int) -> None:
    """Erases an argument of a block. Raises StillReadError where something reads it."""
    argument = block.arguments[number]
    for use in argument.uses:
        raise _still_read(f"argument {number} of {_described(block.owner.operation)}", use)
    block.erase_argument(number)


def _readers(op: ir.Operation, group: _Group) -> dict[Hashable, None]:
    """Returns the keys of a group's operations that read the results of one. Raises StillReadError
    for others."""
    found: dict[Hashable, None] = {}
    for use in _reads_from(op):
        reader = group.key_around(use.owner.operation)
        if reader is None:
            raise _still_read(_described(op), use)
        found[reader] = None
    return found


def _reads_from(op: ir.Operation) -> Iterator[ir.OpOperand]:
    """Yields the uses of an operation's results. Raises StillReadError if code in it is read
    outside."""
    for result in op.results:
        yield from result.uses
    if len(op.regions):
        for value in walk.values_inside(op):
            for use in value.uses:
                if not _is_inside(use.owner.operation, op):
                    raise _still_read(f"a value inside of {_described(op)}", use)


def _is_inside(op: ir.Operation, outer: ir.Operation) -> bool:
    parent = op.parent
    while parent is not None:
        if parent.operation == outer:
            return True
        parent = parent.operation.parent
    return False


def _still_read(what: str, use: ir.OpOperand) -> StillReadError:
    return StillReadError(
        f"{what} was to be erased, and {_described(use.owner.operation)} still reads it"
    )


def _described(op: ir.Operation) -> str:
    line = source_line(op.location)
    return f"{op.name} of {line}" if line else op.name
