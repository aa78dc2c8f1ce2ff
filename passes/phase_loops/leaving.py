"""What leaves a loop, and in what type it is accumulated."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis.dimension_flow.flow import Combine, Flow
from hloom.passes.ir.op_facts import FlowRule
from hloom.passes.ir.types import element_bits
from hloom.passes.phase_loops.accumulators import has_identity
from hloom.passes.phase_loops.errors import NotLoopableError
from hloom.passes.phase_loops.program import LoopProgram

AccumulatorRule = Callable[[ir.Value], ir.Type]
"""Gives the element type in which the terms of a partial value are added up."""


class Leaves(enum.StrEnum):
    """How a value leaves a loop."""

    STACKED = "stacked"
    """Its chunks are written one after another."""
    ACCUMULATED = "accumulated"
    """Its terms are combined."""
    SAME = "same"
    """It is the same in all chunks: the last one's."""


@dataclass(frozen=True)
class LoopExit:
    """A value that leaves a loop.

    Attributes:
      number: the value, by number.
      value: the value.
      type: its type.
      flow: what it is in the loop.
      leaves: how it leaves it.
      element: the element type that it has in the loop's carry.
      sent: the element type in which devices that have a term each would combine them: that of the
        value before it is converted to a wider one.
      rounds: a term that is a product is rounded to its own type before it is added, as devices
        send it. Else it is made in the accumulator's.
      widened: values, by number, that are it in the accumulator's type: they are its sum.
    """

    number: int
    value: ir.Value
    type: ir.Type
    flow: Flow
    leaves: Leaves
    element: ir.Type
    sent: ir.Type
    rounds: bool = False
    widened: tuple[int, ...] = ()

    def __str__(self) -> str:
        text = f"{self.type}, {self.leaves}"
        own = ir.ShapedType(self.type).element_type
        return text if self.element == own else f"{text} in {self.element}"


def own_type(value: ir.Value) -> ir.Type:
    """Terms are added up in their own type."""
    return _element(value)


def widened(value: ir.Value) -> ir.Type:
    """Terms of floating-point types narrower than float32 are added up in float32."""
    element = _element(value)
    narrow = isinstance(element, ir.FloatType) and (element_bits(element) or 0) < 32
    return ir.F32Type.get(element.context) if narrow else element


def leaving(program: LoopProgram, number: int, rule: AccumulatorRule) -> LoopExit:
    """How a value leaves the loop that makes it."""
    flow, value = program.of(number), program.program.values[number]
    own = _element(value)
    if flow.is_split:
        return LoopExit(number, value, value.type, flow, Leaves.STACKED, own, own)
    if flow.is_partial and flow.combine is not None:
        if not has_identity(own, flow.combine):
            node = program.maker(number)
            reason = f"a {flow.combine} of {own} has no value to start with"
            raise NotLoopableError(None if node is None else node.op, reason)
        element = rule(value) if flow.combine is Combine.SUM else own
        return LoopExit(
            number, value, value.type, flow, Leaves.ACCUMULATED, element, _sent(program, number)
        )
    return LoopExit(number, value, value.type, flow, Leaves.SAME, own, own)


def _sent(program: LoopProgram, number: int) -> ir.Type:
    own = _element(program.program.values[number])
    node = program.maker(number)
    if node is None or node.rule is not FlowRule.CONVERT:
        return own
    before = _element(program.program.values[node.operands[0]])
    return before if isinstance(before, ir.FloatType) else own


def _element(value: ir.Value) -> ir.Type:
    return ir.ShapedType(value.type).element_type
