"""Which ragged products run in loops over tiles, and which stay, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from jax.extend.mlir import ir

from ..framework.base import Decision
from ..framework.target import Target
from ..framework.text import pluralize
from ..ir import mesh
from ..ir.locations import operation_name, source_line, source_of
from . import dense
from .choice import Tiles, check_worthwhile, tiles_of
from .product import (
    RAGGED_DOT,
    NotRewrittenError,
    RaggedProduct,
    of_instruction,
)


@dataclass(frozen=True)
class RaggedLoop:
    """A product that runs in a loop.

    Attributes:
      id: of the decision.
      product: what it computes.
      tiles: what it runs over.
    """

    id: str
    product: RaggedProduct
    tiles: Tiles

    def to_json(self) -> dict[str, object]:
        return {
            "id": self.id,
            "mode": str(self.product.mode),
            "rows": self.product.rows,
            "groups": self.product.groups,
            **({"places": self.product.places} if self.product.places else {}),
            "tile_rows": self.tiles.rows,
            "tiles": self.tiles.count,
            "loop_seconds": self.tiles.loop_s,
            "dense_seconds": self.tiles.dense_s,
            **_described(self.product.op),
        }


@dataclass(frozen=True)
class LeftProduct:
    """A ragged product that stays as it is, and why."""

    op: ir.Operation
    reason: str

    def to_json(self) -> dict[str, object]:
        return _described(self.op) | {"reason": self.reason}


def _described(op: ir.Operation) -> dict[str, object]:
    return {
        "operation": op.name,
        "name": operation_name(op.location),
        **source_of(op.location).to_json(),
        "type": str(op.results[0].type),
    }


@dataclass(frozen=True)
class RaggedPlan:
    """The products that run in loops, in the order of the program, and those that stay."""

    loops: tuple[RaggedLoop, ...]
    left: tuple[LeftProduct, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.loops

    def effect(self) -> str:
        return f"{pluralize(len(self.loops), 'ragged product')} in loops"

    def summary(self) -> str:
        parts = []
        if self.loops:
            rows = sorted({loop.tiles.rows for loop in self.loops})
            parts.append(f"{self.effect()} over tiles of {_listed(rows)} rows")
        counts: dict[str, int] = {}
        for each in self.left:
            counts[each.reason] = counts.get(each.reason, 0) + 1
        parts += [
            f"{pluralize(count, 'ragged product')} left: {reason}"
            for reason, count in counts.items()
        ]
        return "; ".join(parts) or "no ragged product"

    def to_json(self) -> dict[str, object]:
        return {
            "loops": [loop.to_json() for loop in self.loops],
            "left": [each.to_json() for each in self.left],
        }

    def decisions(self) -> tuple[Decision, ...]:
        return tuple(
            Decision(
                loop.id,
                f"a ragged product of {pluralize(loop.product.groups, 'group')} runs in a loop, "
                f"{source_line(loop.product.op.location)}",
            )
            for loop in self.loops
        )

    def restricted_to(self, ids: Collection[str]) -> RaggedPlan:
        return replace(self, loops=tuple(loop for loop in self.loops if loop.id in ids))


def _listed(numbers: list[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}" if others else last


def plan_products(
    ops: Iterable[ir.Operation], target: Target, *, rows: int = 0, always: bool = False
) -> RaggedPlan:
    """The plan for some operations of a module.

    ``rows`` of a tile are given or, with 0, chosen; ``always`` asks for loops where they take
    longer, too.
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
        except NotRewrittenError as reason:
            left.append(LeftProduct(op, str(reason)))
            continue
        loops.append(RaggedLoop(f"product-{len(loops)}", product, tiles))
    return RaggedPlan(tuple(loops), tuple(left))


def _ragged_product(op: ir.Operation) -> RaggedProduct | None:
    """The ragged product that an operation makes, if it makes one. Raises NotRewrittenError."""
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
        raise NotRewrittenError("XLA's partitioner has yet to split it over devices")
    return found
