"""The positions of barriers in a block: as few barriers as possible.

A need is an interval of the block in which its partitions have to synchronize: it begins after the
operation that causes the need, and ends before the one that relies on it. A barrier in the interval
serves it, and so does a collective in it. Needs are visited by their ends; one that nothing serves
yet gets a barrier at its end. For needs of the same partitions this takes the fewest barriers: it
is the greedy rule for stabbing intervals with points.

Positions are numbers: slot `n` of a block is right before its operation `n`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..ir.collectives import Participants, covers


class Role(enum.StrEnum):
    """The kind of a need."""

    EXIT = "exit"
    ENTRY = "entry"
    MODULE = "module"


@dataclass(frozen=True)
class SyncNeed:
    """The partitions of each group have to synchronize in one of the slots from `first` to `last`.

    Attributes:
      kernel: the position of the kernel that has the need.
      role: its kind. An entry is served as late as possible, right before its kernel, and so is
        "module", at the end; an exit is served as early as possible.
      first, last: slots, both included.
      participants: the groups of partitions that synchronize.
      after: positions of kernels whose results this kernel reads: these are final only once the
        exits of those kernels, if they have one, are served.
      is_apart: whether one barrier must not serve both those exits and this entry.
    """

    kernel: int
    role: Role
    first: int
    last: int
    participants: Participants
    after: tuple[int, ...] = ()
    is_apart: bool = False


@dataclass(frozen=True)
class Collective:
    """One of XLA's collectives that synchronizes its groups of partitions."""

    position: int
    participants: Participants


@dataclass(eq=False)
class Placed:
    """A barrier at a slot, and the numbers of the needs that it serves."""

    slot: int
    participants: Participants
    needs: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class BarrierPositions:
    """The positions of the barriers of a block.

    Attributes:
      barriers: in program order.
      served: by the number of a need without a barrier, the collective that serves it.
    """

    barriers: tuple[Placed, ...]
    served: dict[int, Collective]


def place(needs: Sequence[SyncNeed], collectives: Sequence[Collective]) -> BarrierPositions:
    """Assigns a barrier, or one of the collectives, to every need."""
    placer = _Placer(needs, collectives)
    for number in sorted(range(len(needs)), key=lambda number: _order(needs[number])):
        placer.serve(number)
    return placer.placement()


def _order(need: SyncNeed) -> tuple[int, int, int]:
    """The order in which needs are served: by their ends, then exits before entries, then larger
    groups first, since their barriers serve smaller groups as well."""
    return need.last, list(Role).index(need.role), len(need.participants)


class _Placer:
    def __init__(self, needs: Sequence[SyncNeed], collectives: Sequence[Collective]) -> None:
        self._needs = needs
        self._collectives = collectives
        self._barriers: list[Placed] = []
        self._served: dict[int, Collective] = {}
        self._exits: dict[int, int | Collective] = {}
        """By kernel, the number of the barrier that serves its exit, or the collective."""

    def serve(self, number: int) -> None:
        need = self._needs[number]
        barrier = next(
            (each for each in range(len(self._barriers)) if self._has_barrier(need, each)), None
        )
        if barrier is None:
            for collective in self._collectives:
                if self._has_collective(need, collective):
                    self._served[number] = collective
                    self._note_exit(need, collective)
                    return
            barrier = len(self._barriers)
            self._barriers.append(Placed(need.last, need.participants))
        self._barriers[barrier].needs.append(number)
        self._note_exit(need, barrier)

    def _note_exit(self, need: SyncNeed, served_by: int | Collective) -> None:
        if need.role is Role.EXIT:
            self._exits[need.kernel] = served_by

    def _has_barrier(self, need: SyncNeed, number: int) -> bool:
        barrier = self._barriers[number]
        return (
            need.first <= barrier.slot <= need.last
            and covers(barrier.participants, need.participants)
            and all(self._is_left_before(kernel, need, number) for kernel in need.after)
        )

    def _has_collective(self, need: SyncNeed, collective: Collective) -> bool:
        return (
            need.first <= collective.position < need.last
            and covers(collective.participants, need.participants)
            and all(self._is_before_collective(kernel, collective) for kernel in need.after)
        )

    def _is_left_before(self, kernel: int, need: SyncNeed, number: int) -> bool:
        """Whether a kernel's results are final once a partition arrives at a barrier.

        It suffices that they are final once it leaves the barrier, if the kernel that reads them
        comes right after: XLA may copy a value with several readers for a second barrier.
        """
        served_by = self._exits.get(kernel)
        if served_by is None:
            return True
        slot = self._barriers[number].slot
        if isinstance(served_by, Collective):
            return served_by.position < slot
        if served_by == number:
            return slot == need.last and not need.is_apart
        return (self._barriers[served_by].slot, served_by) < (slot, number)

    def _is_before_collective(self, kernel: int, collective: Collective) -> bool:
        served_by = self._exits.get(kernel)
        if served_by is None:
            return True
        if isinstance(served_by, Collective):
            return served_by.position < collective.position
        return self._barriers[served_by].slot <= collective.position

    def placement(self) -> BarrierPositions:
        early = []
        for barrier in self._barriers:
            served = [self._needs[number] for number in barrier.needs]
            roles = {need.role for need in served}
            if Role.EXIT in roles and Role.ENTRY not in roles:
                barrier.slot = max(need.first for need in served)
                early.append(barrier)
        # Barriers of one slot keep their order: an exit comes before the entries that need it.
        # Exits that were moved up come first, so that nothing is between an entry and its kernel.
        order = sorted(self._barriers, key=lambda each: (each.slot, each not in early))
        return BarrierPositions(tuple(order), self._served)
