"""Reorders a block by its schedule, and outlines each region into a composite.

Graph breaks get control dependencies: on the end of their block, or on each other. XLA's scheduler
does not keep the program order, and XLA drops optimization barriers before scheduling. It cannot
drop data dependencies. An operand of the graph break is therefore selected by a condition that is
computed from the values to wait for, and is always false. No bit of the operand changes.

    %z = one element of each value, its bits or-ed together and with 1
    %p = stablehlo.compare EQ, %z, 0
    %operand' = stablehlo.select %p, 0, %operand
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..analysis.loops.counted import trip_count_of
from ..ir import marks, moves, walk
from ..ir.build import compare, converted, first_element, integer_like, typed, zeros
from ..ir.ops import facts_of
from ..ir.types import element_bits
from ..ir.values import element_of
from .capturable import Rules
from .outline import outline
from .plan import BlockCapture, ControlDependency
from .schedule import Region

_LOCATION = "hloom.capture/wait"


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
    """Returns a condition on the values that is always false, which XLA cannot prove."""
    bits = [_bits_of_an_element(anchor) for anchor in anchors]
    some = functools.reduce(stablehlo.or_, bits)
    odd = stablehlo.or_(some, integer_like(some, 1))
    return compare(odd, integer_like(some, 0), "EQ")


def _bits_of_an_element(value: ir.Value) -> ir.Value:
    """Bits of the first element, as a ui32."""
    first = first_element(value)
    if isinstance(element_of(first), ir.ComplexType):
        first = stablehlo.real(first)
    element = element_of(first)
    if not isinstance(element, ir.IntegerType):
        width = ir.IntegerType.get_unsigned(element_bits(element) or 8)
        first = stablehlo.bitcast_convert(typed(first, element=width), first)
    return converted(first, ir.IntegerType.get_unsigned(32))


class Outliner:
    """Edits the blocks of one module; each region gets an unused symbol."""

    def __init__(self, module: ir.Operation, rules: Rules, min_ops: int) -> None:
        self._module = module.regions[0].blocks[0]
        self._rules = rules
        self._min_ops = min_ops
        self._taken = {walk.symbol(view.operation) for view in self._module.operations}
        branching = [op for op in walk.operations(module) if facts_of(op.name).branches]
        self._has_loops = bool(branching)
        are_counted = bool(branching) and None not in map(trip_count_of, branching)
        self._captures_loops = rules.loops == "on" or (rules.loops == "auto" and not are_counted)
        self._next = 0

    def apply(self, plan: BlockCapture) -> None:
        """Reorders a block, adds its control dependencies, and outlines its regions."""
        sorted_ = plan.regions.schedule
        terminator = walk.terminator(sorted_.block)
        moves.reorder(sorted_.block, sorted_.order())
        for dependency in plan.control_dependencies:
            make_wait(dependency, before=sorted_.gaps[dependency.slot + 1][0])
        ops = [view.operation for view in sorted_.block.operations]
        for region in plan.regions.regions:
            phase = sorted_.phases[region.phase]
            ends = [*sorted_.gaps[region.phase + 1], *_first(sorted_.phases, region.phase + 1)]
            start = ops.index(phase[0])
            end = ops.index(ends[0] if ends else terminator)
            self._outline(ops[start:end], ops[end:], region)

    def _outline(self, ops: list[ir.Operation], later: list[ir.Operation], region: Region) -> None:
        """Moves contiguous operations into a function, and replaces them by a composite."""
        name = self._free_name()

        def composite(inputs: Sequence[ir.Value], results: Sequence[ir.Type]) -> ir.Operation:
            return ir.Operation.create(
                marks.COMPOSITE,
                results=results,
                operands=inputs,
                attributes=self._attributes(name, region),
            )

        outline(ops, later, self._module, name, composite)

    def _free_name(self) -> str:
        while (name := f"{marks.CAPTURE_REGION}_{self._next}") in self._taken:
            self._next += 1
        self._taken.add(name)
        return name

    def _attributes(self, decomposition: str, region: Region) -> dict[str, ir.Attribute]:
        word = ir.IntegerType.get_signless(64)
        attributes: dict[str, ir.Attribute] = {
            "collectives": ir.BoolAttr.get(self._rules.collectives),
            "has_loops": ir.BoolAttr.get(self._has_loops),
            "loops": ir.BoolAttr.get(self._captures_loops),
            "min_ops": ir.IntegerAttr.get(word, self._min_ops),
            "operations": ir.IntegerAttr.get(word, region.operations),
        }
        return marks.mark_attributes(marks.CAPTURE_REGION, decomposition, attributes)


def _first(phases: list[list[ir.Operation]], number: int) -> list[ir.Operation]:
    """Returns the first operation of a phase; empty if there is no such phase."""
    return phases[number][:1] if number < len(phases) else []
