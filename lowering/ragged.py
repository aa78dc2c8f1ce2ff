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
from jax.extend.mlir.dialects import stablehlo

from hloom.passes.ir import marks
from hloom.passes.ir.build import broadcast, compare, constant, converted, reduce, reshaped, typed
from hloom.passes.ir.build_collectives import Groups, exchanged, gathered
from hloom.passes.ir.values import element_of, shape_of

from .kernel_calls import (
    Choice,
    KernelCall,
    LoweringError,
    Rewrite,
    Site,
    kernel_attributes,
    rendezvous_of,
)
from .placement import Placement

_INDEX_BITS = (8, 16, 32, 64)

_CHANNEL = 1

_WIDER = {"i2": "i8", "i4": "i8", "ui2": "ui8", "ui4": "ui8", "f4E2M1FN": "f32"}
"""By element types below a byte, a type that holds all their values."""


def choose_cpu(site: Site, placement: Placement) -> Choice:
    """Returns the kernel, or XLA's own collectives if devices cannot read each other's memory.

    Raises LoweringError if the number of slices does not fit the groups, or if offsets and sizes
    have a type that no kernel reads.
    """
    where = rendezvous_of(site, placement)
    _check(site, where)
    if placement.spans_processes:
        why = "all operands are exchanged, between processes"
        every_row = every_row_exchanged
    elif not site.is_manual:
        why = "all operands are gathered, for the partitioner has yet to split them"
        every_row = every_row_gathered
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
    for vector in vectors:
        [slices], element = shape_of(vector), element_of(vector)
        if slices % devices:
            raise LoweringError(
                f"{at}: {slices} slices for groups of {devices} devices; the number "
                "of slices must be a multiple of theirs"
            )
        if ir.IntegerType(element).width not in _INDEX_BITS:
            raise LoweringError(
                f"{at}: offsets and sizes of type {element}; wanted integers of "
                f"{', '.join(map(str, _INDEX_BITS))} bits"
            )


def _gather_and_pick(
    mark: ir.Operation, *, groups: Groups, every_row: Callable[[ir.Value, Groups], ir.Value]
) -> list[ir.Value]:
    """Builds the exchange before the mark, ordered by the token; returns output and token."""
    token, operand, output, input_offsets, _, output_offsets, recv_sizes = mark.operands
    if 0 in (*shape_of(operand), *shape_of(output)):
        return [output, token]

    def after_token(value: ir.Value) -> ir.Value:
        return marks.Order(token).before([value])[0]

    def token_after(value: ir.Value) -> ir.Value:
        return marks.Order(token).after([value])

    with ir.InsertionPoint(mark), mark.location:
        # XLA:CPU 0.10.2 gathers wrong values of types below a byte, or crashes.
        operand, room = map(_widened, (operand, output))
        columns = [
            reshaped(_wide(each), [*shape_of(each), 1]) for each in (input_offsets, output_offsets)
        ]
        places = stablehlo.concatenate(columns, 1)
        starts = exchanged(after_token(places), groups, _CHANNEL)
        token = token_after(starts)
        every = every_row(after_token(operand), groups)
        token = token_after(every)
        result = _picked(starts, recv_sizes, every, room, shape_of(operand)[0])
        return [converted(result, element_of(output)), token]


def repeated(operand: ir.Value, times: int) -> ir.Value:
    """Returns the rows of the operand, all of them several times."""
    length, *row = shape_of(operand)
    axes = range(1, len(row) + 2)
    return reshaped(broadcast(operand, [times, length, *row], axes), [times * length, *row])


def every_row_exchanged(operand: ir.Value, groups: Groups) -> ir.Value:
    """Returns the rows of all, in the order of the group; every device waits for all."""
    return exchanged(repeated(operand, len(groups[0])), groups, _CHANNEL)


def every_row_gathered(operand: ir.Value, groups: Groups) -> ir.Value:
    """Returns the rows of all, in the order of the group."""
    return gathered(operand, groups, _CHANNEL)


def _picked(
    starts: ir.Value, sizes: ir.Value, every: ir.Value, output: ir.Value, rows: int
) -> ir.Value:
    """Returns the output with the rows that this device gets.

    Where slices overlap, the later one wins, as in the loop of JAX's documentation.

    Args:
      starts: by slice, its first row on the sender and here.
      sizes: by slice, how many rows it has.
      every: the rows of all devices, ``rows`` of each.
      output: the values of the other rows.
    """
    slices, length = shape_of(starts)[0], shape_of(output)[0]
    grid, of_sender = [length, slices], slices * rows // shape_of(every)[0]
    read, begin = (
        reshaped(stablehlo.slice(starts, [0, column], [slices, column + 1], [1, 1]), [slices])
        for column in (0, 1)
    )
    end = stablehlo.add(begin, _wide(sizes))
    first_rows = [index // of_sender * rows for index in range(slices)]
    first_row = stablehlo.constant(ir.Attribute.parse(f"dense<{first_rows}> : {begin.type}"))
    shift = stablehlo.subtract(stablehlo.add(first_row, read), begin)

    def whole(shape: list[int], number: int) -> ir.Value:
        return constant(typed(starts, shape), number)

    # The last slice that each row belongs to, or -1.
    row, number = (stablehlo.iota(typed(starts, grid), axis) for axis in (0, 1))
    is_inside = stablehlo.and_(
        compare(row, broadcast(begin, grid, [1]), "GE"),
        compare(row, broadcast(end, grid, [1]), "LT"),
    )
    candidate = stablehlo.select(is_inside, number, whole(grid, -1))
    last = reduce(candidate, [1], whole([], -1), stablehlo.maximum)

    # The row of all that it gets.
    is_last = compare(number, broadcast(last, grid, [0]), "EQ")
    shifted = stablehlo.add(row, broadcast(shift, grid, [1]))
    chosen = stablehlo.select(is_last, shifted, whole(grid, 0))
    source = reduce(chosen, [1], whole([], 0), stablehlo.add)
    numbers = (
        f"#stablehlo.gather<offset_dims = {list(range(1, len(shape_of(output))))}, "
        "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>"
    )
    received = stablehlo.gather(
        every,
        reshaped(source, [length, 1]),
        ir.Attribute.parse(numbers),
        [1, *shape_of(output)[1:]],
    )
    is_received = compare(last, whole([length], -1), "GT")
    return stablehlo.select(broadcast(is_received, shape_of(output), [0]), received, output)


def _wide(value: ir.Value) -> ir.Value:
    return converted(value, ir.IntegerType.get_signless(64))


def _widened(value: ir.Value) -> ir.Value:
    """Returns the same values in a type of a byte or more."""
    element = str(element_of(value))
    return converted(value, ir.Type.parse(_WIDER.get(element, element)))
