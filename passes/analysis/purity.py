"""Whether an operation may be recomputed or left out, by its row in the table and its regions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from jax.extend.mlir import ir

from ..ir import walk
from ..ir.custom_calls import CUSTOM_CALL
from ..ir.erase import erase
from ..ir.marks import COMPOSITE
from ..ir.op_facts import OpKind
from ..ir.ops import facts_of
from ..ir.shardings import CONSTRAINT
from ..ir.values import defining_op, is_read
from .kernels import is_pure_kernel
from .shardings.constraints import SplitSearch, moves_a_parameter, moves_nothing


def kind_of(op: ir.Operation, splits: SplitSearch | None = None) -> OpKind:
    """Returns whether an operation may be recomputed; one not known to be pure is OPAQUE.

    ``splits`` is as for `moves_nothing`.
    """
    name = op.name
    kind = facts_of(name).kind
    if kind is OpKind.CHEAP or kind is OpKind.CONSTANT:
        return kind  # as most operations are
    if name == CONSTRAINT:
        if moves_nothing(op, splits):
            return OpKind.CHEAP
        return OpKind.EXPENSIVE if moves_a_parameter(op) else OpKind.OPAQUE
    if name in (CUSTOM_CALL, COMPOSITE):
        return OpKind.EXPENSIVE if is_pure_kernel(op) else OpKind.OPAQUE
    if kind is OpKind.REDUCTION and not _is_plain_reduction(op):
        kind = OpKind.EXPENSIVE
    return OpKind.OPAQUE if kind is OpKind.EXPENSIVE and not _all_inside(op, is_pure) else kind


CHEAP_KINDS = frozenset({OpKind.CONSTANT, OpKind.CHEAP, OpKind.REDUCTION})
"""Kinds of operations that are always worth recomputing for the memory of their results."""


def is_cheap(op: ir.Operation) -> bool:
    """Whether the operation is pure, and cheap to recompute."""
    return kind_of(op) in CHEAP_KINDS


def is_pure(op: ir.Operation) -> bool:
    """Whether the operation may be recomputed at all."""
    return kind_of(op) is not OpKind.OPAQUE


def may_go(op: ir.Operation) -> bool:
    """Whether the operation may be erased where nothing reads its results."""
    if op.name == CONSTRAINT or (facts_of(op.name).branches and _all_inside(op, may_go)):
        return True
    return is_pure(op)


def erase_dead(block: ir.Block) -> set[Hashable]:
    """Erases the operations of a block that have no side effect and no used result.

    Returns the keys (`walk.key`) of the loops and branches among them, and inside of them.
    """
    erased: set[Hashable] = set()
    for view in reversed(list(block.operations)):
        op = view.operation
        if not is_read(op) and may_go(op):
            if len(op.regions):
                erased |= {walk.key(each) for each in (op, *walk.operations(op)) if each.regions}
            erase(op)
    return erased


def erase_unread(
    ops: Iterable[ir.Operation], may_erase: Callable[[ir.Operation], bool] = may_go
) -> None:
    """Erases the unread ones of some operations, and of the operations that these read."""
    waiting = {walk.key(op): op for op in ops}
    while waiting:
        _, op = waiting.popitem()
        if is_read(op) or not may_erase(op):
            continue
        makers = (defining_op(value) for value in walk.values_read(op))
        waiting |= {walk.key(each): each for each in makers if each is not None}
        erase(op)


def _all_inside(op: ir.Operation, holds: Callable[[ir.Operation], bool]) -> bool:
    """Whether ``holds`` is true for all operations in the operation's regions."""
    return all(
        holds(inner) or facts_of(inner.name).ends_block
        for region in op.regions
        for block in region.blocks
        for inner in (view.operation for view in block.operations)
    )


def is_table(op: ir.Operation) -> bool:
    """Whether the operation is a constant that spells out its elements.

    Cloning one would spell them out again in the program that XLA reads.
    """
    if op.name != "stablehlo.constant":
        return False
    try:
        elements = op.attributes["value"]
    except TypeError:  # the bindings cannot read dense elements of complex type
        return ir.RankedTensorType(op.results[0].type).rank > 0
    return not (isinstance(elements, ir.DenseElementsAttr) and elements.is_splat)


def _is_plain_reduction(op: ir.Operation) -> bool:
    """Whether an operation is a reduction with a cheap body that reads nothing from outside."""
    block = op.regions[0].blocks[0]
    inside: set[ir.Value] = set(block.arguments)
    *body, terminator = [view.operation for view in block.operations]
    for inner in body:
        if kind_of(inner) not in (OpKind.CONSTANT, OpKind.CHEAP):
            return False
        if not inside.issuperset(inner.operands):
            return False
        inside.update(inner.results)
    return inside.issuperset(terminator.operands)
