"""The memory that kernels of attention and of ragged products take beside operands and results.

cuDNN's gradient sums that of the queries in float32, and keeps a row of sums for each head: on a
GPU XLA asks cuDNN for so many bytes, which a compile without one does not know. Estimated from the
kernels' definition; not measured.

On a TPU attention leaves each row's statistics in all lanes of a register; one lane is taken behind
the kernel (`splash_attention_kernel.py`, `logsumexp`).

XLA:GPU computes a ragged product as a dense product. Each operand of rows is repeated for every
group, with zeros for the rows of others. Matrices whose contracted axis does not follow the groups'
axis are transposed first: the dense product contracts both as one. Compiled with jax 0.10.2,
2026-11-28: for 8 groups, 4096 rows and matrices of 512 x 1024 in bfloat16 the product takes 32 MiB,
the rows' gradient 72, that of the matrices 96.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...ir.attention_marks import ATTENTION, ATTENTION_GRADIENT
from ...ir.marks import COMPOSITE, mark_name
from ...ir.products import RAGGED_DOT, ProductAxes
from ...ir.values import shape_of
from ..program import Program
from .tiles import LANES
from .trace import OpTrace

_FLOAT_BYTES, _ROW_BYTES = 4, 8


def hold_scratch(graph: Program, trace: OpTrace) -> None:
    """Adds the scratch memory to the bytes alive while each gradient of attention runs on a GPU."""
    for position in _marks(graph, trace, ATTENTION_GRADIENT):
        *rows, size = shape_of(graph.ops[position].operands[0])
        trace.inner[position] += math.prod(rows) * (_FLOAT_BYTES * size + _ROW_BYTES)


def hold_lanes(graph: Program, trace: OpTrace) -> None:
    """Adds the statistics in all lanes to the bytes alive while each attention runs on a TPU."""
    for position in _marks(graph, trace, ATTENTION):
        rows = math.prod(shape_of(graph.ops[position].results[1]))
        trace.inner[position] += rows * LANES * _FLOAT_BYTES


def _marks(graph: Program, trace: OpTrace, mark: str) -> Iterator[int]:
    for position, name in enumerate(graph.names[: len(trace.uses)]):
        if name == COMPOSITE and mark_name(graph.ops[position]) == mark:
            yield position


def hold_copies(graph: Program, trace: OpTrace) -> None:
    """Adds the copies to the bytes alive while each ragged product of a block runs."""
    for position, name in enumerate(graph.names[: len(trace.uses)]):
        if name == RAGGED_DOT:
            trace.inner[position] += _copied_bytes(graph, position)


def _copied_bytes(graph: Program, position: int) -> int:
    op = graph.ops[position]
    axes, groups = ProductAxes.of(op), shape_of(op.operands[2])[-1]
    if {*axes.ragged} & {*axes.left.batch}:
        return 0  # nothing is multiplied twice
    left, right = (graph.bytes_of(graph.index[operand]) for operand in [*op.operands][:2])
    if not axes.groups:
        return groups * (left + right)
    [group], contracted = axes.groups, axes.right.contracted
    is_transposed = [*contracted] != [*range(group + 1, group + 1 + len(contracted))]
    return groups * left + is_transposed * right
