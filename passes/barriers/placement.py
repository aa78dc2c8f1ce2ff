"""The barriers of one block, from where they stand to what each of them pins.

Where a collective serves a need, pins stand beside it: barriers of each partition alone. Nobody
waits there, but buffers stay where they are. Of a kernel that peers read the operands of, these
have to be in the kernel's own buffers before the collective, and of one that was read from, until
after it; the order alone says neither, since XLA may copy a value at any time and reuse a buffer
once nothing reads it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from hloom.passes.barriers.collect import SyncKernel, SyncSequence
from hloom.passes.barriers.intervals import BarrierPositions, Collective, Placed, Role, SyncNeed
from hloom.passes.ir.collectives import Participants, described
from hloom.passes.ir.custom_calls import target_of
from hloom.passes.ir.marks import BarrierKind


class _Rank(enum.IntEnum):
    """The order within a slot."""

    PIN_AFTER_COLLECTIVE = 0
    BARRIER = 1
    PIN_BEFORE = 2


@dataclass(eq=False)
class Draft:
    """A barrier of a block; `participants` is None where everybody is alone."""

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
        """Kernels that peers read the operands of from here on."""
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
        """All of them."""
        return [kernel for _, kernel in self.purposes]

    def purpose(self) -> str:
        """What it is for, for people."""
        text = " and ".join(_text(role, kernel) for role, kernel in self.purposes)
        return f"pin for {text}" if self.participants is None else text


class BarrierDrafts:
    """The barriers of one block.

    Attributes:
      served: for people, the needs that no barrier of their own serves, each with what does.
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
        """All of them, in the order of the program."""
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
        """Lets the kernel's operands come after what stands between their barrier and it.

        Not by a tie: that may write them to other buffers.
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
