"""Writes a ragged product as a loop over tiles of rows, each of one group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..ir.erase import erase
from ..ir.while_rewriter import zeros
from .choice import Tiles
from .destination import Destination, destination_of, sum_element
from .product import Factor, RaggedMode, RaggedProduct
from .slices import Box, broadcast, converted
from .table import TileTable, counter, iota, tile_table


def write_loop(product: RaggedProduct, tiles: Tiles) -> None:
    """Replaces the operation that makes the product; what it read is left to be erased.

    With it goes what alone reads it and the loop can do as well (`destination`).
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
      places: where it is along the axes of the product's prefix.
      group: the group that it is of.
      start: its first row; the last tiles begin so early that they end with the rows.
      low, high: which of its rows are the group's and not done by another tile.
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
        """What the sums of a group are added up in."""
        sums = product.mode is RaggedMode.SUM
        # What is summed at several places comes back to a group: all of it waits in wide sums.
        comes_back = len(self._prefix.left) > len(self._prefix.result)
        made = destination.type
        self._out = _of(made, self._wide) if sums and comes_back else made
        self._carries = sums and self._out.element_type != self._wide

    def write(self) -> ir.Value:
        product, tiles = self._product, self._tiles
        table = tile_table(product.sizes, product.rows, tiles.rows, tiles.count)
        start = self._destination.start
        starts = [counter(0), zeros(self._out)[-1].results[0] if start is None else start]
        if self._carries:
            starts.append(zeros(self._part_type())[-1].results[0])
        types = [start.type for start in starts]
        made = stablehlo.WhileOp(types, starts).operation
        locations = [made.location] * len(types)
        condition = made.regions[0].blocks.append(*types, arg_locs=locations)
        with ir.InsertionPoint(condition):
            less = stablehlo.ComparisonDirectionAttr.get("LT")
            stablehlo.ReturnOp(
                [stablehlo.compare(condition.arguments[0], counter(tiles.count), less)]
            )
        body = made.regions[1].blocks.append(*types, arg_locs=locations)
        with ir.InsertionPoint(body):
            count, *carried = body.arguments
            tile = _tile(table, count)
            if product.mode is RaggedMode.ROWS:
                carried = [self._rows(tile, carried[0])]
            else:
                carried = self._sums(tile, *carried)
            stablehlo.ReturnOp([stablehlo.add(count, counter(1)), *carried])
        return converted(made.results[1], product.result.element_type)

    def _rows(self, tile: _Tile, out: ir.Value) -> ir.Value:
        """The result with the rows of a tile; the rest of the tile is left as it is."""
        axis, length = self._product.result_axis, self._tiles.rows
        own = Box({**_places(self._prefix.result, tile), axis: (tile.start, length)})
        type_ = own.type_in(self._out)
        left = self._slice_rows(self._left, self._prefix.left, tile)
        matrix = self._slice_group(self._right, tile)
        made = self._multiply(left, matrix, type_)
        kept = _own_rows(tile, length, list(type_.shape), axis)
        before = own.slice(out)
        return own.update(out, stablehlo.select(kept, made, before))

    def _sums(self, tile: _Tile, out: ir.Value, *sums: ir.Value) -> list[ir.Value]:
        """The result with what the group's tiles come to so far.

        Where it has fewer bits than sums want, that is carried beside it for one group.
        """
        # Rows of others are zeros in both operands: what is not finite stays where it is.
        left, right = (
            _or_zero(self._slice_rows(each, axes, tile), tile, each.ragged)
            for each, axes in (
                (self._left, self._prefix.left),
                (self._right, self._prefix.right),
            )
        )
        made = self._multiply(left, right, self._part_type())
        group, *places = (self._destination.axes[axis] for axis in (0, *self._prefix.result))
        own = Box({group: (tile.group, 1), **_places(places, tile)})
        part = own.type_in(self._out)
        if not sums:
            before = own.slice(out)
            after = stablehlo.add(before, stablehlo.reshape(part, made))
            return [own.update(out, after)]
        none = zeros(self._part_type())[-1].results[0]
        is_first = broadcast(tile.is_first, list(self._part_type().shape), [])
        total = stablehlo.add(stablehlo.select(is_first, none, sums[0]), made)
        after = stablehlo.reshape(part, converted(total, part.element_type))
        return [own.update(out, after), total]

    def _part_type(self) -> ir.RankedTensorType:
        """What the result has of one group, as it is added up."""
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
        type_ = ir.RankedTensorType(part.type)
        shape = list(type_.shape)
        del shape[factor.group]
        type_ = ir.RankedTensorType.get(shape, type_.element_type)
        return converted(stablehlo.reshape(type_, part), factor.element)

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
    """Both operands as they are before they were widened alike, where products are exact so.

    JAX widens bfloat16 for GPUs. A product of two such numbers is a float32, so that matrix units
    that take bfloat16 and add up in float32 give no less.
    """
    elements = [ir.RankedTensorType(each.value.type).element_type for each in (left, right)]
    widened = {str(each.element) for each in (left, right)} == {"f32"}
    if not widened or elements[0] != elements[1] or str(elements[0]) not in ("bf16", "f16"):
        return left, right
    return _as(left, elements[0]), _as(right, elements[1])


def _as(factor: Factor, element: ir.Type) -> Factor:
    return Factor(
        factor.value, element, factor.contracting, factor.batching, factor.ragged, factor.group
    )


def _of(type_: ir.RankedTensorType, element: ir.Type) -> ir.RankedTensorType:
    return ir.RankedTensorType.get(type_.shape, element)


def _tile(table: TileTable, count: ir.Value) -> _Tile:
    """The row of the table at the loop's counter."""

    def at_counter(column: ir.Value) -> ir.Value:
        scalar = ir.RankedTensorType.get([], ir.RankedTensorType(column.type).element_type)
        return stablehlo.reshape(scalar, Box({0: (count, 1)}).slice(column))

    return _Tile(
        tuple(map(at_counter, table.places)),
        *map(at_counter, (table.groups, table.starts, table.lows, table.highs, table.is_first)),
    )


def _places(axes: Sequence[int], tile: _Tile) -> dict[int, tuple[ir.Value, int]]:
    """Of each axis of a prefix, which may lack the last ones, the one place of a tile."""
    return {axis: (place, 1) for axis, place in zip(axes, tile.places, strict=False)}


def _own_rows(tile: _Tile, length: int, shape: list[int], axis: int) -> ir.Value:
    """Which elements of a tile are in rows of its group, as booleans of a shape."""
    numbers = iota([length], 0)
    compare = stablehlo.compare
    low, high = (broadcast(each, [length], []) for each in (tile.low, tile.high))
    ge, lt = (stablehlo.ComparisonDirectionAttr.get(name) for name in ("GE", "LT"))
    own = stablehlo.and_(compare(numbers, low, ge), compare(numbers, high, lt))
    return broadcast(own, shape, [axis])


def _or_zero(rows: ir.Value, tile: _Tile, axis: int | None) -> ir.Value:
    """The rows of a tile, with zeros for those that are not of its group."""
    type_ = ir.RankedTensorType(rows.type)
    assert axis is not None
    own = _own_rows(tile, type_.shape[axis], list(type_.shape), axis)
    return stablehlo.select(own, rows, zeros(type_)[-1].results[0])


def _without(axes: Sequence[int], gone: int | None) -> list[int]:
    """The axes of a value as they are called once one of its axes is gone."""
    return [axis - 1 if gone is not None and axis > gone else axis for axis in axes]
