"""The plan of `barriers` as a table: synchronizing operations in program order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hloom.passes.framework.text import pluralize
from hloom.tools.report.sources import Json, Named, Sources, number, whole


@dataclass(frozen=True)
class Meeting:
    """One place where devices meet.

    Attributes:
      what: "barrier", or the operation that meets by itself.
      kind: of a barrier: "entry", "exit" and so on; empty for others.
      depth: how many loops and manual computations it stands in.
      operation: what it is, or what a barrier is for.
      site: a barrier's own name in messages.
      groups: how the devices meet, for people; empty where not told.
      timeout_s: how long a barrier waits; None for others.
    """

    what: str
    kind: str
    depth: int
    operation: Named
    site: str = ""
    groups: str = ""
    timeout_s: float | None = None

    @property
    def is_around(self) -> bool:
        """It is a loop or the like, and what it holds stands behind it, one deeper."""
        return self.what in _AROUND

    @property
    def title(self) -> str:
        """Its name for people."""
        if self.what == "barrier":
            return f"{self.kind.replace('+', ' and ')} barrier"
        return _AROUND.get(self.what) or self.what.removeprefix("stablehlo.").replace("_", " ")


_AROUND = {
    "sdy.manual_computation": "in a shard_map",
    "stablehlo.while": "in a loop",
    "stablehlo.case": "in a branch",
    "stablehlo.if": "in a branch",
    "func.call": "in a function",
}


@dataclass(frozen=True)
class BarriersView:
    """What `barriers` decided.

    Attributes:
      order: every place where devices meet, as they come to it.
      count: how many barriers there are.
      served: needs that no barrier of their own serves, each with what does.
      counts: what else is in the order, by name.
    """

    order: tuple[Meeting, ...]
    count: int
    served: tuple[tuple[str, str], ...]
    counts: tuple[tuple[str, int], ...]


def barriers(plan: Json, sources: Sources) -> BarriersView:
    """The tables of a plan of `barriers`; raises KeyError or TypeError where it is no such plan."""
    details = {entry["site"]: entry for entry in plan["barriers"]}
    # Plans of older versions tell the barriers alone.
    order = plan.get("order") or [entry | {"what": "barrier"} for entry in plan["barriers"]]
    return BarriersView(
        order=tuple(
            _meeting(entry, details.get(entry.get("site"), {}), sources) for entry in order
        ),
        count=len(plan["barriers"]),
        served=tuple((str(entry["need"]), str(entry["by"])) for entry in plan["served"]),
        counts=tuple((name, whole(count)) for name, count in sorted(plan["ordered"].items())),
    )


def _meeting(entry: Json, details: Json, sources: Sources) -> Meeting:
    timeout_ms = details.get("timeout_ms")
    return Meeting(
        what=str(entry["what"]),
        kind=str(entry.get("kind") or ""),
        depth=min(whole(entry.get("depth") or 0), _DEEPEST),
        operation=sources.named(entry),
        site=str(entry.get("site") or ""),
        groups=_groups(details.get("replica_groups") or ()),
        timeout_s=None if timeout_ms is None else number(timeout_ms) / 1000,
    )


_MOST_DEVICES = 16

_DEEPEST = 40
"""How far a place is indented at most."""


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
