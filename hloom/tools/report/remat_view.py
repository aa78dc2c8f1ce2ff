"""The plan of `remat` as tables: recomputed values, their readers, and values saved for them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hloom.tools.report.sources import Json, Named, Sources, number, whole, whole_or_none


@dataclass(frozen=True)
class RematRow:
    """Values of one line that are computed again, or are kept so that others can be.

    Attributes:
      value: one of them.
      count: how many there are.
      trips: the trip count of the loop that they are in; 1 outside of loops.
      readers: what they are computed again for, each with how often.
      already: of kept ones, whether they were kept before.
    """

    value: Named
    count: int
    trips: int
    readers: tuple[tuple[Named, int], ...] = ()
    already: bool = False

    @property
    def size_bytes(self) -> int:
        """What all of them take."""
        return self.value.size_bytes * self.count * self.trips


@dataclass(frozen=True)
class AttemptRow:
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
    values: tuple[RematRow, ...]
    kept: tuple[RematRow, ...]
    attempts: tuple[AttemptRow, ...]
    considered: int

    @property
    def empty(self) -> bool:
        """Nothing is recomputed."""
        return not self.blocks and not self.scans


def recomputation(plan: Json, attempts: Sequence[Json], sources: Sources) -> Recomputation:
    """The tables of a plan of `remat`; raises KeyError or TypeError where it is no such plan."""
    blocks, scans = plan["blocks"], [each for scan in plan["scans"] for each in _inner(scan)]
    dropped: Counter[_Key] = Counter()
    readers: dict[_Key, Counter[tuple[str, str]]] = defaultdict(Counter)
    kept: Counter[tuple[_Key, bool]] = Counter()
    for block in blocks:
        _count_readers(readers, block["readers"], 1)
        kept.update(
            (_key(leaf, 1), True) for each in block["groups"] for leaf in each["starts_from"]
        )
    for scan in scans:
        trips = whole(scan["trips"])
        dropped.update(_key(value, trips) for value in scan["not_stored"])
        sites = [site["reader"] | {"reads": site["reads"]} for site in scan["sites"]]
        _count_readers(readers, sites, trips)
        kept.update((_key(value, trips), bool(value["already"])) for value in scan["stored"])
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
        values=_largest_first(
            RematRow(
                value=_named(key, sources),
                count=max(dropped[key], 1),
                trips=key[-1],
                readers=tuple(
                    (sources.named({"name": name, "source": source}), count)
                    for (name, source), count in readers[key].most_common()
                ),
            )
            for key in dict.fromkeys((*dropped, *readers))
        ),
        # A block's groups start from the same values, which are there once.
        kept=_largest_first(
            RematRow(_named(key, sources), count if key[-1] > 1 else 1, key[-1], already=already)
            for (key, already), count in kept.items()
        ),
        attempts=tuple(_attempt(each) for each in attempts),
        considered=len(plan.get("considered") or ()),
    )


def _inner(scan: Json) -> Iterable[Json]:
    yield scan
    for inner in scan.get("inner", ()):
        yield from _inner(inner)


_Key: TypeAlias = tuple[str, str, str, int, int]
"""Name, source, type and bytes of a value, and the trip count of its loop."""


def _key(value: Json, trips: int) -> _Key:
    return value["name"], value["source"], value["type"], whole(value["bytes"]), trips


def _named(key: _Key, sources: Sources) -> Named:
    name, source, type_, size_bytes, _ = key
    return sources.named({"name": name, "source": source, "type": type_, "bytes": size_bytes})


def _count_readers(
    found: dict[_Key, Counter[tuple[str, str]]], readers: Iterable[Json], trips: int
) -> None:
    for reader in readers:
        for value in reader["reads"]:
            found[_key(value, trips)][reader["name"], reader["source"]] += 1


def _largest_first(rows: Iterable[RematRow]) -> tuple[RematRow, ...]:
    return tuple(sorted(rows, key=lambda row: -row.size_bytes))


def _attempt(entry: Json) -> AttemptRow:
    return AttemptRow(
        predicted_bytes=whole_or_none(entry.get("predicted_step_bytes")),
        measured_bytes=whole_or_none(entry.get("step_bytes")),
        added_flops=_known(entry.get("added_flops")),
        used=bool(entry.get("used")),
    )


def _known(value: object) -> float | None:
    return None if value is None else number(value)
