"""The tables of a plan that recomputes: the values no longer kept, and those kept instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from jax.extend.mlir import ir

from ..framework.tables import Cell, Described, Kind, Table
from .block.plan import BlockPlan
from .scan.plan import PairPlan, ScanPlan

_NOT_KEPT = {
    "not kept": Kind.BYTES,
    "value": Kind.VALUE,
    "iterations": Kind.COUNT,
    "computed again for": Kind.VALUE,
}
_KEPT = {"kept": Kind.BYTES, "value": Kind.VALUE, "iterations": Kind.COUNT, "before": Kind.TEXT}


def recompute_tables(blocks: Sequence[BlockPlan], scans: Sequence[ScanPlan]) -> tuple[Table, Table]:
    """Returns tables of the plans of straight-line blocks and of loops, the largest values first.

    Values of one line of the program share a row. A loop's stacks count for all of its iterations.
    """
    rows = _Rows()
    for block in blocks:
        rows.add_block(block)
    for scan in scans:
        for pair in scan.pairs:
            rows.add_pair(pair)
    return rows.tables()


def cloned_operations(blocks: Iterable[BlockPlan], scans: Iterable[ScanPlan]) -> int:
    """Returns the number of operations that are recomputed, those of a loop's body once."""
    clones = sum(len(group.recomputed) for block in blocks for group in block.groups)
    return clones + sum(len(scan.runs) for scan in scans)


_Key = tuple[Described, int]
"""A value, and the trip count of the loop that it is in; 1 outside of loops."""


@dataclass
class _Rows:
    """Values by line, counted.

    Attributes:
      dropped: the dropped stacks.
      readers: the operations that recomputed values are for.
      kept: the values that recomputation starts from, and whether they were kept before.
    """

    dropped: Counter[_Key] = field(default_factory=Counter)
    readers: dict[_Key, Counter[Described]] = field(default_factory=dict)
    kept: Counter[tuple[Described, int, bool]] = field(default_factory=Counter)

    def add_block(self, plan: BlockPlan) -> None:
        # Groups start from the same values, which are in memory once.
        leaves = {leaf: None for window in plan.windows for leaf in window.kept}
        self.kept.update({(each, 1, True): 1 for each in map(Described.of, leaves)})
        for window in plan.windows:
            for op, values in window.readers:
                self._read(op, values, 1)

    def add_pair(self, plan: PairPlan) -> None:
        trips = plan.pair.forward.trip_count
        self.dropped.update((Described.of(one.stored), trips) for one in plan.dropped)
        self.kept.update(
            (Described.of(value), trips, stack is not None) for value, stack in plan.stored
        )
        for site in plan.sites:
            self._read(site.op, [value for _, value in site.reads], trips)
        for inner in plan.inner:
            self.add_pair(inner)

    def _read(self, op: ir.Operation, values: Iterable[ir.Value], trips: int) -> None:
        for value in values:
            key = Described.of(value), trips
            self.readers.setdefault(key, Counter())[Described.at(op.location, op.name)] += 1

    def tables(self) -> tuple[Table, Table]:
        keys = dict.fromkeys((*self.dropped, *self.readers))
        gone = [
            (*_sized(key, max(self.dropped[key], 1)), tuple(self._readers_of(key))) for key in keys
        ]
        kept = [
            (*_sized((value, trips), count), "kept" if already else None)
            for (value, trips, already), count in self.kept.items()
        ]
        return (
            Table("Recomputed rather than kept", _NOT_KEPT, _largest_first(gone)),
            Table("Kept, to start from", _KEPT, _largest_first(kept)),
        )

    def _readers_of(self, key: _Key) -> Iterator[Described]:
        for reader, times in self.readers.get(key, Counter()).most_common():
            yield replace(reader, times=times)


def _sized(key: _Key, count: int) -> tuple[int, Described, int | None]:
    value, trips = key
    in_loop = trips if trips > 1 else None
    return value.bytes * count * trips, replace(value, times=count * trips), in_loop


def _largest_first(rows: Iterable[tuple[Cell, ...]]) -> tuple[tuple[Cell, ...], ...]:
    def size_of(row: tuple[Cell, ...]) -> int:
        return row[0] if isinstance(row[0], int) else 0

    return tuple(sorted(rows, key=size_of, reverse=True))
