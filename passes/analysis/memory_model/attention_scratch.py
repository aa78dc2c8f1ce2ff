"""The memory that kernels of attention take beside their operands and results.

cuDNN's gradient sums that of the queries in float32, and keeps a row of sums for each head: on a
GPU XLA asks cuDNN for so many bytes, which a compile without one does not know. Estimated from the
kernels' definition; not measured.

On a TPU attention leaves each row's statistics in all lanes of a register; one lane is taken behind
the kernel (`splash_attention_kernel.py`, `logsumexp`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...ir.attention_marks import ATTENTION, ATTENTION_GRADIENT
from ...ir.marks import COMPOSITE, mark_name
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
