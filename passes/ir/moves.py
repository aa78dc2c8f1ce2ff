"""Moving operations inside of their block: no operation is moved past its operands or its readers.

The bindings move an operation anywhere. An error then shows when the module is verified, far from
its cause. So passes move operations of a block by this module only (a test checks that), which
checks all operands and readers before anything is moved. A move that another rewrite has made
already does nothing: two rewrites may need an operation before each of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

from jax.extend.mlir import ir

from . import walk
from .locations import named
from .values import defining_op


class MisplacedError(Exception):
    """A move would place an operation before one of its operands, or after one of its readers."""


def move_before(place: ir.Operation, ops: Iterable[ir.Operation]) -> None:
    """Moves operations before another one of their block, except those that are before it already.

    They are given in the order of the text. Raises MisplacedError, before anything is moved, where
    an operand of one would be after it.
    """
    moved = [op for op in ops if not op.is_before_in_block(place)]
    with_them = {walk.key(op) for op in moved}
    for op in moved:
        _check_read(op, with_them, lambda maker: maker.is_before_in_block(place))
    for op in moved:
        op.move_before(place)


def move_behind(place: ir.Operation, ops: Iterable[ir.Operation]) -> None:
    """Moves operations right after another one of their block, except those after it already.

    They are given in the order of the text. Raises MisplacedError, before anything is moved, where
    an operation that stays reads one.
    """
    moved = [op for op in ops if not place.is_before_in_block(op)]
    with_them = {walk.key(op) for op in moved}
    for op in moved:
        for result in op.results:
            for use in result.uses:
                reader = walk.ancestor_in(op.block, use.owner.operation)
                if walk.key(reader) not in with_them and not place.is_before_in_block(reader):
                    raise MisplacedError(
                        f"{named(op)} was to be moved behind {named(reader)}, which reads it"
                    )
    for op in reversed(moved):
        op.move_after(place)


def move_into(place: ir.Operation, ops: Iterable[ir.Operation]) -> None:
    """Moves operations right before one of another block, in the order given, or of their own block
    while a rewrite replaces what they read.

    Operands are not checked: the caller replaces them before or afterwards.
    """
    for op in ops:
        op.move_before(place)


def reorder(block: ir.Block, order: Sequence[ir.Operation]) -> None:
    """Reorders all operations of a block but its terminator.

    Raises MisplacedError, before anything is moved, where one would be before one of its operands.
    """
    place: dict[ir.Value, int] = {v: n for n, op in enumerate(order) for v in op.results}
    for number, op in enumerate(order):
        for value in walk.values_read(op) if len(op.regions) else op.operands:
            if place.get(value, -1) >= number:
                raise _misplaced(op, order[place[value]])
    move_into(walk.terminator(block), order)


def _misplaced(op: ir.Operation, maker: ir.Operation) -> MisplacedError:
    read = f"{named(maker)}, whose result it reads"
    return MisplacedError(f"{named(op)} was to be moved before {read}")


def _check_read(
    op: ir.Operation, with_it: Collection[Hashable], is_before: Callable[[ir.Operation], bool]
) -> None:
    """Raises MisplacedError where an operation would be before one of its operands."""
    for value in walk.values_read(op):
        maker = defining_op(value)
        if maker is None or maker.block != op.block or walk.key(maker) in with_it:
            continue
        if not is_before(maker):
            raise _misplaced(op, maker)
