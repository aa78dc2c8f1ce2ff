"""Makes graph breaks wait: for the end of their block, or for each other.

XLA's scheduler does not keep the order of the text, and it drops optimization barriers before it
runs. What it cannot drop is data: an operand of the graph break is selected by a condition that is
always false, and that is made of the values to wait for. No bit of the operand changes.

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

from hloom.passes.ir.types import element_bits, tensor_bytes
from hloom.passes.ir.while_rewriter import integer_like, zeros

_MOST_BYTES = 2**20
"""An operand that waits is copied, and alive until then: only what is this small is made to."""

_LOCATION = "hloom.capture/wait"


@dataclass(frozen=True)
class ControlDependency:
    """Interruptions that are to wait for values.

    Attributes:
      gap: the gap they stand in.
      calls: the graph breaks, by the operands of them that wait.
      anchors: the values to wait for.
    """

    slot: int
    calls: tuple[tuple[ir.Operation, tuple[int, ...]], ...]
    anchors: tuple[ir.Value, ...]


def waiting_operands(op: ir.Operation, but: Set[ir.Value]) -> tuple[int, ...]:
    """Which operands of an operation can be made to wait; empty where none, or they are too big.

    Those in ``but`` are left alone.
    """
    numbers = tuple(
        number
        for number, operand in enumerate(op.operands)
        if operand not in but and can_be_selected(operand.type)
    )
    total_bytes = sum(tensor_bytes(op.operands[number].type) or 0 for number in numbers)
    return numbers if total_bytes <= _MOST_BYTES else ()


def can_be_selected(type_: ir.Type) -> bool:
    """Whether values of a type are tensors of plain elements, of which there is one at least."""
    size_bytes = tensor_bytes(type_)
    return bool(size_bytes) and isinstance(type_, ir.RankedTensorType)


def make_wait(dependency: ControlDependency, before: ir.Operation) -> None:
    """Writes the condition right before an operation of the block, and the selections after it."""
    with ir.InsertionPoint(before), ir.Location.name(_LOCATION):
        never = _never(dependency.anchors)
        for call, numbers in dependency.calls:
            for number in numbers:
                operand = call.operands[number]
                zero = zeros(ir.RankedTensorType(operand.type))[-1].results[0]
                call.operands[number] = stablehlo.select(never, zero, operand)


def _never(anchors: Sequence[ir.Value]) -> ir.Value:
    """A condition that is false whatever the values are, which XLA does not see."""
    bits = [_bits_of_an_element(anchor) for anchor in anchors]
    some = functools.reduce(stablehlo.or_, bits)
    odd = stablehlo.or_(some, integer_like(some, 1))
    equal = stablehlo.ComparisonDirectionAttr.get("EQ")
    return stablehlo.compare(odd, integer_like(some, 0), equal)


def _bits_of_an_element(value: ir.Value) -> ir.Value:
    """The first element as a ui32, or its low bits, or some other ones of them."""
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
