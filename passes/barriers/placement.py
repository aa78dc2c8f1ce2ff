"""The barriers of one block: from their positions to the kernels that each of them serves.

If a collective serves a need, a pin is put next to it: a barrier of each partition alone, at which
nobody waits, but which keeps buffers in place. For an entry the operands have to be in the kernel's
own buffers before the collective, and for an exit until after it. The order alone guarantees
neither: XLA may copy a value at any time, and may reuse a buffer once nothing reads it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from ..ir.collectives import Participants, described
from ..ir.custom_calls import target_of
from ..ir.marks import BarrierKind
from .collect import SyncKernel, SyncSequence
from .intervals import BarrierPositions, Collective, Placed, Role, SyncNeed


class _Rank(enum.IntEnum):
    """The order within a slot."""

    PIN_AFTER_COLLECTIVE = 0
    BARRIER = 1
    PIN_BEFORE = 2


@dataclass(eq=False)
class Draft:
    """A barrier of a block that is being assembled; `participants` is None for a pin."""

    slot: int
    rank: _Rank
    participants: Participants | None
    purposes: list[tuple[Role, SyncKernel]] = field(default_factory=list)

    @property
    def kind(self) -> BarrierKind:
        """What it is for."""
        roles = {role for role, _ in self.purposes}
        if self.participants is None:
            return BarrierKind.PIN
        if roles == {Role.ENTRY}:
            return BarrierKind.ENTRY
        if roles == {Role.MODULE}:
            return BarrierKind.MODULE
        return BarrierKind.BOTH if Role.ENTRY in roles else BarrierKind.EXIT

    @property
    def entering(self) -> list[SyncKernel]:
        """Kernels whose operands peers read from here on."""
        return [kernel for role, kernel in self.purposes if role is Role.ENTRY]

    @property
    def leaving(self) -> list[SyncKernel]:
        """Kernels whose results are read from here on."""
        return [kernel for role, kernel in self.purposes if role is Role.EXIT]

    @property
    def keeping(self) -> list[SyncKernel]:
        """Kernels whose operands' buffers are reused from here on."""
        return [kernel for role, kernel in self.purposes if role is not Role.ENTRY]

    def kernels(self) -> list[SyncKernel]:
        """All kernels that it serves."""
        return [kernel for _, kernel in self.purposes]

    def purpose(self) -> str:
        """Its purpose as text."""
        text = " and ".join(_text(role, kernel) for role, kernel in self.purposes)
        return f"pin for {text}" if self.participants is None else text


class BarrierDrafts:
    """The barriers of one block.

    Attributes:
      served: as text, the needs without a barrier of their own, each with what serves it.
    """

    def __init__(
        self, sequence: SyncSequence, needs: list[SyncNeed], placement: BarrierPositions
    ) -> None:
        self._members = sequence.members
        self._kernels = {
            member.position: member for member in sequence.members if isinstance(member, SyncKernel)
        }
        self._drafts: list[Draft] = []
        self.served: list[tuple[str, str]] = []
        entries: dict[int, Draft] = {}
        for barrier in placement.barriers:
            draft = self._add_barrier(barrier, needs)
            entries |= {kernel.position: draft for kernel in draft.entering}
        for number, collective in sorted(placement.served.items()):
            self._add_pin_beside(needs[number], collective)
        for need in needs:
            if need.role is Role.ENTRY:
                self._keep_in_order(self._kernels[need.kernel], entries.get(need.kernel))

    def in_order(self) -> list[Draft]:
        """All barriers in program order."""
        return sorted(self._drafts, key=lambda draft: (draft.slot, draft.rank))

    def _add_barrier(self, barrier: Placed, needs: list[SyncNeed]) -> Draft:
        served = sorted(
            (needs[number] for number in barrier.needs),
            key=lambda need: (list(Role).index(need.role), need.kernel),
        )
        purposes = [(need.role, self._kernels[need.kernel]) for need in served]
        draft = Draft(barrier.slot, _Rank.BARRIER, barrier.participants, purposes)
        self._drafts.append(draft)
        texts = [_text(role, kernel) for role, kernel in purposes]
        self.served += [(text, f"barrier of the {texts[0]}") for text in texts[1:]]
        return draft

    def _add_pin_beside(self, need: SyncNeed, collective: Collective) -> None:
        kernel = self._kernels[need.kernel]
        position = collective.position
        if need.role is Role.ENTRY:
            self._pin(position, _Rank.PIN_BEFORE, need.role, kernel)
        else:
            self._pin(position + 1, _Rank.PIN_AFTER_COLLECTIVE, need.role, kernel)
        [op] = [member.op for member in self._members if member.position == position]
        self.served.append((_text(need.role, kernel), described(op)))

    def _keep_in_order(self, kernel: SyncKernel, entry: Draft | None) -> None:
        """Orders the kernel's operands after what is between their barrier and the kernel.

        This takes a pin: `hloom.add_dependency` may write them to other buffers.
        """
        if entry is not None and not self._is_anything_between(entry, kernel):
            return
        self._pin(kernel.position, _Rank.PIN_BEFORE, Role.ENTRY, kernel)

    def _is_anything_between(self, entry: Draft, kernel: SyncKernel) -> bool:
        order = self.in_order()
        later = order[order.index(entry) + 1 :]
        return any(draft.slot <= kernel.position for draft in later) or any(
            entry.slot <= member.position < kernel.position for member in self._members
        )

    def _pin(self, slot: int, rank: _Rank, role: Role, kernel: SyncKernel) -> None:
        for draft in self._drafts:
            if (draft.slot, draft.rank, draft.participants) == (slot, rank, None):
                draft.purposes.append((role, kernel))
                return
        self._drafts.append(Draft(slot, rank, None, [(role, kernel)]))


def _text(role: Role, kernel: SyncKernel) -> str:
    if role is Role.MODULE:
        return f"end after @{target_of(kernel.op)}"
    return f"{role} of @{target_of(kernel.op)}"
