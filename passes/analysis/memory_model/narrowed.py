"""Float32 values that XLA:TPU keeps in 16 bits, because they are only read in 16 bits.

A product at the default precision reads 16 bits of float32. Where nothing else reads a value, it is
kept in these, and so are stacks of which loops read slices: the stack of one loop for another, a
value computed before the loops, such as transposed weights, and the program's arguments, such as
weights that each iteration converts. An argument is copied before the first loop that reads it, and
the copy is kept until the last one.

Source: the buffer assignment of MaxText's decoder and of loops written for this purpose, libtpu
0.0.42 to 0.0.52, 2026-11-26.
"""

from __future__ import annotations

from collections.abc import Iterator

from jax.extend.mlir import ir

from ...ir import walk
from ...ir.ops import BARRIER
from ...ir.shardings import CONSTRAINT
from ...ir.types import element_bits
from ..program import FROM_OUTSIDE, Program
from .fusion import INLINED, REDUCTIONS
from .trace import OpTrace

_MOVES = frozenset({"stablehlo.reshape", "stablehlo.transpose"})
_SLICES = frozenset({"stablehlo.dynamic_slice"})
_NARROW_BITS = 16


def narrow_for_products(graph: Program, trace: OpTrace) -> None:
    """Halves float32 values that products alone read, and sums read only as 16 bits."""
    for value, is_for_products in enumerate(for_products(graph)):
        producer = graph.producers[value]
        if producer == FROM_OUTSIDE or not _is_float32(graph.values[value]):
            continue
        is_sum = producer < len(trace.uses) and trace.uses[producer] in REDUCTIONS
        if is_for_products or (is_sum and _is_narrowed(graph.values[value])):
            trace.sizes[value] //= 2


def for_products(graph: Program) -> list[bool]:
    """Returns, by value, whether products alone read it, at the default precision."""
    found = [False] * len(graph.users)
    for value in range(len(graph.users) - 1, -1, -1):
        users = graph.users[value]
        found[value] = bool(users) and all(
            _rounds(graph.ops[user])
            or (graph.names[user] in _MOVES and found[graph.results[user][0]])
            for user in users
        )
    return found


def narrow_stacks(graph: Program, trace: OpTrace) -> None:
    """Halves float32 stacks that loops read in 16 bits; adds a copy of those from outside."""
    for value, loops in _narrowing_loops(graph, len(trace.uses)).items():
        producer = graph.producers[value]
        if producer == FROM_OUTSIDE:
            for position in range(loops[0], loops[-1] + 1):
                trace.inner[position] += trace.sizes[value] // 2
        elif graph.users[value] == loops and (
            trace.uses[producer] in INLINED or _is_stacked(graph, value)
        ):
            trace.sizes[value] //= 2


def _narrowing_loops(graph: Program, count: int) -> dict[int, list[int]]:
    """Returns, by float32 value, the positions of loops that read only 16 bits of its slices."""
    found: dict[int, list[int]] = {}
    for position, op in enumerate(graph.ops[:count]):
        if op.name != "stablehlo.while":
            continue
        narrowed: dict[int, bool] = {}
        for value, argument in _unchanged(graph, op):
            narrowed[value] = narrowed.get(value, True) and _slices_are_narrowed(argument)
        for value in (value for value, is_narrowed in narrowed.items() if is_narrowed):
            found.setdefault(value, []).append(position)
    return found


def _unchanged(graph: Program, loop: ir.Operation) -> Iterator[tuple[int, ir.Value]]:
    """Yields float32 operands that a loop leaves alone, as numbers, and its body's arguments."""
    body = loop.regions[1].blocks[0]
    returned = walk.terminator(body).operands
    for operand, argument, after in zip(loop.operands, body.arguments, returned, strict=True):
        if after == argument and _is_float32(operand):
            yield graph.index[operand], argument


def _slices_are_narrowed(argument: ir.Value) -> bool:
    slices = [
        use.owner.operation
        for use in argument.uses
        if use.owner.operation.name != "stablehlo.return"
    ]
    return bool(slices) and all(
        one.name in _SLICES and _is_narrowed(one.results[0]) for one in slices
    )


def _is_narrowed(value: ir.Value) -> bool:
    """Whether all readers of a value take 16 bits of it, or fewer."""
    is_read = False
    for use in value.uses:
        is_read, op = True, use.owner.operation
        if op.name in _MOVES or op.name in (CONSTRAINT, BARRIER):
            if not _is_narrowed(op.results[use.operand_number]):
                return False
        elif not (_rounds(op) or (op.name == "stablehlo.convert" and _is_narrow(op.results[0]))):
            return False
    return is_read


def _is_stacked(graph: Program, value: int) -> bool:
    """Whether a loop fills the value, from a constant on, and reads nothing of it."""
    loop = graph.ops[graph.producers[value]]
    if loop.name != "stablehlo.while":
        return False
    number = graph.results[graph.producers[value]].index(value)
    if not graph.constant_derived[graph.index[loop.operands[number]]]:
        return False
    argument = loop.regions[1].blocks[0].arguments[number]
    return all(
        use.owner.operation.name == "stablehlo.dynamic_update_slice" and not use.operand_number
        for use in argument.uses
    )


def _rounds(op: ir.Operation) -> bool:
    if op.name != "stablehlo.dot_general":
        return False
    precision = str(op.attributes.get("precision_config", ""))
    return "HIGH" not in precision


def _is_float32(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType) and isinstance(
        value.type.element_type, ir.F32Type
    )


def _is_narrow(value: ir.Value) -> bool:
    bits = element_bits(ir.RankedTensorType(value.type).element_type)
    return bits is not None and bits <= _NARROW_BITS
