"""Tables of what was decided: recomputed values, barriers in order, and CUDA graph coverage.

Each function raises KeyError or TypeError where a damaged dump has something else.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hloom.passes.framework.text import pluralize
from hloom.show import units
from hloom.tools.report.sources import Json, Named, Sources, number_or_none, whole, whole_or_none


@dataclass(frozen=True)
class RematRow:
    """Values of one line that are computed again, or are kept so that others can be.

    Attributes:
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


HOW_PREDICTED = (
    "Each plan was compiled. The first prediction is hloom's model alone; the later ones are "
    "corrected by XLA's figures of the attempts before them."
)
"""What tells the two kinds of predictions of a budget apart."""


@dataclass(frozen=True)
class AttemptRow:
    """One compile of a plan: step bytes predicted and by XLA, where they are known.

    Attributes:
      limit_bytes: what XLA allows, where it refused the plan; None where it compiled it.
    """

    predicted_bytes: int | None
    measured_bytes: int | None
    added_flops: float | None
    used: bool
    limit_bytes: int | None = None

    @property
    def refusal(self) -> str:
        """Of a plan that XLA refused, e.g. "refused: 17.2 GiB of 15.8 GiB"; of others empty."""
        if self.measured_bytes is None or self.limit_bytes is None:
            return ""
        return units.refused(self.measured_bytes, self.limit_bytes)

    @property
    def error(self) -> float | None:
        """How far the prediction was off, as a share of what XLA measured."""
        if not self.predicted_bytes or not self.measured_bytes:
            return None
        return self.predicted_bytes / self.measured_bytes - 1


@dataclass(frozen=True)
class Recomputation:
    """What `remat` decided: `values` are recomputed from `kept` ones, the largest first.

    Attributes:
      freed_bytes, added_bytes: residuals not kept any more, and what is kept in their place.
      operations: how many are done once more.
      added_flops, added_seconds: what that costs by the model of the device; None without budget.
      considered: how many plans the search weighed.
    """

    empty: bool
    freed_bytes: int
    added_bytes: int
    operations: int
    added_flops: float | None
    added_seconds: float | None
    values: tuple[RematRow, ...]
    kept: tuple[RematRow, ...]
    attempts: tuple[AttemptRow, ...]
    considered: int


def recomputation(plan: Json, attempts: Sequence[Json], sources: Sources) -> Recomputation:
    """The tables of a plan of `remat`."""
    blocks, scans = plan["blocks"], [each for scan in plan["scans"] for each in _inner(scan)]
    # By value and the trip count of its loop.
    dropped: Counter[tuple[Named, int]] = Counter()
    readers: dict[tuple[Named, int], Counter[Named]] = defaultdict(Counter)
    kept: Counter[tuple[Named, int, bool]] = Counter()
    cloning = [group for block in blocks for group in block["groups"]]
    reading = [(each, each["reads"], 1) for block in blocks for each in block["readers"]]
    kept.update((sources.named(leaf), 1, True) for each in cloning for leaf in each["starts_from"])
    for scan in scans:
        trips = whole(scan["trips"])
        dropped.update((sources.named(value), trips) for value in scan["not_stored"])
        kept.update((sources.named(one), trips, bool(one["already"])) for one in scan["stored"])
        reading += [(site["reader"], site["reads"], trips) for site in scan["sites"]]
        cloning += scan["sites"]
    for reader, values, trips in reading:
        name = str(reader["name"] or reader.get("operation") or "")
        operation = Named(name, sources.place_of(reader))
        for value in values:
            readers[sources.named(value), trips][operation] += 1
    return Recomputation(
        empty=not blocks and not scans,
        freed_bytes=whole(plan["freed_bytes"]),
        added_bytes=whole(plan["added_bytes"]),
        operations=sum(whole(each["recomputed_operations"]) for each in cloning),
        added_flops=number_or_none(plan.get("added_flops")),
        added_seconds=number_or_none(plan.get("added_seconds")),
        values=_largest_first(
            RematRow(key[0], max(dropped[key], 1), key[1], tuple(readers[key].most_common()))
            for key in dict.fromkeys((*dropped, *readers))
        ),
        # A block's groups start from the same values, which are there once.
        kept=_largest_first(
            RematRow(value, count if trips > 1 else 1, trips, already=already)
            for (value, trips, already), count in kept.items()
        ),
        attempts=tuple(
            AttemptRow(
                predicted_bytes=whole_or_none(each.get("predicted_step_bytes")),
                measured_bytes=whole_or_none(each.get("step_bytes")),
                added_flops=number_or_none(each.get("added_flops")),
                used=bool(each.get("used")),
                limit_bytes=whole_or_none(each.get("limit_bytes")),
            )
            for each in attempts
        ),
        considered=len(plan.get("considered") or ()),
    )


def _inner(scan: Json) -> Iterable[Json]:
    yield scan
    for inner in scan.get("inner", ()):
        yield from _inner(inner)


def _largest_first(rows: Iterable[RematRow]) -> tuple[RematRow, ...]:
    return tuple(sorted(rows, key=lambda row: -row.size_bytes))


_AROUND = {
    "sdy.manual_computation": "in a shard_map",
    "stablehlo.while": "in a loop",
    "stablehlo.case": "in a branch",
    "stablehlo.if": "in a branch",
    "func.call": "in a function",
}
"""Operations that hold what comes after them, one deeper."""

_MOST_DEVICES = 16

_DEEPEST = 40
"""How far a place is indented at most."""


@dataclass(frozen=True)
class Meeting:
    """One place where devices meet.

    Attributes:
      kind: "barrier", "around" for a loop or the like that holds others, or "member".
      depth: how many loops and manual computations it stands in.
      groups, timeout_s: of a barrier, how the devices meet, and how long it waits.
    """

    kind: str
    title: str
    depth: int
    operation: Named
    groups: str
    timeout_s: float | None


@dataclass(frozen=True)
class BarriersView:
    """What `barriers` decided, in the order in which devices come to it.

    Attributes:
      count, counts: how many barriers there are, and what else is in the order, by name.
      served: needs that no barrier of their own serves, each with what does.
    """

    order: tuple[Meeting, ...]
    count: int
    served: tuple[tuple[str, str], ...]
    counts: tuple[tuple[str, int], ...]


def barriers(plan: Json, sources: Sources) -> BarriersView:
    """The tables of a plan of `barriers`."""
    details = {entry["site"]: entry for entry in plan["barriers"]}
    # Plans of older versions tell the barriers alone.
    order = plan.get("order") or [entry | {"what": "barrier"} for entry in plan["barriers"]]
    return BarriersView(
        order=tuple(_meeting(each, details.get(each.get("site"), {}), sources) for each in order),
        count=len(plan["barriers"]),
        served=tuple((str(entry["need"]), str(entry["by"])) for entry in plan["served"]),
        counts=tuple((name, whole(count)) for name, count in sorted(plan["ordered"].items())),
    )


def _meeting(entry: Json, details: Json, sources: Sources) -> Meeting:
    what, timeout_ms = str(entry["what"]), number_or_none(details.get("timeout_ms"))
    kind = "around" if what in _AROUND else "barrier" if what == "barrier" else "member"
    title = _AROUND.get(what) or what.removeprefix("stablehlo.").replace("_", " ")
    if kind == "barrier":
        title = f"{str(entry.get('kind') or '').replace('+', ' and ')} barrier"
    return Meeting(
        kind=kind,
        title=title,
        depth=min(whole(entry.get("depth") or 0), _DEEPEST),
        operation=sources.named(entry),
        groups=_groups(details.get("replica_groups") or ()),
        timeout_s=None if timeout_ms is None else timeout_ms / 1000,
    )


def _groups(rows: Sequence[Sequence[int]]) -> str:
    """Who meets: "8 devices, 0-7", "2 groups of 4: 0-3, 4-7"."""
    if not rows:
        return ""
    if len(rows) == 1:
        return f"{pluralize(len(rows[0]), 'device')}, {_devices(rows[0])}"
    sizes = {len(row) for row in rows}
    of = f" of {sizes.pop()}" if len(sizes) == 1 else ""
    shown = ", ".join(_devices(row) for row in rows[:4])
    more = f" and {len(rows) - 4} more" if len(rows) > 4 else ""
    return f"{len(rows)} groups{of}: {shown}{more}"


def _devices(row: Sequence[int]) -> str:
    if len(row) > 1 and list(row) == list(range(row[0], row[0] + len(row))):
        return f"{row[0]}-{row[-1]}"
    shown = " ".join(map(str, row[:_MOST_DEVICES]))
    return shown + (" …" if len(row) > _MOST_DEVICES else "")


@dataclass(frozen=True)
class LeftOutRow:
    """Thunks of one operation that no graph holds, for one reason."""

    kind: str
    operation: Named
    instruction: str
    reason: str
    count: int


@dataclass(frozen=True)
class Graphs:
    """What of a module runs in CUDA graphs, by XLA's numbers where they are known.

    Attributes:
      share: captured of all, from 0 to 1.
      reasons, left_out: why thunks are left out with how many, and the same by operation.
      options: what XLA was asked for.
      notes: what stood in the way.
    """

    thunks: int | None
    captured: int | None
    graphs: int | None
    share: float | None
    reasons: tuple[tuple[str, int], ...]
    left_out: tuple[LeftOutRow, ...]
    options: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def graphs(found: Json, sources: Sources) -> Graphs:
    """The tables of what was captured."""
    coverage = found["coverage"] or {}
    names = ("thunks", "captured", "graphs")
    thunks, captured, count = (whole_or_none(coverage.get(name)) for name in names)
    entries = coverage.get("left_out", ())
    rows = Counter(
        (
            str(entry["kind"]).removeprefix("k"),
            Named(str(entry["operation"]), sources.place_of(entry)),
            str(entry["instruction"]),
            str(entry["reason"]),
        )
        for entry in entries
    )
    reasons = Counter(
        "a loop around one of these" if reason.startswith("in it: ") else reason
        for reason in (str(entry["reason"]) for entry in entries)
    )
    share = None
    if thunks is not None and captured is not None and count is not None:
        share = captured / thunks if thunks else 1.0
    return Graphs(
        thunks=thunks,
        captured=captured,
        graphs=count,
        share=share,
        reasons=tuple(reasons.most_common()),
        left_out=tuple(LeftOutRow(*row, times) for row, times in rows.items()),
        options=tuple((name, str(value)) for name, value in found["options"].items()),
        notes=tuple(map(str, found["notes"])),
    )
