"""Lowers `hloom.ragged_all_to_all` on the CPU, where XLA has no such operation.

Devices of one process synchronize in a rendezvous and copy. Devices of several processes cannot
read each other's memory. There, and where XLA's partitioner will split the values, each device
gathers all operands and selects its rows:

    %starts = stablehlo.all_to_all %offsets     // of what I get: in the senders' rows and in mine
    %every = stablehlo.all_gather %operand
    %source = …                                 // for each row of mine, which of %every, or -1
    %result = select(%source >= 0, %every[%source], %output)

This takes the group's size times the operand in memory. Bounds are not checked: rows outside an
operand are read from the nearest row, rows outside an output are dropped.

Between processes `%every` is an all_to_all of the operand, repeated for each member, which takes
the same memory once more. An all-gather is a ring, in which most processes would wait half an hour
for a process that was killed (see between_processes.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from jax.extend.mlir import ir

from hloom.passes.ir import marks
from hloom.passes.ir.marks import Groups

from . import ragged_text
from .kernel_calls import (
    Choice,
    KernelCall,
    LoweringError,
    Rewrite,
    Site,
    kernel_attributes,
    paste,
    rendezvous_of,
)
from .placement import Placement

_INDEX_BITS = (8, 16, 32, 64)


def choose_cpu(site: Site, placement: Placement) -> Choice:
    """Returns the kernel, or XLA's own collectives if devices cannot read each other's memory.

    Raises LoweringError if the number of slices does not fit the groups, or if offsets and sizes
    have a type that no kernel reads.
    """
    where = rendezvous_of(site, placement)
    _check(site, where)
    if placement.spans_processes:
        why = "all operands are exchanged, between processes"
        every_row = ragged_text.every_row_exchanged
    elif not site.is_manual:
        why = "all operands are gathered, for the partitioner has yet to split them"
        every_row = ragged_text.every_row_gathered
    else:
        return KernelCall(
            "hloom.ragged_all_to_all.v1",
            "a rendezvous of the devices of this process",
            attributes=kernel_attributes(where, placement),
            aliases={0: 2, 1: 0},
            has_side_effect=True,
        )
    return Rewrite(why, partial(_gather_and_pick, groups=where.groups, every_row=every_row))


def _check(site: Site, where: marks.Rendezvous) -> None:
    at = f"{site.name} at {where.site}"
    if any(member < 0 for group in where.groups for member in group):
        raise LoweringError(f"{at}: its replica groups differ in size; all must have the same")
    _, _, _, *vectors = site.mark.operands
    devices = len(where.groups[0])
    for vector in map(ragged_text.Tensor.of, vectors):
        if vector.shape[0] % devices:
            raise LoweringError(
                f"{at}: {vector.shape[0]} slices for groups of {devices} devices; the number "
                "of slices must be a multiple of theirs"
            )
        if ir.IntegerType(ir.Type.parse(vector.element)).width not in _INDEX_BITS:
            raise LoweringError(
                f"{at}: offsets and sizes of type {vector.element}; wanted integers of "
                f"{', '.join(map(str, _INDEX_BITS))} bits"
            )


def _gather_and_pick(
    mark: ir.Operation,
    *,
    groups: Groups,
    every_row: Callable[[ragged_text.Tensor, Groups], str],
) -> list[ir.Value]:
    """Builds the exchange before the mark, ordered by the token; returns output and token."""
    token, operand, output, input_offsets, _, output_offsets, recv_sizes = mark.operands
    narrow, offsets = map(ragged_text.Tensor.of, (output, input_offsets))
    if 0 in (*ragged_text.Tensor.of(operand).shape, *narrow.shape):
        return [output, token]
    put = partial(paste, mark)
    # XLA:CPU 0.10.2 gathers wrong values of types below a byte, or crashes.
    [operand], [output] = (
        put(ragged_text.widened(ragged_text.Tensor.of(value)), [value])
        for value in (operand, output)
    )
    mine, room = map(ragged_text.Tensor.of, (operand, output))
    [places] = put(ragged_text.places(offsets), [input_offsets, output_offsets])
    [places] = put(marks.add_dependency_text([places.type]), [token, places])
    [starts] = put(ragged_text.exchanged_places(offsets, groups), [places])
    [token] = put(marks.after_all_text([starts.type]), [token, starts])
    [operand] = put(marks.add_dependency_text([operand.type]), [token, operand])
    [every] = put(every_row(mine, groups), [operand])
    [token] = put(marks.after_all_text([every.type]), [token, every])
    text = ragged_text.picked(mine, room, offsets, len(groups[0]))
    [result] = put(text, [starts, recv_sizes, every, output])
    [result] = put(ragged_text.converted(room, narrow.element), [result])
    return [result, token]
