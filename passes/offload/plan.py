"""The plan of `offload`: the stacks that go to the host, and those that stay on the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ..framework.base import Decision
from ..framework.text import pluralize, size
from ..ir.locations import operation_name, source_of
from .candidates import (
    Offloadable,
    OffloadCandidate,
    StackLeft,
    exposed_seconds,
)

_SHOWN = 8
"""Stacks left that a plan lists."""

COPIES_EXCEED = "its copies take longer than the work of its loops"
"""Why a candidate is not taken."""


@dataclass(frozen=True)
class OffloadPlan:
    """The stacks that go to the host.

    Attributes:
      chosen: they, in the module's order.
      left: large stacks that stay on the device, and why.
      reason: why nothing of this module goes to the host; empty where something may.
    """

    chosen: tuple[OffloadCandidate, ...]
    left: tuple[StackLeft, ...] = ()
    reason: str = ""

    @property
    def empty(self) -> bool:
        return not self.chosen

    @property
    def host_bytes(self) -> int:
        """Bytes of pinned memory of the host, for each device."""
        return sum(one.stack_bytes for one in self.chosen)

    @property
    def exposed_s(self) -> float:
        """Seconds of a step that wait for copies, by the cost model."""
        return exposed_seconds(self.chosen)

    def effect(self) -> str:
        return f"{pluralize(len(self.chosen), 'stack')} on the host, {size(self.host_bytes)}"

    def summary(self) -> str:
        text = "no stack on the host"
        if self.chosen:
            exposed_ms = 1e3 * self.exposed_s
            text = f"{self.effect()}; {exposed_ms:.2f} ms of copies that no work hides"
        if self.reason:
            return f"{text}: {self.reason}"
        reasons = Counter(each.reason for each in self.left)
        counts = [f"{count} x {reason}" for reason, count in sorted(reasons.items())]
        return f"{text}; left: {', '.join(counts)}" if counts else text

    def to_json(self) -> dict[str, object]:
        return {
            "stacks": [one.to_json() | {"id": one.id} for one in self.chosen],
            "host_bytes": self.host_bytes,
            "exposed_s": self.exposed_s,
            "left": [each.to_json() for each in self.left[:_SHOWN]],
            "reason": self.reason,
        }

    def decisions(self) -> tuple[Decision, ...]:
        return tuple(Decision(one.id, _description(one)) for one in self.chosen)

    def restricted_to(self, ids: Collection[str]) -> OffloadPlan:
        return replace(self, chosen=tuple(one for one in self.chosen if one.id in ids))


def plan_offload(found: Offloadable, chosen: Sequence[OffloadCandidate]) -> OffloadPlan:
    """The plan that puts these candidates of a module on the host."""
    ids = {one.id for one in chosen}
    left = tuple(
        StackLeft(one.stored, one.stack_bytes, COPIES_EXCEED)
        for one in found.candidates
        if one.id not in ids
    )
    kept = tuple(one for one in found.candidates if one.id in ids)
    return OffloadPlan(kept, (*left, *found.left), found.refusal)


def choose_hidden(found: Offloadable, share: float) -> list[OffloadCandidate]:
    """The candidates whose copies the loops' own work hides, the largest first.

    What is exposed may take a ``share`` of the time of all loops that have candidates.
    """
    loops = {id(work): work for one in found.candidates for work in (one.forward, one.backward)}
    allowed_s = share * sum(work.seconds for work in loops.values())
    chosen: list[OffloadCandidate] = []
    for one in sorted(found.candidates, key=lambda one: -one.stack_bytes):
        if exposed_seconds([*chosen, one]) <= allowed_s:
            chosen.append(one)
    return chosen


def _description(one: OffloadCandidate) -> str:
    location = one.stored.location
    name, line = operation_name(location), str(source_of(location))
    where = f" ({line})" if line else ""
    return f"{size(one.stack_bytes)} of {name or 'a residual'}{where}"
