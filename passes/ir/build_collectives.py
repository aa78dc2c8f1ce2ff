"""Writes manual computations, and collectives inside of them, at the insertion point.

Devices are named by their numbers in the mesh. A channel is a number that differs from that of
every other collective that may run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy, stablehlo

from .build import Combiner, typed
from .values import element_of, shape_of

Groups = tuple[tuple[int, ...], ...]
"""Replica groups: partition ids, a row for each group, padded with -1 to equal length."""


def dense(groups: Groups) -> ir.Attribute:
    """Returns the attribute with replica groups."""
    rows = ", ".join(f"[{', '.join(map(str, row))}]" for row in groups)
    return ir.Attribute.parse(f"dense<[{rows}]> : tensor<{len(groups)}x{len(groups[0])}xi64>")


def across(
    value: ir.Value,
    groups: Groups,
    channel: int,
    combine: Combiner,
    *,
    scattered: int | None = None,
) -> ir.Value:
    """Returns the value combined over the devices of each group.

    Each device gets the whole value, or its part along the axis ``scattered``.
    """
    replicas = dense(groups)
    made: ir.OpView
    if scattered is None:
        made = stablehlo.AllReduceOp(
            [value.type],
            [value],
            replicas,
            channel_handle=_handle(channel),
            use_global_device_ids=True,
        )
    else:
        shape = shape_of(value)
        shape[scattered] //= len(groups[0])
        made = stablehlo.ReduceScatterOp(
            typed(value, shape),
            value,
            scattered,
            replicas,
            channel_handle=_handle(channel),
            use_global_device_ids=True,
        )
    scalar = ir.RankedTensorType.get([], element_of(value))
    location = made.operation.location
    block = made.operation.regions[0].blocks.append(scalar, scalar, arg_locs=[location] * 2)
    with ir.InsertionPoint(block):
        stablehlo.ReturnOp([combine(*block.arguments)])
    result: ir.Value = made.operation.results[0]
    return result


def exchanged(value: ir.Value, groups: Groups, channel: int) -> ir.Value:
    """Returns the parts along the first axis that the devices of a group have for this one.

    Both the parts of a value and the result are in the order of the group.
    """
    replicas = dense(groups)
    made = stablehlo.AllToAllOp(
        [value], 0, 0, len(groups[0]), replicas, channel_handle=_handle(channel)
    )
    return made.results[0]


def gathered(value: ir.Value, groups: Groups, channel: int) -> ir.Value:
    """Returns the values of the devices of a group along the first axis, in the group's order."""
    length, *row = shape_of(value)
    made = stablehlo.AllGatherOp(
        [typed(value, [len(groups[0]) * length, *row])],
        [value],
        0,
        dense(groups),
        channel_handle=_handle(channel),
        use_global_device_ids=True,
    )
    return made.results[0]


def sent(value: ir.Value, pairs: Sequence[tuple[int, int]], channel: int) -> ir.Value:
    """Returns the value sent from the first to the second device of each pair; zeros on others."""
    return stablehlo.CollectivePermuteOp(
        value, dense(tuple(pairs)), channel_handle=_handle(channel)
    ).result


def _handle(channel: int) -> ir.Attribute:
    return ir.Attribute.parse(f"#stablehlo.channel_handle<handle = {channel}, type = 1>")


@dataclass(frozen=True)
class ManualPart:
    """A type of values, how they lie on a mesh, and the type of one device's part of each."""

    whole: ir.Type
    sharding: sdy.TensorShardingAttr
    own: ir.Type


def manual_computation(
    operands: Sequence[tuple[ir.Value, ManualPart]],
    results: Sequence[ManualPart],
    manual: sdy.ManualAxesAttr,
    body: Callable[[Sequence[ir.Value]], Sequence[ir.Value]],
) -> ir.Operation:
    """Writes a manual computation.

    Args:
      operands: the values that it reads.
      results: its results.
      manual: the axes of the mesh that it splits values along by itself.
      body: writes a device's computation on its parts, and returns its parts of the results.
    """
    made = sdy.ManualComputationOp(
        [each.whole for each in results],
        [value for value, _ in operands],
        _by_value(part for _, part in operands),
        _by_value(results),
        manual,
    )
    location = made.operation.location
    types = [part.own for _, part in operands]
    block = made.operation.regions[0].blocks.append(*types, arg_locs=[location] * len(types))
    with ir.InsertionPoint(block):
        sdy.ReturnOp(body(block.arguments))
    return made.operation


def _by_value(parts: Iterable[ManualPart]) -> sdy.TensorShardingPerValueAttr:
    return sdy.TensorShardingPerValueAttr.get([part.sharding for part in parts])
