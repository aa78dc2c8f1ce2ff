"""Delays loads from a loop's stacks whose readers wait for a ring.

XLA on jax 0.12 loads slices beside other work, as soon as their index is computed. They would be in
memory through the ring, together with the parts that move.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.purity import is_pure
from ..ir import moves, walk
from ..ir.values import constant_int, defining_op

_LOAD = "stablehlo.dynamic_slice"
_UPDATE = "stablehlo.dynamic_update_slice"


@dataclass(frozen=True)
class LateLoads:
    """The operations before a ring that are moved after it.

    Attributes:
      loads: slices of stacks that a loop only reads.
      ops: these and the work on them, in their order.
    """

    loads: tuple[ir.Operation, ...] = ()
    ops: tuple[ir.Operation, ...] = ()

    def indices(self) -> list[ir.Value]:
        """Returns start indices of the slices; the slices are loaded when these are computed."""
        return list(dict.fromkeys(value for op in self.loads for value in _indices_of(op)))

    def move_behind(self, barrier: ir.Operation, indices: dict[ir.Value, ir.Value]) -> None:
        """Makes the loads read the indices from a barrier's results."""
        for op in self.loads:
            for number, value in enumerate(op.operands):
                op.operands[number] = indices.get(value, value)
        moves.move_behind(barrier, self.ops)


def late_loads(ops: Sequence[ir.Operation], first: int, ring: Sequence[ir.Operation]) -> LateLoads:
    """Finds the loads that no operation needs before a ring has ended.

    Args:
      ops: the block's operations.
      first: the number of the operation before which the ring is placed.
      ring: the collective, then the operations in the ring, or right after its last part.
    """
    later = _read_behind(ops, ring[0].results[0], {walk.key(op) for op in ring})
    loads: list[ir.Operation] = []
    late: dict[Hashable, ir.Operation] = {}
    for op in ops[:first]:
        key = walk.key(op)
        if key in later and not late.keys().isdisjoint(map(_made_by, op.operands)):
            late[key] = op
        elif key in later and _is_load(op):
            loads.append(op)
            late[key] = op
    return LateLoads(tuple(loads), tuple(late.values()))


def _read_behind(
    ops: Sequence[ir.Operation], gathered: ir.Value, ring: Collection[Hashable]
) -> set[Hashable]:
    """Finds operations that do not wait for a ring, and that only waiting ones read."""
    [*inner, end] = ops
    waiting = {gathered}
    for op in inner:
        if not waiting.isdisjoint(walk.values_read(op)):
            waiting.update(op.results)
    found: set[Hashable] = set()

    def is_behind(reader: ir.Operation) -> bool:
        if reader == end:
            return True
        key = walk.key(reader)
        return key not in ring and (key in found or not waiting.isdisjoint(reader.results))

    for op in reversed(inner):
        if not len(op.results) or walk.key(op) in ring or not waiting.isdisjoint(op.results):
            continue
        uses = (use.owner.operation for result in op.results for use in result.uses)
        if is_pure(op) and all(is_behind(walk.ancestor_in(op.block, each)) for each in uses):
            found.add(walk.key(op))
    return found


def _is_load(op: ir.Operation) -> bool:
    """Whether an operation loads a slice of a stack that its loop only reads."""
    if op.name != _LOAD or defining_op(op.operands[0]) is not None:
        return False
    updated = any(
        use.owner.operation.name == _UPDATE and use.operand_number == 0
        for use in op.operands[0].uses
    )
    return bool(_indices_of(op)) and not updated


def _indices_of(load: ir.Operation) -> list[ir.Value]:
    return [value for value in [*load.operands][1:] if constant_int(value) is None]


def _made_by(value: ir.Value) -> Hashable:
    maker = defining_op(value)
    return None if maker is None else walk.key(maker)
