"""Writes a loop that each device runs by itself, on its part of the dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..analysis.signatures.signature import AxisLayout
from .copies import IOTA, Form
from .devices import DeviceParts, compute_by_parts, reduced
from .loop import LoopWriter
from .plan import LoopsPlan, PhaseLoop


def write_by_parts(
    plan: LoopsPlan, parts: DeviceParts, loop: PhaseLoop, outside: Callable[[int], ir.Value]
) -> Sequence[ir.Value]:
    """Writes the loop; gives what leaves it, combined over the devices."""
    divided = [
        (value, layout.axis)
        for (value, layout), (_, form) in loop.copies.slices.items()
        if form is Form.OUTSIDE and isinstance(layout, AxisLayout)
    ]
    divided = list(dict.fromkeys(divided))
    bases = {value for value, _ in divided}
    wholes = [value for value in loop.copies.outside if value not in bases]
    is_told_apart = _tells_devices_apart(loop)

    def body(arguments: Sequence[ir.Value]) -> Sequence[ir.Value]:
        own = dict(zip(divided, arguments, strict=False))
        everywhere = dict(zip(wholes, arguments[len(divided) :], strict=False))
        device = None
        if is_told_apart:
            device = stablehlo.reshape(ir.RankedTensorType.get([], _integer()), arguments[-1])
        writer = LoopWriter(plan, loop, everywhere.__getitem__, own, parts.count, device)
        return [
            reduced(parts, made, found.flow.combine, found.sent)
            if found.flow.combine is not None
            else made
            for found, made in zip(loop.exits, writer.write(), strict=True)
        ]

    operands: list[tuple[ir.Value, int | None]] = [
        *((outside(value), axis) for value, axis in divided),
        *((outside(value), None) for value in wholes),
    ]
    if is_told_apart:
        operands.append((_device_numbers(parts), 0))
    results = []
    for found in loop.exits:
        shape = ir.RankedTensorType(found.type).shape
        type_ = ir.RankedTensorType.get(shape, found.element)
        results.append((type_, found.flow.layout.axis if found.flow.layout else None))
    return compute_by_parts(parts, operands, results, body)


def _tells_devices_apart(loop: PhaseLoop) -> bool:
    """Whether a device cuts its part from what all of them have."""
    if any(form is not Form.OUTSIDE for _, form in loop.copies.slices.values()):
        return True
    copies = (copy for group in loop.copies.by_node.values() for copy in group)
    return any(copy.layout is not None and copy.node.op.name == IOTA for copy in copies)


def _device_numbers(parts: DeviceParts) -> ir.Value:
    return stablehlo.IotaOp(ir.RankedTensorType.get([parts.count], _integer()), 0).result


def _integer() -> ir.Type:
    return ir.IntegerType.get_signless(32)
