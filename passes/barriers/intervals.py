"""Where barriers have to stand in a block, as few as possible.

A need is an interval: everybody has to have arrived between the operation that makes it necessary
and the one that relies on it. A barrier anywhere in the interval serves it, and so does a
collective that is there anyway. Going through the needs by their ends and putting a barrier at the
end of each that has none yet takes the fewest, for needs of the same partitions: the greedy rule
for stabbing intervals with points.

Everything here is numbers: slot `n` of a block is right before its operation `n`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from hloom.passes.ir.collectives import Participants, covers


class Role(enum.StrEnum):
    """What a need is about."""

    EXIT = "exit"
    ENTRY = "entry"
    MODULE = "module"


@dataclass(frozen=True)
class SyncNeed:
    """All of a group have to arrive in one of the slots from `first` to `last`.

    Attributes:
      kernel: the position of the kernel whose need it is.
      role: what for. An entry is served as late as it can be, right before its kernel, and so is
        "module", at the end; an exit as early as it can be.
      first, last: slots, both included.
      participants: who has to arrive.
      after: positions of kernels whose results this kernel reads: they are there only once the
        exits of those kernels, where they have one, have been served.
      is_apart: those exits and this entry are not to be served by one barrier.
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
    """An operation at which all of a group meet."""

    position: int
    participants: Participants


@dataclass(eq=False)
class Placed:
    """A barrier at a slot, and the needs that it serves, by their number."""

    slot: int
    participants: Participants
    needs: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class BarrierPositions:
    """Where barriers stand.

    Attributes:
      barriers: in the order of the program.
      served: the collective that serves a need, for those that need no barrier, by number.
    """

    barriers: tuple[Placed, ...]
    served: dict[int, Collective]


def place(needs: Sequence[SyncNeed], collectives: Sequence[Collective]) -> BarrierPositions:
    """Serves every need, by a barrier or by one of the collectives."""
    placer = _Placer(needs, collectives)
    for number in sorted(range(len(needs)), key=lambda number: _order(needs[number])):
        placer.serve(number)
    return placer.placement()


def _order(need: SyncNeed) -> tuple[int, int, int]:
    """By the end. There, what an entry may rely on goes before it; the larger groups go first,
    since a barrier of theirs serves smaller ones as well."""
    return need.last, list(Role).index(need.role), len(need.participants)


class _Placer:
    def __init__(self, needs: Sequence[SyncNeed], collectives: Sequence[Collective]) -> None:
        self._needs = needs
        self._collectives = collectives
        self._barriers: list[Placed] = []
        self._served: dict[int, Collective] = {}
        self._exits: dict[int, int | Collective] = {}
        """By kernel, what serves its exit: the number of a barrier, or a collective."""

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

        Or once it leaves it, where the kernel that reads them is right behind: a value that goes
        through one barrier, on to several readers, may be copied for a second one.
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
        # The order of barriers in one slot stays, in which an exit comes before the entries that
        # need it; those that went ahead go before all, so that nothing is between an entry and its
        # kernel.
        order = sorted(self._barriers, key=lambda each: (each.slot, each not in early))
        return BarrierPositions(tuple(order), self._served)
