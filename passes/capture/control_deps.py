"""Control dependencies of graph breaks: on the end of their block, or on each other.

XLA's scheduler does not keep the program order, and XLA drops optimization barriers before
scheduling. It cannot drop data dependencies. An operand of the graph break is therefore selected by
a condition that is computed from the values to wait for, and is always false. No bit of the operand
changes.

    %z = one element of each value, its bits or-ed together and with 1
    %p = stablehlo.compare EQ, %z, 0
    %operand' = stablehlo.select %p, 0, %operand
"""

from __future__ import annotations

import functools
from collections.abc import Sequence, Set
from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..ir.build import integer_like, zeros
from ..ir.types import element_bits, tensor_bytes

_MOST_BYTES = 2**20
"""The largest total size of operands that get a dependency: they are copied, and stay alive."""

_LOCATION = "hloom.capture/wait"


@dataclass(frozen=True)
class ControlDependency:
    """Graph breaks that wait for values.

    Attributes:
      slot: their slot in the block's schedule.
      calls: the graph breaks, each with the numbers of the operands that carry the dependency.
      anchors: the values to wait for.
    """

    slot: int
    calls: tuple[tuple[ir.Operation, tuple[int, ...]], ...]
    anchors: tuple[ir.Value, ...]


def waiting_operands(op: ir.Operation, but: Set[ir.Value]) -> tuple[int, ...]:
    """The numbers of the operands that can carry a dependency, without values in ``but``.

    Empty if there are none, or if they are too large.
    """
    numbers = tuple(
        number
        for number, operand in enumerate(op.operands)
        if operand not in but and can_be_selected(operand.type)
    )
    total_bytes = sum(tensor_bytes(op.operands[number].type) or 0 for number in numbers)
    return numbers if total_bytes <= _MOST_BYTES else ()


def can_be_selected(type_: ir.Type) -> bool:
    """Whether values of a type are tensors with at least one element of a known size."""
    size_bytes = tensor_bytes(type_)
    return bool(size_bytes) and isinstance(type_, ir.RankedTensorType)


def make_wait(dependency: ControlDependency, before: ir.Operation) -> None:
    """Inserts the condition and the selections before an operation of the block."""
    with ir.InsertionPoint(before), ir.Location.name(_LOCATION):
        never = _never(dependency.anchors)
        for call, numbers in dependency.calls:
            for number in numbers:
                operand = call.operands[number]
                zero = zeros(operand.type)
                call.operands[number] = stablehlo.select(never, zero, operand)


def _never(anchors: Sequence[ir.Value]) -> ir.Value:
    """A condition on the values that is always false, which XLA cannot prove."""
    bits = [_bits_of_an_element(anchor) for anchor in anchors]
    some = functools.reduce(stablehlo.or_, bits)
    odd = stablehlo.or_(some, integer_like(some, 1))
    equal = stablehlo.ComparisonDirectionAttr.get("EQ")
    return stablehlo.compare(odd, integer_like(some, 0), equal)


def _bits_of_an_element(value: ir.Value) -> ir.Value:
    """Bits of the first element, as a ui32."""
    type_ = ir.RankedTensorType(value.type)
    rank = len(type_.shape)
    corner = ir.RankedTensorType.get([1] * rank, type_.element_type)
    first = value
    if rank:
        zeros, ones = [0] * rank, [1] * rank
        first = stablehlo.slice(value, zeros, ones, ones)
        first = stablehlo.reshape(ir.RankedTensorType.get([], corner.element_type), first)
    if isinstance(type_.element_type, ir.ComplexType):
        first = stablehlo.real(first)
    element = ir.RankedTensorType(first.type).element_type
    if not isinstance(element, ir.IntegerType):
        width = ir.IntegerType.get_unsigned(element_bits(element) or 8)
        first = stablehlo.bitcast_convert(ir.RankedTensorType.get([], width), first)
    word = ir.RankedTensorType.get([], ir.IntegerType.get_unsigned(32))
    return first if first.type == word else stablehlo.convert(word, first)
