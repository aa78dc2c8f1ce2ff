"""Products that XLA:GPU turns into multiplications, which each kernel that reads them recomputes.

Most gradients of single examples are such products. A
reduction of a transposed one reads the value before the transpose, as XLA moves transposes after
elementwise work, so that a later product's transposed operand is in memory for that product alone.
Where a transposed one, or elementwise work on it, is summed over its last axis by one product and
over all others by another one, XLA has it in memory in both orders, written by one kernel.

Compiled with jax 0.10.2, 2026-11-28: batches of 64 and 128 examples, widths of 256 and 512; both
orders with jax 0.10.2 and 0.12.0.1, 2026-11-29.
"""

from __future__ import annotations

from ...ir.op_facts import BufferUse
from ...ir.products import ProductAxes, sums_nothing
from ..program import Program
from .fusion import REDUCTIONS
from .trace import OpTrace

_PRODUCT, _TRANSPOSE = "stablehlo.dot_general", "stablehlo.transpose"
_INLINE = frozenset({BufferUse.ELEMENTWISE, BufferUse.HEAVY})


def mark_outer_products(graph: Program, trace: OpTrace) -> None:
    """Marks the products that are multiplications, and their transposed readers in sums."""
    twice: set[int] = set()
    for position, name in enumerate(graph.names[: len(trace.uses)]):
        if name != _PRODUCT or not sums_nothing(graph.ops[position]):
            continue
        trace.uses[position] = BufferUse.FUSED
        [made] = graph.results[position]
        for user in graph.users[made]:
            if graph.names[user] == _TRANSPOSE:
                transposed = graph.results[user][0]
                _read_untransposed(graph, trace, transposed, made)
                value = _computed_from(graph, trace, transposed)
                if value not in twice and (weights := _for_weights(graph, value)):
                    # The product's own memory stands for the value in its order.
                    twice.add(value)
                    trace.uses[position] = BufferUse.HEAVY
                    for reader in weights:
                        reads = trace.reads[reader]
                        trace.reads[reader] = [made if v == value else v for v in reads]


def _computed_from(graph: Program, trace: OpTrace, value: int) -> int:
    """Returns the last of the values that elementwise work alone computes from a value, each of
    which has one reader."""
    while len(graph.users[value]) == 1:
        [user] = graph.users[value]
        is_last = user >= len(trace.uses) or trace.uses[user] not in _INLINE
        if is_last or len(graph.results[user]) != 1:
            break
        [value] = graph.results[user]
    return value


def _for_weights(graph: Program, value: int) -> list[int]:
    """Returns the products that sum over all axes of a value but the last, where others sum over
    the last: XLA writes the value in both orders."""
    rows: list[int] = []
    columns: list[int] = []
    for user in graph.users[value]:
        if graph.names[user] != _PRODUCT:
            continue
        op = graph.ops[user]
        axes = ProductAxes.of(op)
        for operand, mine in zip(op.operands, (axes.left, axes.right), strict=True):
            if graph.index[operand] == value:
                (columns if mine.free == (mine.rank - 1,) else rows).append(user)
    return columns if rows else []


def _read_untransposed(graph: Program, trace: OpTrace, transposed: int, made: int) -> None:
    """Makes elementwise work for reductions read the operand of a transpose, not its result."""
    for user in graph.users[transposed]:
        if user < len(trace.uses) and _is_for_reductions(graph, trace, transposed, user):
            trace.reads[user] = [made if v == transposed else v for v in trace.reads[user]]


def _is_for_reductions(graph: Program, trace: OpTrace, value: int, position: int) -> bool:
    """Whether an operation reduces the value, or computes from it alone a value for reductions."""
    while True:
        others = [v for v in graph.operands[position] if v != value]
        if not all(graph.constant_derived[v] for v in others):
            return False
        if trace.uses[position] in REDUCTIONS:
            return True
        if trace.uses[position] not in _INLINE or len(graph.results[position]) != 1:
            return False
        [value] = graph.results[position]
        if len(graph.users[value]) != 1:
            return False
        [position] = graph.users[value]
        if position >= len(trace.uses):
            return False
