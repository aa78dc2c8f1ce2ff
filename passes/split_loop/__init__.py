"""Split a scan over layers into two or three, so that ``remat`` can plan each of them otherwise.

The forward loop and its backward loop become parts, each with its own body and its own stacks.

Before::

    %0:2 = stablehlo.while(%c = %x, %s = %zeros_12) (12 times) { ... }
    %1:2 = stablehlo.while(%g = %y, %s = %0#1) (12 times) { ... }

After::

    // with at=8
    %0:2 = stablehlo.while(%c = %x, %s = %zeros_8) (8 times) { ... }
    %1:2 = stablehlo.while(%c = %0#0, %s = %zeros_4) (4 times) { ... }
    %2:2 = stablehlo.while(%g = %y, %s = %1#1) (4 times) { ... }
    %3:2 = stablehlo.while(%g = %2#0, %s = %0#1) (8 times) { ... }

Alone the pass saves no memory. A loop stays whole if its trip count is known only at run time, if
it has sharding attributes for each carry, or if a part would have fewer than two iterations.
"""

# Modules, in the order in which a module of IR passes through them: `groups` finds the loops that
# can be split, with all loops that share stacks, and why others cannot; `plan` has the positions,
# and chooses where to split for a budget, from the memory of plans without a split; `rewrite`
# writes the parts.

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from jax.extend.mlir import ir

from ..cse import Cse
from ..drop_constraints import DropConstraints
from ..framework.base import Pass
from ..framework.options import Cuts, option
from ..framework.target import Target
from ..framework.text import pluralize
from .groups import LEAST_TRIPS, LoopGroup, left_whole, splittable
from .plan import (
    MOST_PARTS,
    GroupSplit,
    SplitLoopPlan,
    SplitPositionError,
    even_positions,
    plan_split,
    told_whole,
)
from .rewrite import apply_split


@dataclass(frozen=True)
class SplitLoop(Pass):
    """Split scans into parts."""

    name: ClassVar[str] = "split-loop"
    summary: ClassVar[str] = "split a scan in parts, each with a plan of its own"
    example: ClassVar[str] = "split-loop{at=8},remat{budget=60GiB}"
    requires: ClassVar[tuple[type[Pass], ...]] = (DropConstraints, Cse)
    once: ClassVar[bool] = True

    parts: int = option(
        2, doc="parts of equal length that each loop becomes", minimum=2, maximum=MOST_PARTS
    )
    at: Cuts | None = option(
        None, doc="the iterations at which a part begins, instead of parts of equal length"
    )
    min_trips: int = option(
        2 * LEAST_TRIPS, doc="loops of fewer iterations stay whole", minimum=2 * LEAST_TRIPS
    )

    def plan(self, module: ir.Module, target: Target) -> SplitLoopPlan:
        groups, whole = splittable(module.operation)
        splits: list[GroupSplit] = []
        for group in groups:
            found = self._split(group)
            if isinstance(found, GroupSplit):
                splits.append(replace(found, id=f"scan-{len(splits)}"))
            else:
                whole.append(left_whole(group.loops[0].loop.op, found))
        refused = self.at is not None and not splits
        refusal = f"{self}: no loop is split. {told_whole(whole)}" if refused else ""
        return SplitLoopPlan(tuple(splits), tuple(whole), refusal=refusal)

    def _split(self, group: LoopGroup) -> GroupSplit | str:
        """Returns the split of a group, or why it stays whole."""
        trips = group.trip_count
        if trips < self.min_trips:
            return f"it has {pluralize(trips, 'iteration')}, fewer than min_trips={self.min_trips}"
        at = even_positions(trips, self.parts) if self.at is None else self.at.positions
        try:
            return plan_split(group, at)
        except SplitPositionError as error:
            return str(error)

    def apply(self, plan: SplitLoopPlan) -> None:
        for split in plan.decided:
            apply_split(split)
