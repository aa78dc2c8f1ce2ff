"""The scratch memory of cuDNN's gradient of attention, which a compile without a GPU does not know.

The gradient of the queries is summed in float32, and a row of sums is kept for each head: on a GPU
XLA asks cuDNN for so many bytes. Estimated from the kernels' definition; not measured.
"""

from __future__ import annotations

from ...ir.attention_marks import ATTENTION_GRADIENT
from ...ir.marks import COMPOSITE, mark_name
from ...ir.values import shape_of
from ..program import Program
from .trace import OpTrace

_FLOAT_BYTES, _ROW_BYTES = 4, 8


def hold_scratch(graph: Program, trace: OpTrace) -> None:
    """Adds the scratch memory to the bytes alive while each gradient of attention runs."""
    for position, name in enumerate(graph.names[: len(trace.uses)]):
        if name == COMPOSITE and mark_name(graph.ops[position]) == ATTENTION_GRADIENT:
            batch, queries, heads, size = shape_of(graph.ops[position].operands[0])
            rows = batch * queries * heads
            trace.inner[position] += rows * (_FLOAT_BYTES * size + _ROW_BYTES)
