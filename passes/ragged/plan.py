"""Plans which ragged products run in loops over tiles, of how many rows; and why others stay."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..framework.base import ListPlan
from ..framework.errors import NotPossibleError
from ..framework.tables import Described, Kind, Left, Table, reasons_left
from ..framework.target import Speed, Target
from ..framework.text import pluralize
from ..ir import mesh
from ..ir.locations import source_line
from ..ir.products import RAGGED_DOT
from ..ir.types import element_bits
from . import dense
from .product import RaggedMode, RaggedProduct, of_instruction, packed_bytes

_SHORTEST = {"cpu": 16}
_SHORTEST_ELSEWHERE = 64
"""The fewest rows of a tile: matrix units take no fewer at a time."""

_LONGEST = 4096

_KERNELS = 5
"""The kernels that XLA launches for a tile: two slices, the product, the update, the count."""


@dataclass(frozen=True)
class Tiles:
    """A loop over tiles of rows.

    Attributes:
      rows: the rows of one tile.
      count: the tiles that any group sizes can need; a loop always does all of them.
      loop_s, dense_s: seconds of the loop and of the dense product, by the roofline.
    """

    rows: int
    count: int
    loop_s: float
    dense_s: float


@dataclass(frozen=True)
class RaggedLoop:
    """A product that runs in a loop.

    Attributes:
      id: the decision's name.
      product: the product.
      tiles: the tiles of the loop.
    """

    id: str
    product: RaggedProduct
    tiles: Tiles

    @property
    def description(self) -> str:
        groups = pluralize(self.product.groups, "group")
        line = source_line(self.product.op.location)
        return f"a ragged product of {groups} runs in a loop, {line}"


@dataclass(frozen=True)
class RaggedPlan(ListPlan[RaggedLoop]):
    """The products that run in loops, in the order of the program, and those that stay."""

    def effect(self) -> str:
        return f"{pluralize(len(self.decided), 'ragged product')} in loops"

    def summary(self) -> str:
        parts = []
        if self.decided:
            rows = sorted({loop.tiles.rows for loop in self.decided})
            parts.append(f"{self.effect()} over tiles of {_listed(rows)} rows")
        parts += reasons_left(self.left, "ragged product")
        return "; ".join(parts) or "no ragged product"

    def decided_tables(self) -> tuple[Table, ...]:
        rows = tuple(
            (
                Described.of(loop.product.op),
                str(loop.product.mode),
                loop.product.rows,
                loop.product.groups,
                str(loop.product.places or ""),
                loop.tiles.count,
                loop.tiles.rows,
                loop.tiles.loop_s,
                loop.tiles.dense_s,
            )
            for loop in self.decided
        )
        return (Table("Ragged products in loops", _COLUMNS, rows),)


_COLUMNS = {
    "product": Kind.VALUE,
    "mode": Kind.TEXT,
    "rows": Kind.COUNT,
    "groups": Kind.COUNT,
    "places": Kind.TEXT,
    "tiles": Kind.COUNT,
    "rows of a tile": Kind.COUNT,
    "takes": Kind.SECONDS,
    "dense": Kind.SECONDS,
}


def _listed(numbers: list[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}" if others else last


def plan_products(
    ops: Iterable[ir.Operation], target: Target, *, rows: int = 0, always: bool = False
) -> RaggedPlan:
    """Plans some operations of a module.

    ``rows`` is the number of rows of a tile; with 0 it is chosen. ``always`` requests loops also
    where they take longer.
    """
    loops: list[RaggedLoop] = []
    left = []
    for op in ops:
        try:
            product = _ragged_product(op)
            if product is None:
                continue
            tiles = tiles_of(product, target, rows)
            if not always:
                check_worthwhile(product, tiles, target)
        except NotPossibleError as reason:
            left.append(Left(Described.of(op), str(reason)))
            continue
        loops.append(RaggedLoop(f"product-{len(loops)}", product, tiles))
    return RaggedPlan(tuple(loops), tuple(left))


def _ragged_product(op: ir.Operation) -> RaggedProduct | None:
    """Returns the ragged product that an operation computes, if any. Raises NotPossibleError."""
    if op.name == RAGGED_DOT:
        found: RaggedProduct | None = of_instruction(op)
    elif op.name == "stablehlo.dot_general":
        found = dense.of_product(op)
    else:
        return None
    if (
        found is not None
        and mesh.is_partitioned(op)
        and not mesh.is_in_manual_computation(op.block)
    ):
        raise NotPossibleError("XLA's partitioner has yet to split it over devices")
    return found


def tiles_of(product: RaggedProduct, target: Target, rows: int = 0) -> Tiles:
    """Returns the tiles of least time; with ``rows``, of so many rows each."""
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
    """Returns the most tiles that so many rows in so many groups take, if no tile is shared."""
    return (rows + min(groups, rows) * (length - 1)) // length


def _tiles_needed(product: RaggedProduct, length: int) -> int:
    """Returns the most tiles that any group sizes take; no places along the prefix share one."""
    return math.prod(product.places) * tile_count(product.rows, product.groups, length)


def check_worthwhile(product: RaggedProduct, tiles: Tiles, target: Target) -> None:
    """Raises NotPossibleError where the program is better without the loop."""
    if (
        target.platform == "tpu"
        and product.mode is RaggedMode.ROWS
        and product.op.name == RAGGED_DOT
    ):
        raise NotPossibleError("XLA:TPU has a kernel of its own for it")
    if tiles.loop_s >= tiles.dense_s:
        raise NotPossibleError(
            f"by the roofline a loop takes {tiles.loop_s * 1e6:.0f} us, the dense product "
            f"{tiles.dense_s * 1e6:.0f} us"
        )


def _lengths(shortest: int, rows: int) -> list[int]:
    lengths = [shortest]
    while lengths[-1] * 2 <= min(_LONGEST, rows):
        lengths.append(lengths[-1] * 2)
    return lengths


def _dense_seconds(product: RaggedProduct, speed: Speed) -> float:
    """Returns the time of XLA's own product: rows are copied once a group, and multiplied whole."""
    rows = [each for each in (product.left, product.right) if each.ragged is not None]
    parts = [each for each in (product.left, product.right) if each.ragged is None]
    copied = sum(packed_bytes(each.shape, each.element) for each in rows) * product.groups
    moved = 2 * copied + sum(each.read_bytes for each in parts) + product.result_bytes
    work_s = product.groups * product.flops / _rate(product, speed)
    return max(work_s, moved / speed.bytes_per_s, speed.kernel_s)


def _loop_seconds(product: RaggedProduct, speed: Speed, length: int) -> float:
    """Returns the time of all tiles, one after the other, and of the zeros before them."""
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
