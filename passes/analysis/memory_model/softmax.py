"""The memory of a softmax and of its gradient on XLA:GPU, where it differs from fusion's rules."""

from __future__ import annotations

import math

from jax.extend.mlir import ir

from ...ir.op_facts import BufferUse
from ...ir.values import shape_of
from ..program import FROM_OUTSIDE, Program
from .fusion import FUSED, INLINED
from .layouts import transposed_products
from .trace import OpTrace

_LONGEST_BROADCAST = 6
"""The most operations between a maximum and its subtraction; JAX writes up to four."""


def mark_softmax(graph: Program, trace: OpTrace) -> None:
    """Marks reductions of rows that a softmax's kernel may compute, and its shifts."""
    reduced = [n for n, name in enumerate(graph.names) if name == "stablehlo.reduce"]
    for position in reduced:
        if trace.uses[position] is BufferUse.REDUCTION and _reduces_rows(graph, position):
            trace.uses[position] = BufferUse.ROWS
    if reduced:
        _mark_shifts(graph, trace)


def _reduces_rows(graph: Program, position: int) -> bool:
    """Whether a reduction is along the last axes, of no more elements than a softmax's may be.

    A device has to have whole rows: from a part of each it computes only a part of the sum.
    """
    op = graph.ops[position]
    shape = tuple(shape_of(op.operands[0]))
    reduced = sorted(ir.DenseI64ArrayAttr(op.attributes["dimensions"]))
    first = len(shape) - len(reduced)
    length = math.prod(shape[first:])
    return (
        reduced == [*range(first, len(shape))]
        and length <= graph.device.rules.longest_row
        and graph.device.local_shape(op.operands[0])[first:] == shape[first:]
    )


def _mark_shifts(graph: Program, trace: OpTrace) -> None:
    """Marks x - max(x), a softmax's shift, where nothing else reads x."""
    for position, name in enumerate(graph.names[: len(trace.uses)]):
        if name != "stablehlo.subtract":
            continue
        value, other = (graph.index[operand] for operand in graph.ops[position].operands)
        shifted = graph.results[position][0]
        if len(graph.users[value]) != 2 or len(graph.users[shifted]) < 2:
            continue
        if value in _maximum_of(graph, trace, other):
            trace.uses[position] = BufferUse.SHIFT


def _maximum_of(graph: Program, trace: OpTrace, value: int) -> list[int]:
    """Returns the operands of the maximum of rows that a value is broadcast from; else nothing."""
    constant = graph.constant_derived
    for _ in range(_LONGEST_BROADCAST):
        producer = graph.producers[value]
        if producer == FROM_OUTSIDE:
            break
        op = graph.ops[producer]
        if trace.uses[producer] is BufferUse.ROWS:
            combines = op.regions[0].blocks[0].operations[0].operation.name
            return graph.operands[producer] if combines == "stablehlo.maximum" else []
        value = next((v for v in graph.operands[producer] if not constant[v]), value)
    return []


def mark_transposed(graph: Program, trace: OpTrace) -> None:
    """Keeps a product's conversion where XLA transposes it for several readers.

    Where the product is the gradient of attention's weights, XLA:GPU writes a transposed copy of
    the weights, for the gradient of the values, in one kernel with the gradient of the scores, so
    that both are in memory at once (multi_output_fusion.cc; compiled with jax 0.10.2 and 0.12.0.1,
    2026-11-27, for batches of 1, 3, 4 and 8; for 2 it makes no such copy).
    """
    for product in transposed_products(graph):
        if trace.uses[product.conversion] not in FUSED:
            continue
        trace.uses[product.conversion] = BufferUse.HEAVY
        if product.beside == FROM_OUTSIDE or not graph.device.rules.copies_weights:
            continue
        gradients = _read_by_products(graph, trace, product.conversion)
        weights = _read_by_products(graph, trace, product.beside) - gradients
        if gradients and weights:
            kernel = min(graph.producers[value] for value in gradients)
            trace.inner[kernel] += sum(map(graph.bytes_of, weights))


def _read_by_products(graph: Program, trace: OpTrace, position: int) -> set[int]:
    """Returns the values that products read and that follow elementwise from an operation's."""
    [made] = graph.results[position]
    count = _elements(graph, made)
    found, seen, waiting = set[int](), {made}, [made]
    while waiting:
        value = waiting.pop()
        for user in graph.users[value]:
            if user >= len(trace.uses):
                continue
            if graph.names[user] == "stablehlo.dot_general":
                found.add(value)
            elif trace.uses[user] in INLINED:
                [result] = graph.results[user]
                if result not in seen and _elements(graph, result) == count:
                    seen.add(result)
                    waiting.append(result)
    return found


def _elements(graph: Program, value: int) -> int:
    return math.prod(shape_of(graph.values[value]))
