"""Writes a ragged product as a loop over tiles of rows, each of one group.

Each group has its own tiles, so that a tile never has rows of two. The number of tiles depends on
the sizes of the groups; the loop runs as often as any sizes could need, and excess tiles have no
rows. With a dynamic trip count the host would wait for the device, and graphs could not hold the
loop. The table of the tiles is computed once, before the loop.

The loop computes a product, or its only reader if that costs the loop nothing. The gradient of a
weight is often added to a sum, e.g. over microbatches: the loop begins with that sum instead of
zeros. In a batch JAX computes it with the groups first, and then moves them after the batch: the
loop writes each matrix to its final place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..ir import walk
from ..ir.build import (
    COUNTER_BITS,
    Box,
    broadcast,
    compare,
    constant,
    converted,
    counted_while,
    counter,
    counter_type,
    iota,
    reduce,
    reshaped,
    typed,
    zeros,
)
from ..ir.erase import erase
from ..ir.types import float_format, sum_element
from ..ir.values import defining_op, element_of, shape_of
from .plan import Tiles
from .product import Factor, RaggedMode, RaggedProduct


def write_loop(product: RaggedProduct, tiles: Tiles) -> None:
    """Replaces the operation that makes the product; its operands are left to be erased.

    Its only reader is replaced too if the loop can do its work (`destination_of`).
    """
    destination = destination_of(product)
    with ir.InsertionPoint(product.op), product.op.location:
        result = _Loop(product, tiles, destination).write()
    destination.ops[-1].results[0].replace_all_uses_with(result)
    erase(*destination.ops)


@dataclass(frozen=True)
class _Tile:
    """The scalars of one tile, from the table of all.

    Attributes:
      places: its place along the axes of the product's prefix.
      start: its first row; the last tiles begin so early that they end with the rows.
      low, high: which of its rows belong to the group and not to another tile.
      is_first: whether the group has no tile before it.
    """

    places: tuple[ir.Value, ...]
    group: ir.Value
    start: ir.Value
    low: ir.Value
    high: ir.Value
    is_first: ir.Value


class _Loop:
    """The loop of one product, at the current insertion point."""

    def __init__(self, product: RaggedProduct, tiles: Tiles, destination: Destination) -> None:
        self._product, self._tiles, self._destination = product, tiles, destination
        self._left, self._right = _narrowed(product.left, product.right)
        self._prefix = product.prefix
        self._wide = sum_element(product.result.element_type)
        """The type in which the sums of a group are added up."""
        sums = product.mode is RaggedMode.SUM
        # Where several places are summed, a group has tiles again later: all of it is carried in
        # wide sums.
        comes_back = len(self._prefix.left) > len(self._prefix.result)
        made = destination.type
        self._out = typed(made, element=self._wide) if sums and comes_back else made
        self._carries = sums and self._out.element_type != self._wide

    def write(self) -> ir.Value:
        product, tiles = self._product, self._tiles
        table = tile_table(product.sizes, product.rows, tiles.rows, tiles.count)
        start = self._destination.start
        starts = [counter(0), zeros(self._out) if start is None else start]
        if self._carries:
            starts.append(zeros(self._part_type()))

        def iteration(count: ir.Value, carried: Sequence[ir.Value]) -> Sequence[ir.Value]:
            tile = _tile(table, count)
            if product.mode is RaggedMode.ROWS:
                return [self._rows(tile, *carried)]
            return self._sums(tile, *carried)

        made, *_ = counted_while(tiles.count, starts, iteration)
        return converted(made, product.result.element_type)

    def _rows(self, tile: _Tile, out: ir.Value) -> ir.Value:
        """Returns the result with the rows of a tile; the rest of the tile is unchanged."""
        axis, length = self._product.result_axis, self._tiles.rows
        own = Box({**_places(self._prefix.result, tile), axis: (tile.start, length)})
        type_ = own.type_in(self._out)
        left = self._slice_rows(self._left, self._prefix.left, tile)
        matrix = self._slice_group(self._right, tile)
        made = self._multiply(left, matrix, type_)
        kept = _own_rows(tile, length, shape_of(type_), axis)
        before = own.slice(out)
        return own.update(out, stablehlo.select(kept, made, before))

    def _sums(self, tile: _Tile, out: ir.Value, *sums: ir.Value) -> list[ir.Value]:
        """Returns the result with the partial sum of the group's tiles.

        Where it has fewer bits than sums need, the sum is carried in addition for one group.
        """
        # Rows of others are zeros in both operands, so that non-finite ones do not spread.
        left, right = (
            _or_zero(self._slice_rows(each, axes, tile), tile, each.ragged)
            for each, axes in ((self._left, self._prefix.left), (self._right, self._prefix.right))
        )
        made = self._multiply(left, right, self._part_type())
        group, *places = (self._destination.axes[axis] for axis in (0, *self._prefix.result))
        own = Box({group: (tile.group, 1), **_places(places, tile)})
        part = own.type_in(self._out)
        if not sums:
            before = own.slice(out)
            after = stablehlo.add(before, stablehlo.reshape(part, made))
            return [own.update(out, after)]
        none = zeros(self._part_type())
        is_first = broadcast(tile.is_first, shape_of(self._part_type()), [])
        total = stablehlo.add(stablehlo.select(is_first, none, sums[0]), made)
        after = stablehlo.reshape(part, converted(total, part.element_type))
        return [own.update(out, after), total]

    def _part_type(self) -> ir.RankedTensorType:
        """Returns the type of the part of one group in the result, as it is added up."""
        shape = list(self._product.result.shape)
        for axis in self._prefix.result:
            shape[axis] = 1
        return ir.RankedTensorType.get(shape[1:], self._wide)

    def _slice_rows(self, factor: Factor, prefix: tuple[int, ...], tile: _Tile) -> ir.Value:
        assert factor.ragged is not None
        own = Box({**_places(prefix, tile), factor.ragged: (tile.start, self._tiles.rows)})
        return converted(own.slice(factor.value), factor.element)

    def _slice_group(self, factor: Factor, tile: _Tile) -> ir.Value:
        assert factor.group is not None
        own = Box({**_places(self._prefix.right, tile), factor.group: (tile.group, 1)})
        part = own.slice(factor.value)
        shape = shape_of(part)
        del shape[factor.group]
        return converted(reshaped(part, shape), factor.element)

    def _multiply(self, left: ir.Value, right: ir.Value, type_: ir.Type) -> ir.Value:
        numbers = stablehlo.DotDimensionNumbers.get(
            lhs_batching_dimensions=list(self._left.batching),
            rhs_batching_dimensions=_without(self._right.batching, self._right.group),
            lhs_contracting_dimensions=list(self._left.contracting),
            rhs_contracting_dimensions=_without(self._right.contracting, self._right.group),
        )
        return stablehlo.dot_general(
            type_, left, right, numbers, precision_config=self._product.precision
        )


def _narrowed(left: Factor, right: Factor) -> tuple[Factor, Factor]:
    """Returns both operands before they were widened alike, where their products are exact.

    JAX widens bfloat16 for GPUs. A product of two such numbers is a float32, so that matrix units
    that take bfloat16 and add up in float32 give no less.
    """
    elements = [element_of(each.value) for each in (left, right)]
    widened = {str(each.element) for each in (left, right)} == {"f32"}
    narrow = float_format(elements[0])
    if not widened or elements[0] != elements[1] or narrow is None or narrow.bits != 16:
        return left, right
    return replace(left, element=elements[0]), replace(right, element=elements[1])


def _tile(table: TileTable, count: ir.Value) -> _Tile:
    """Returns the row of the table at the loop's counter."""

    def at_counter(column: ir.Value) -> ir.Value:
        return reshaped(Box({0: (count, 1)}).slice(column), [])

    return _Tile(
        tuple(map(at_counter, table.places)),
        *map(at_counter, (table.groups, table.starts, table.lows, table.highs, table.is_first)),
    )


def _places(axes: Sequence[int], tile: _Tile) -> dict[int, tuple[ir.Value, int]]:
    """Returns the place of a tile on each axis of a prefix, which may lack the last ones."""
    return {axis: (place, 1) for axis, place in zip(axes, tile.places, strict=False)}


def _own_rows(tile: _Tile, length: int, shape: list[int], axis: int) -> ir.Value:
    """Returns which elements of a tile are in rows of its group, as booleans of a shape."""
    numbers = iota([length], 0)
    low, high = (broadcast(each, [length], []) for each in (tile.low, tile.high))
    own = stablehlo.and_(compare(numbers, low, "GE"), compare(numbers, high, "LT"))
    return broadcast(own, shape, [axis])


def _or_zero(rows: ir.Value, tile: _Tile, axis: int | None) -> ir.Value:
    """Returns the rows of a tile, with zeros for those that are not of its group."""
    shape = shape_of(rows)
    assert axis is not None
    own = _own_rows(tile, shape[axis], shape, axis)
    return stablehlo.select(own, rows, zeros(rows.type))


def _without(axes: Sequence[int], gone: int | None) -> list[int]:
    """Renumbers the axes of a value after one of its axes is removed."""
    return [axis - 1 if gone is not None and axis > gone else axis for axis in axes]


@dataclass(frozen=True)
class TileTable:
    """The tiles, in vectors of int32, the last one of booleans.

    Attributes:
      places: the place along each axis that the sizes have before that of the groups.
      starts: the first row of each tile.
      lows, highs: which of its rows, counted from its first one, are its own: from low on, below
        high. In a tile that is not needed high is no more than low.
      is_first: whether it is the first of its group, at its place.
    """

    places: tuple[ir.Value, ...]
    groups: ir.Value
    starts: ir.Value
    lows: ir.Value
    highs: ir.Value
    is_first: ir.Value


def tile_table(sizes: ir.Value, rows: int, length: int, count: int) -> TileTable:
    """Returns tiles of ``length`` rows, ``count`` in all, for groups of these sizes, in order.

    Where the sizes have axes before that of the groups, each place along them has equally many
    tiles. Rows after the last group are in no tile. Sizes below zero count as none, and groups end
    where the rows end.
    """
    *places, groups = shape_of(sizes)
    by_group, by_tile = [*places, groups], [*places, count // math.prod(places)]
    both = [*by_tile, groups]
    axis = len(places)

    sizes = _clamped(sizes, rows)
    first_rows = stablehlo.minimum(_sums_before(sizes), _all(by_group, rows))
    ends = stablehlo.minimum(stablehlo.add(first_rows, sizes), _all(by_group, rows))
    whole = stablehlo.add(stablehlo.subtract(ends, first_rows), _all(by_group, length - 1))
    tiles = stablehlo.divide(whole, _all(by_group, length))
    first_tiles = _sums_before(tiles)

    numbers = iota(by_tile, axis)
    # An excess tile is of the last group that has one: there it changes nothing.
    past = compare(
        _along(stablehlo.add(first_tiles, tiles), both, without=axis),
        _along(numbers, both, without=axis + 1),
        "LE",
    )
    last = _maximum(
        stablehlo.select(
            compare(tiles, _all(by_group, 0), "GT"), iota(by_group, axis), _all(by_group, 0)
        )
    )
    group = stablehlo.minimum(_sum(_where(past, 1)), _along(last, by_tile, without=axis))
    own = compare(_along(group, both, without=axis + 1), iota(both, axis + 1), "EQ")

    def of_group(values: ir.Value) -> ir.Value:
        shown = _along(values, both, without=axis)
        return _sum(stablehlo.select(own, shown, _all(both, 0)))

    first_tile = of_group(first_tiles)
    behind = stablehlo.multiply(stablehlo.subtract(numbers, first_tile), _all(by_tile, length))
    row = stablehlo.add(of_group(first_rows), behind)
    start = stablehlo.minimum(row, _all(by_tile, rows - length))
    return TileTable(
        places=tuple(_flat(iota(by_tile, number)) for number in range(axis)),
        groups=_flat(group),
        starts=_flat(start),
        lows=_flat(stablehlo.subtract(row, start)),
        highs=_flat(stablehlo.subtract(of_group(ends), start)),
        is_first=_flat(compare(numbers, first_tile, "EQ")),
    )


def _clamped(sizes: ir.Value, most: int) -> ir.Value:
    """Clamps sizes from 0 to a number. More bits than it takes are cut first."""
    count = counter_type().element_type
    if ir.IntegerType(element_of(sizes)).width < COUNTER_BITS:
        sizes = converted(sizes, count)
    scalar = typed(sizes, [])
    sizes = stablehlo.clamp(constant(scalar, 0), sizes, constant(scalar, most))
    return converted(sizes, count)


def _all(shape: list[int], number: int) -> ir.Value:
    return constant(counter_type(shape), number)


def _along(values: ir.Value, shape: list[int], *, without: int) -> ir.Value:
    """Returns values repeated along the one axis of a shape that they lack."""
    return broadcast(values, shape, [axis for axis in range(len(shape)) if axis != without])


def _flat(values: ir.Value) -> ir.Value:
    """Returns all values as a vector."""
    return reshaped(values, [math.prod(shape_of(values))])


def _where(mask: ir.Value, number: int) -> ir.Value:
    shape = shape_of(mask)
    return stablehlo.select(mask, _all(shape, number), _all(shape, 0))


def _sums_before(values: ir.Value) -> ir.Value:
    """Returns the exclusive cumulative sum along the last axis: a product with a triangle."""
    *places, length = shape_of(values)
    shape, axis = [*places, length, length], len(places)
    before = compare(iota(shape, axis + 1), iota(shape, axis), "LT")
    return _sum(stablehlo.select(before, _along(values, shape, without=axis), _all(shape, 0)))


def _sum(values: ir.Value) -> ir.Value:
    """Returns the sum along the last axis."""
    return reduce(values, [len(shape_of(values)) - 1], counter(0), stablehlo.add)


def _maximum(values: ir.Value) -> ir.Value:
    """Returns the greatest along the last axis of numbers that are no less than zero."""
    return reduce(values, [len(shape_of(values)) - 1], counter(0), stablehlo.maximum)


@dataclass(frozen=True)
class Destination:
    """The value that a loop computes, and its form.

    Attributes:
      ops: the product and the operations on it, in order; the loop computes the last one's result.
      axes: the axis of that result for each axis of the product.
      start: the value to which the loop adds; None for zeros.
    """

    ops: tuple[ir.Operation, ...]
    axes: tuple[int, ...]
    start: ir.Value | None = None

    @property
    def type(self) -> ir.RankedTensorType:
        return ir.RankedTensorType(self.ops[-1].results[0].type)


def destination_of(product: RaggedProduct) -> Destination:
    """Finds the value that a loop computes instead of a product."""
    op = product.op
    found = Destination((op,), tuple(range(product.result.rank)))
    if product.mode is RaggedMode.ROWS:
        return found
    transpose = _only_reader(op, "stablehlo.transpose", ["permutation"])
    if transpose is not None:
        axes = _after_transpose(product, transpose)
        found = found if axes is None else Destination((op, transpose), axes)
    addition = _only_reader(found.ops[-1], "stablehlo.add", [])
    # Sums that are carried besides a narrower result are rounded into it, not added to it.
    if addition is None or sum_element(product.result.element_type) != product.result.element_type:
        return found
    start = _added(addition, found.ops[-1].results[0])
    if not start.type == addition.results[0].type == found.type or not _is_known_at(start, op):
        return found
    return Destination((*found.ops, addition), found.axes, start)


def _only_reader(op: ir.Operation, name: str, attributes: list[str]) -> ir.Operation | None:
    """Returns the operation of that name, in the same block, that alone reads another one's result.

    None where it has more attributes than these: they would be lost.
    """
    readers = [use.owner.operation for use in op.results[0].uses]
    if len(readers) != 1 or readers[0].name != name or readers[0].block != op.block:
        return None
    return readers[0] if walk.attribute_names(readers[0]) == attributes else None


def _after_transpose(product: RaggedProduct, transpose: ir.Operation) -> tuple[int, ...] | None:
    """Returns where a transpose moves each axis; None unless a group's matrix stays contiguous."""
    permutation = walk.integers(transpose, "permutation")
    shape = [product.result.shape[axis] for axis in permutation]
    if transpose.results[0].type != ir.RankedTensorType.get(shape, product.result.element_type):
        return None
    axes = [permutation.index(axis) for axis in range(len(permutation))]
    outer = (0, *product.prefix.result)
    inner = [axes[axis] for axis in range(len(axes)) if axis not in outer]
    return tuple(axes) if inner == list(range(len(outer), len(axes))) else None


def _added(addition: ir.Operation, term: ir.Value) -> ir.Value:
    [other] = (value for value in addition.operands if value != term)
    return other


def _is_known_at(value: ir.Value, op: ir.Operation) -> bool:
    """Whether a value that is read in the block of an operation is made before it."""
    maker = defining_op(value)
    return maker is None or maker.block != op.block or maker.is_before_in_block(op)
