"""The plan of `undo-checkpoint`: the program with residuals stored, and the work that is saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.autodiff import is_rematerialized
from ..analysis.device import LocalSizes
from ..analysis.pricing import Pricing
from ..analysis.shardings.shardings import Shardings
from ..analysis.value_numbers import ValueNumbers
from ..framework.base import PlanBase
from ..framework.tables import Described, Kind, Table
from ..framework.target import Target
from ..framework.text import pluralize, size
from ..ir import walk
from ..ir.clone import clone_module
from ..ir.locations import source_line
from ..ir.ops import BARRIER, facts_of
from .merge import barriers_in, merge_across_barriers, take_places
from .residuals import UndoneLoop, undo_in_loops


@dataclass(frozen=True)
class UndoCheckpointPlan(PlanBase):
    """A module, and its copy after the pass.

    Attributes:
      undone: a copy in which nothing is recomputed; None where there is nothing to undo.
      merged: the operations, by name, that straight-line code recomputed.
      loops: the backward loops that read values that they recomputed before.
    """

    module: ir.Module
    undone: ir.Module | None = None
    merged: tuple[str, ...] = ()
    loops: tuple[UndoneLoop, ...] = ()

    @property
    def empty(self) -> bool:
        return self.undone is None

    @property
    def _spared(self) -> list[str]:
        return [*self.merged, *(name for loop in self.loops for name in loop.spared)]

    def effect(self) -> str:
        return f"{pluralize(len(self._spared), 'operation')} no longer computed again"

    def summary(self) -> str:
        if self.empty:
            return "nothing to undo"
        text = self.effect()
        products = sum(facts_of(name).is_product for name in self._spared)
        if products:
            text += f", {pluralize(products, 'product')} among them"
        if self.loops:
            stored = sum(loop.stored_bytes for loop in self.loops)
            lines = dict.fromkeys(filter(None, (source_line(o.location) for o in self.loops)))
            text += f"; {pluralize(len(self.loops), 'loop')} store {size(stored)} for it"
            text += f" ({', '.join(lines)})" if lines else ""
        return text

    def tables(self) -> tuple[Table, ...]:
        merged = tuple((count, name) for name, count in sorted(Counter(self.merged).items()))
        loops = tuple(
            (loop.stored_bytes, Described.at(loop.location), _counted(loop.spared))
            for loop in self.loops
        )
        return (
            Table("Loops that store instead of computing again", _LOOP_COLUMNS, loops),
            Table("Computed again beside loops", _MERGED_COLUMNS, merged),
        )


_LOOP_COLUMNS = {"stores": Kind.BYTES, "loop": Kind.VALUE, "no longer computed again": Kind.TEXT}
_MERGED_COLUMNS = {"operations": Kind.COUNT, "no longer computed again": Kind.CODE}


def _counted(names: Iterable[str]) -> str:
    counts = sorted(Counter(names).items())
    return ", ".join(f"{count} x {name.partition('.')[2] or name}" for name, count in counts)


def plan_undo(module: ir.Module, target: Target) -> UndoCheckpointPlan:
    """Plans a module, whose calls are inlined."""
    if not any(map(_may_compute_again, walk.operations(module.operation))):
        return UndoCheckpointPlan(module)
    undone = clone_module(module)
    merged: list[str] = []
    loops: list[UndoneLoop] = []
    pricing = Pricing(target.speed, sizes=LocalSizes(shardings=Shardings.of(undone)))
    with undone.context:
        for block in _blocks(undone.operation):
            if _holds_any(block) and not is_rematerialized(block):
                moved = barriers_in(block) and take_places(block, block, ValueNumbers())
                if moved or target.keeps_barriers:
                    merged += [op.name for op in merge_across_barriers(block)]
                loops += undo_in_loops(block, pricing)
    if not merged and not loops:
        return UndoCheckpointPlan(module)
    return UndoCheckpointPlan(module, undone, tuple(merged), tuple(loops))


def _may_compute_again(op: ir.Operation) -> bool:
    """Whether an operation may separate repeated work: a barrier, or loops."""
    return op.name in (BARRIER, "stablehlo.while")


def _holds_any(block: ir.Block) -> bool:
    return any(_may_compute_again(view.operation) for view in block.operations)


def _blocks(op: ir.Operation) -> Iterator[ir.Block]:
    """Yields blocks of code, inner ones first; edits of a block leave other blocks in place."""
    for region in op.regions:
        for block in region.blocks:
            for view in block.operations:
                yield from _blocks(view.operation)
            if facts_of(op.name).holds_code:
                yield block
