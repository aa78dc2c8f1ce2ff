"""How many rows a tile has, and whether a loop over tiles is faster than what the compiler does."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..framework.target import Speed, Target
from ..ir.types import element_bits
from .product import (
    RAGGED_DOT,
    NotRewrittenError,
    RaggedMode,
    RaggedProduct,
)

_SHORTEST = {"cpu": 16}
_SHORTEST_ELSEWHERE = 64
"""The fewest rows of a tile: matrix units take no fewer at a time."""

_LONGEST = 4096

_KERNELS = 5
"""What XLA launches for a tile: two slices, the product, the update, the count."""


@dataclass(frozen=True)
class Tiles:
    """A loop over tiles of rows.

    Attributes:
      rows: of one tile.
      count: the tiles that any group sizes can need; a loop always does all of them.
      loop_s, dense_s: seconds of the loop and of the dense product, by the roofline.
    """

    rows: int
    count: int
    loop_s: float
    dense_s: float


def tiles_of(product: RaggedProduct, target: Target, rows: int = 0) -> Tiles:
    """The tiles of least time; with ``rows``, of so many rows each."""
    dense_s = _dense_seconds(product, target.speed)
    shortest = min(_SHORTEST.get(target.platform, _SHORTEST_ELSEWHERE), product.rows)
    lengths = [min(rows, product.rows)] if rows else _lengths(shortest, product.rows)
    found = [
        Tiles(
            length,
            _tiles_needed(product, length),
            _loop_seconds(product, target.speed, length),
            dense_s,
        )
        for length in lengths
    ]
    return min(found, key=lambda tiles: tiles.loop_s)


def tile_count(rows: int, groups: int, length: int) -> int:
    """The most tiles that so many rows take in so many groups, none with rows of two groups."""
    return (rows + min(groups, rows) * (length - 1)) // length


def _tiles_needed(product: RaggedProduct, length: int) -> int:
    """The most tiles that any sizes take: no place along the prefix shares one with another."""
    return math.prod(product.places) * tile_count(product.rows, product.groups, length)


def check_worthwhile(product: RaggedProduct, tiles: Tiles, target: Target) -> None:
    """Raises NotRewrittenError where the program does better without the loop."""
    if target.platform == "tpu" and product.mode is RaggedMode.ROWS and _is_instruction(product):
        raise NotRewrittenError("XLA:TPU has a kernel of its own for it")
    if tiles.loop_s >= tiles.dense_s:
        raise NotRewrittenError(
            f"by the roofline a loop takes {tiles.loop_s * 1e6:.0f} us, the dense product "
            f"{tiles.dense_s * 1e6:.0f} us"
        )


def _is_instruction(product: RaggedProduct) -> bool:
    return product.op.name == RAGGED_DOT


def _lengths(shortest: int, rows: int) -> list[int]:
    lengths = [shortest]
    while lengths[-1] * 2 <= min(_LONGEST, rows):
        lengths.append(lengths[-1] * 2)
    return lengths


def _dense_seconds(product: RaggedProduct, speed: Speed) -> float:
    """What XLA's own takes: each operand of rows is copied once a group, and multiplied whole."""
    rows = [each for each in (product.left, product.right) if each.ragged is not None]
    parts = [each for each in (product.left, product.right) if each.ragged is None]
    copied = sum(_bytes_as_multiplied(each.shape, each.element) for each in rows) * product.groups
    moved = 2 * copied + sum(each.read_bytes for each in parts) + product.result_bytes
    work_s = product.groups * product.flops / _rate(product, speed)
    return max(work_s, moved / speed.bytes_per_s, speed.kernel_s)


def _loop_seconds(product: RaggedProduct, speed: Speed, length: int) -> float:
    """All tiles, one after the other, and the zeros before them."""
    rows = math.prod(product.places) * product.rows
    rows_bytes = sum(
        each.read_bytes / rows for each in (product.left, product.right) if each.ragged is not None
    )
    work_s = product.flops * length / rows / _rate(product, speed)
    if product.mode is RaggedMode.ROWS:
        matrix = product.right.read_bytes / product.matrices
        out = product.result_bytes / rows
        in_product = matrix + length * (rows_bytes + out)
        around = 2 * (matrix + length * rows_bytes) + 3 * length * out
    else:
        matrix = product.result_bytes / product.matrices
        in_product = matrix + length * rows_bytes
        around = 2 * length * rows_bytes + 3 * matrix
    product_s = max(work_s, in_product / speed.bytes_per_s)
    tile_s = max(product_s + around / speed.bytes_per_s, _KERNELS * speed.kernel_s)
    fill_s = product.result_bytes / speed.bytes_per_s
    return tile_s * _tiles_needed(product, length) + fill_s


def _rate(product: RaggedProduct, speed: Speed) -> float:
    bits = max(element_bits(each.element) or 0 for each in (product.left, product.right))
    return speed.matrix_rate(bits)


def _bytes_as_multiplied(shape: list[int], element: ir.Type) -> float:
    return math.prod(shape) * (element_bits(element) or 0) / 8
