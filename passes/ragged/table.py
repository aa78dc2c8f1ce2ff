"""The table of a loop's tiles, computed once before it from the sizes of the groups.

Each group has its own tiles, so that a tile never has rows of two. How many tiles there are depends
on the sizes; the loop runs as often as any sizes could need, and tiles that are too many have no
rows. A loop of a dynamic count would have the host wait for the device, and be kept out of graphs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

_BITS = 32
"""Of the numbers that tiles and rows are counted in."""


@dataclass(frozen=True)
class TileTable:
    """By tile, in vectors of int32, the last one of booleans.

    Attributes:
      places: where it is along each axis that the sizes have before that of the groups.
      groups: the group that it is of.
      starts: its first row.
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
    """Tiles of ``length`` rows, ``count`` in all, for groups of these sizes, one after the other.

    Where the sizes have axes before that of the groups, each place along them has as many tiles as
    any other. Rows behind the last group are in no tile. Sizes below zero count as none, and groups
    end where the rows end.
    """
    *places, groups = map(int, ir.RankedTensorType(sizes.type).shape)
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
    # A tile that is too many is of the last group that has one: there it changes nothing.
    past = _compare(
        _along(stablehlo.add(first_tiles, tiles), both, without=axis),
        _along(numbers, both, without=axis + 1),
        "LE",
    )
    last = _maximum(
        stablehlo.select(
            _compare(tiles, _all(by_group, 0), "GT"), iota(by_group, axis), _all(by_group, 0)
        )
    )
    group = stablehlo.minimum(_sum(_where(past, 1)), _along(last, by_tile, without=axis))
    own = _compare(_along(group, both, without=axis + 1), iota(both, axis + 1), "EQ")

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
        is_first=_flat(_compare(numbers, first_tile, "EQ")),
    )


def counter(number: int) -> ir.Value:
    """A scalar constant of the type that tiles and rows are counted in."""
    return _all([], number)


def iota(shape: list[int], axis: int) -> ir.Value:
    """Numbers from 0 on along an axis, of the type that tiles and rows are counted in."""
    return stablehlo.IotaOp(_type(shape), axis).result


def _element() -> ir.Type:
    return ir.IntegerType.get_signless(_BITS)


def _type(shape: list[int]) -> ir.RankedTensorType:
    return ir.RankedTensorType.get(shape, _element())


def _all(shape: list[int], number: int) -> ir.Value:
    return stablehlo.constant(
        ir.DenseElementsAttr.get_splat(_type(shape), ir.IntegerAttr.get(_element(), number))
    )


def _clamped(sizes: ir.Value, most: int) -> ir.Value:
    """Sizes from 0 to a number. Where they have more bits than it takes they are cut first."""
    type_ = ir.RankedTensorType(sizes.type)
    counts = _type(list(type_.shape))
    if ir.IntegerType(type_.element_type).width < _BITS:
        sizes = stablehlo.convert(counts, sizes)
    element = ir.RankedTensorType(sizes.type).element_type
    low, high = (
        stablehlo.constant(ir.Attribute.parse(f"dense<{number}> : tensor<{element}>"))
        for number in (0, most)
    )
    sizes = stablehlo.clamp(low, sizes, high)
    return sizes if sizes.type == counts else stablehlo.convert(counts, sizes)


def _along(values: ir.Value, shape: list[int], *, without: int) -> ir.Value:
    """Values repeated along the one axis of a shape that they lack."""
    axes = [axis for axis in range(len(shape)) if axis != without]
    return stablehlo.broadcast_in_dim(_type(shape), values, ir.DenseI64ArrayAttr.get(axes))


def _flat(values: ir.Value) -> ir.Value:
    """All values as a vector."""
    type_ = ir.RankedTensorType(values.type)
    if type_.rank == 1:
        return values
    flat = ir.RankedTensorType.get([math.prod(type_.shape)], type_.element_type)
    return stablehlo.reshape(flat, values)


def _compare(left: ir.Value, right: ir.Value, direction: str) -> ir.Value:
    return stablehlo.compare(left, right, stablehlo.ComparisonDirectionAttr.get(direction))


def _where(mask: ir.Value, number: int) -> ir.Value:
    shape = list(ir.RankedTensorType(mask.type).shape)
    return stablehlo.select(mask, _all(shape, number), _all(shape, 0))


def _sums_before(values: ir.Value) -> ir.Value:
    """Along the last axis, the sum of what is before: a product with a triangle, of few groups."""
    *places, length = ir.RankedTensorType(values.type).shape
    shape, axis = [*places, length, length], len(places)
    before = _compare(iota(shape, axis + 1), iota(shape, axis), "LT")
    return _sum(stablehlo.select(before, _along(values, shape, without=axis), _all(shape, 0)))


def _sum(values: ir.Value) -> ir.Value:
    return _reduce(values, stablehlo.AddOp)


def _maximum(values: ir.Value) -> ir.Value:
    """The greatest along the last axis of numbers that are no less than zero."""
    return _reduce(values, stablehlo.MaxOp)


def _reduce(values: ir.Value, combine: type[stablehlo.AddOp | stablehlo.MaxOp]) -> ir.Value:
    """Along the last axis."""
    *shape, _ = ir.RankedTensorType(values.type).shape
    op = stablehlo.ReduceOp(
        [_type(shape)], [values], [_all([], 0)], ir.DenseI64ArrayAttr.get([len(shape)])
    ).operation
    block = op.regions[0].blocks.append(_type([]), _type([]), arg_locs=[op.location] * 2)
    with ir.InsertionPoint(block):
        stablehlo.ReturnOp([combine(*block.arguments).result])
    return op.results[0]
