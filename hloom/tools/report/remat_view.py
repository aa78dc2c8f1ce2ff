"""The plan of `remat` as tables: what is recomputed, what for, and what is kept for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hloom.tools.report.sources import Json, Named, Sources, number, whole, whole_or_none


@dataclass(frozen=True)
class Recomputed:
    """Values of one line that are computed again rather than kept.

    Attributes:
      value: one of them.
      count: how many there are.
      trips: how often the loop runs that they are in; 1 outside of loops.
      readers: what they are computed again for, each with how often.
    """

    value: Named
    count: int
    trips: int
    readers: tuple[tuple[Named, int], ...]

    @property
    def size_bytes(self) -> int:
        """What all of them took."""
        return self.value.size_bytes * self.count * self.trips


@dataclass(frozen=True)
class Kept:
    """Values of one line that are kept so that others can be computed from them."""

    value: Named
    count: int
    trips: int
    already: bool

    @property
    def size_bytes(self) -> int:
        """What all of them take."""
        return self.value.size_bytes * self.count * self.trips


@dataclass(frozen=True)
class Attempt:
    """One compile of a plan; figures that are not known are None.

    Attributes:
      predicted_bytes, measured_bytes: what the step takes of a device, foreseen and by XLA.
      added_flops: what is done once more.
      used: it is the one that runs.
    """

    predicted_bytes: int | None
    measured_bytes: int | None
    added_flops: float | None
    used: bool

    @property
    def error(self) -> float | None:
        """How far the prediction was off, as a share of what XLA measured."""
        if not self.predicted_bytes or not self.measured_bytes:
            return None
        return self.predicted_bytes / self.measured_bytes - 1


@dataclass(frozen=True)
class Recomputation:
    """What `remat` decided.

    Attributes:
      freed_bytes: residuals that are not kept any more.
      added_bytes: what is kept in their place.
      operations: how many are done once more.
      blocks, scans: how many straight-line blocks and pairs of loops it changes.
      added_flops, added_seconds: what that costs by the model of the device; None without budget.
      values: what is recomputed, the largest first.
      kept: what is stored for it, the largest first.
      attempts: every plan that was compiled, in order.
      considered: how many plans the search weighed.
    """

    freed_bytes: int
    added_bytes: int
    operations: int
    blocks: int
    scans: int
    added_flops: float | None
    added_seconds: float | None
    values: tuple[Recomputed, ...]
    kept: tuple[Kept, ...]
    attempts: tuple[Attempt, ...]
    considered: int

    @property
    def empty(self) -> bool:
        """Nothing is recomputed."""
        return not self.blocks and not self.scans


def recomputation(plan: Json, attempts: Sequence[Json], sources: Sources) -> Recomputation:
    """The tables of a plan of `remat`; raises KeyError or TypeError where it is no such plan."""
    blocks, scans = plan["blocks"], [each for scan in plan["scans"] for each in _inner(scan)]
    rows = _Rows(sources)
    for block in blocks:
        rows.add(block["readers"], (), trips=1)
    for scan in scans:
        sites = [site["reader"] | {"reads": site["reads"]} for site in scan["sites"]]
        rows.add(sites, scan["not_stored"], trips=whole(scan["trips"]))
    clones = sum(
        whole(group["recomputed_operations"]) for block in blocks for group in block["groups"]
    )
    clones += sum(whole(site["recomputed_operations"]) for scan in scans for site in scan["sites"])
    return Recomputation(
        freed_bytes=whole(plan["freed_bytes"]),
        added_bytes=whole(plan["added_bytes"]),
        operations=clones,
        blocks=len(blocks),
        scans=len(plan["scans"]),
        added_flops=_known(plan.get("added_flops")),
        added_seconds=_known(plan.get("added_seconds")),
        values=rows.values(),
        kept=_kept(blocks, scans, sources),
        attempts=tuple(_attempt(each) for each in attempts),
        considered=len(plan.get("considered") or ()),
    )


def _inner(scan: Json) -> Iterable[Json]:
    yield scan
    for inner in scan.get("inner", ()):
        yield from _inner(inner)


_Key: TypeAlias = tuple[str, str, str, int, int]


class _Rows:
    """Collects what is recomputed: one row for all values of one line, type and loop length."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._examples: dict[_Key, Json] = {}
        self._dropped: Counter[_Key] = Counter()
        self._readers: dict[_Key, Counter[tuple[str, str]]] = {}

    def add(self, readers: Iterable[Json], dropped: Iterable[Json], *, trips: int) -> None:
        """Adds a block or a loop: what is read there, and what its loop stored until now."""
        for value in dropped:
            self._dropped[self._key(value, trips)] += 1
        for reader in readers:
            for value in reader["reads"]:
                key = self._key(value, trips)
                self._readers[key][reader["name"], reader["source"]] += 1

    def values(self) -> tuple[Recomputed, ...]:
        """The rows, the largest first."""
        rows = [
            Recomputed(
                value=self._sources.named(example),
                count=max(self._dropped[key], 1),
                trips=key[-1],
                readers=tuple(
                    (self._sources.named({"name": name, "source": source}), count)
                    for (name, source), count in self._readers[key].most_common()
                ),
            )
            for key, example in self._examples.items()
        ]
        return tuple(sorted(rows, key=lambda row: -row.size_bytes))

    def _key(self, value: Json, trips: int) -> _Key:
        key = (value["name"], value["source"], value["type"], whole(value["bytes"]), trips)
        self._examples.setdefault(key, value)
        self._readers.setdefault(key, Counter())
        return key


def _kept(blocks: Iterable[Json], scans: Iterable[Json], sources: Sources) -> tuple[Kept, ...]:
    counts: Counter[tuple[str, str, str, int, int, bool]] = Counter()
    for block in blocks:
        leaves = [leaf for group in block["groups"] for leaf in group["starts_from"]]
        counts.update(_kept_key(leaf, 1, already=True) for leaf in leaves)
    for scan in scans:
        trips = int(scan["trips"])
        stored = scan["stored"]
        counts.update(_kept_key(value, trips, already=value["already"]) for value in stored)
    rows = [
        Kept(
            sources.named({"name": name, "source": source, "type": type_, "bytes": size_bytes}),
            # A block's groups start from the same values, which are there once.
            count if trips > 1 else 1,
            trips,
            already,
        )
        for (name, source, type_, size_bytes, trips, already), count in counts.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.size_bytes))


def _kept_key(value: Json, trips: int, *, already: bool) -> tuple[str, str, str, int, int, bool]:
    source, size_bytes = value["source"], whole(value["bytes"])
    return (value["name"], source, value["type"], size_bytes, trips, already)


def _attempt(entry: Json) -> Attempt:
    return Attempt(
        predicted_bytes=whole_or_none(entry.get("predicted_step_bytes")),
        measured_bytes=whole_or_none(entry.get("step_bytes")),
        added_flops=_known(entry.get("added_flops")),
        used=bool(entry.get("used")),
    )


def _known(value: object) -> float | None:
    return None if value is None else number(value)
