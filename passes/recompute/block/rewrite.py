"""Writes the plan of a straight-line block into it."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping, MutableMapping

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ...ir.clone import remap_operands
from ...ir.locations import rematerialized
from ...ir.mesh import is_partitioned
from ...ir.walk import operations
from ...ir.while_rewriter import Replacements
from .gathered import is_gathered
from .plan import BlockPlan, CloneGroup

_Changes = list[tuple[ir.Operation, dict[ir.Value, ir.Value]]]
"""Operations, each with the values that it reads so far and their replacements."""


def apply_block(plan: BlockPlan, replaced: Replacements) -> None:
    """Clones the planned operations and lets the planned readers use the clones."""
    held: dict[ir.Value, ir.Value] = {}
    last: ir.Operation | None = None
    clones: dict[ir.Value, ir.Value] = {}
    changes: _Changes = []
    for window in plan.windows:
        carried = {value: clone for value, clone in clones.items() if value in window.carried}
        clones = dict(carried)
        for group in window.groups:
            before = replaced.op(group.before)
            if last is not None and before.is_before_in_block(last):
                held.clear()  # of a later border, whose barriers come after this one
            last = before
            beside = _read_beside(group, clones.keys())
            behind = _put_barrier(group, beside, carried, held, replaced, changes)
            clones.update(clone_before(before, group.cloned, ChainMap(behind, clones)))
        for reader, values in window.readers:
            changes.append((replaced.op(reader), {value: clones[value] for value in values}))
    # Last: an operation that reads clones in one window may be sunk, and cloned, in another.
    for op, exchanged in changes:
        remap_operands(op, exchanged)


def _read_beside(group: CloneGroup, cloned: Collection[ir.Value]) -> set[ir.Value]:
    """Returns the group's leaves that its clones read directly, as no barrier makes XLA gather
    them.

    They are values of a sharded program that no clone reads alone: a clone is kept apart from the
    original, and waits, by any other operand that comes from a barrier. ``cloned`` are the values
    with clones.
    """
    if not is_partitioned(group.before):
        return set()
    beside = {leaf for leaf in group.leaves if is_gathered(leaf)}
    apart = {*group.leaves, *cloned} - beside
    for op in group.cloned:
        if apart.isdisjoint(op.operands):
            # Operations in its regions may read such values.
            alone = {*op.operands, *(value for inner in operations(op) for value in inner.operands)}
            apart |= beside & alone
            beside -= alone
        if not apart.isdisjoint(op.operands):
            apart.update(op.results)
    return beside


def _put_barrier(
    group: CloneGroup,
    beside: Collection[ir.Value],
    carried: Mapping[ir.Value, ir.Value],
    held: dict[ir.Value, ir.Value],
    replaced: Replacements,
    changes: _Changes,
) -> dict[ir.Value, ir.Value]:
    """Inserts the group's barrier; maps its leaves except ``beside`` to the barrier's results.

    ``carried`` maps leaves to the clones of the window before that replace them.
    ``held`` maps each gate to the result of the last barrier over it.
    """
    apart = [leaf for leaf in group.leaves if leaf not in beside]
    if not apart:
        return {}
    read = [replaced.value(leaf) for leaf in apart]
    leaves = [carried.get(leaf, value) for leaf, value in zip(apart, read, strict=True)]
    planned = [replaced.value(gate) for gate in group.gates]
    gates = [held.get(value, value) for value in planned]
    behind = _barrier(group, [*leaves, *gates], replaced)
    for value, gate, result, readers in zip(
        planned, gates, behind[len(leaves) :], group.gate_readers, strict=True
    ):
        held[value] = result
        for reader in readers:
            changes.append((replaced.op(reader), {gate: result}))
    return dict(zip(read, behind, strict=False))


def _barrier(group: CloneGroup, values: list[ir.Value], replaced: Replacements) -> list[ir.Value]:
    before = replaced.op(group.before)
    with ir.InsertionPoint(before), rematerialized(before.location):
        return list(stablehlo.OptimizationBarrierOp(values).results)


def clone_before(
    anchor: ir.Operation,
    ops: Iterable[ir.Operation],
    replacements: MutableMapping[ir.Value, ir.Value],
) -> dict[ir.Value, ir.Value]:
    """Clones operations in order before ``anchor``; maps each of their results to its clone.

    Operands that are in ``replacements``, or that are cloned here, are replaced.
    """
    made: dict[ir.Value, ir.Value] = {}
    for op in ops:
        clone = op.clone(ir.InsertionPoint(anchor)).operation
        clone.location = rematerialized(op.location)
        remap_operands(clone, ChainMap(made, replacements))
        made.update(zip(op.results, clone.results, strict=True))
    return made
