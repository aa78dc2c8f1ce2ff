"""The plan of `offload`: the stacks that go to the host, and those that stay on the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..framework.base import ListPlan
from ..framework.tables import Described, Fact, Kind, Left, Table, left_table
from ..framework.text import pluralize, size
from .candidates import Offloadable, OffloadCandidate, exposed_seconds

_SHOWN = 8
"""The most stacks left that a plan lists."""

COPIES_EXCEED = "its copies take longer than the work of its loops"
"""Why a candidate is not taken."""


@dataclass(frozen=True)
class OffloadPlan(ListPlan[OffloadCandidate]):
    """The stacks that go to the host, and large ones that stay on the device.

    ``reason`` is why no stack of this module goes to the host; empty where one may.
    """

    reason: str = ""

    @property
    def host_bytes(self) -> int:
        """Returns bytes of pinned memory of the host, for each device."""
        return sum(one.stack_bytes for one in self.decided)

    @property
    def exposed_s(self) -> float:
        """Returns seconds of a step that wait for copies, by the cost model."""
        return exposed_seconds(self.decided)

    def effect(self) -> str:
        return f"{pluralize(len(self.decided), 'stack')} on the host, {size(self.host_bytes)}"

    def summary(self) -> str:
        text = "no stack on the host"
        if self.decided:
            exposed_ms = 1e3 * self.exposed_s
            text = f"{self.effect()}; {exposed_ms:.2f} ms of copies that no work hides"
        if self.reason:
            return f"{text}: {self.reason}"
        reasons = Counter(each.reason for each in self.left)
        counts = [f"{count} x {reason}" for reason, count in sorted(reasons.items())]
        return f"{text}; left: {', '.join(counts)}" if counts else text

    def facts(self) -> tuple[Fact, ...]:
        return (
            Fact("pinned memory of the host", self.host_bytes, Kind.BYTES),
            Fact("copies that no work hides", self.exposed_s, Kind.SECONDS),
        )

    def tables(self) -> tuple[Table, ...]:
        rows = tuple(
            (one.stack_bytes, one.value, one.link_s, one.store_window_s, one.load_window_s)
            for one in self.decided
        )
        return Table("Stacks on the host", _COLUMNS, rows), left_table(self.left, most=_SHOWN)


_COLUMNS = {
    "on the host": Kind.BYTES,
    "stack of": Kind.VALUE,
    "copy of a slice": Kind.SECONDS,
    "work beside a store": Kind.SECONDS,
    "beside a load": Kind.SECONDS,
}


def plan_offload(found: Offloadable, chosen: Sequence[OffloadCandidate]) -> OffloadPlan:
    """Returns the plan that stores these candidates of a module on the host."""
    ids = {one.id for one in chosen}
    left = tuple(
        Left(Described.of(one.stored, one.stack_bytes), COPIES_EXCEED)
        for one in found.candidates
        if one.id not in ids
    )
    kept = tuple(one for one in found.candidates if one.id in ids)
    return OffloadPlan(kept, (*left, *found.left), found.refusal)


def choose_hidden(found: Offloadable, share: float) -> list[OffloadCandidate]:
    """Returns the candidates whose copies the loops' own work hides, the largest first.

    The exposed copies may take a ``share`` of the time of all loops that have candidates.
    """
    loops = {id(work): work for one in found.candidates for work in (one.forward, one.backward)}
    allowed_s = share * sum(work.seconds for work in loops.values())
    chosen: list[OffloadCandidate] = []
    for one in sorted(found.candidates, key=lambda one: -one.stack_bytes):
        if exposed_seconds([*chosen, one]) <= allowed_s:
            chosen.append(one)
    return chosen
