"""Places the barriers of each block: the fewest for its kernels' needs, which are intervals.

A need is an interval of the block in which its partitions have to synchronize: it begins after the
operation that causes the need, and ends before the one that relies on it. A barrier or a collective
in the interval serves it. Needs are visited by their ends; one that is not served yet gets a
barrier at its end. For needs of the same partitions this takes the fewest barriers: it
is the greedy rule for stabbing intervals with points.
Positions are numbers: slot `n` of a block is right before its operation `n`.

If a collective serves a need, a pin is placed next to it: a barrier of each partition alone, which
does not wait, but keeps buffers in place. For an entry the operands have to be in the kernel's
own buffers before the collective, and for an exit until after it. The order alone guarantees
neither: XLA may copy a value at any time, and may reuse a buffer once nothing reads it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from ..ir import marks, walk
from ..ir.build_collectives import Groups
from ..ir.collectives import CollectiveError, described
from ..ir.custom_calls import target_of
from ..ir.locations import source_line
from ..ir.marks import BarrierKind, Rendezvous, can_carry_dependency, holds_nothing
from .collect import (
    Nested,
    RaggedAllToAll,
    Role,
    SyncKernel,
    SyncProgram,
    SyncSequence,
    XlaCollective,
)
from .plan import Barrier, BarriersPlan, BlockBarriers
from .requirements import Participants, covers, groups_of_partitions, partitions_of_groups


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
class SyncCollective:
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
    served: dict[int, SyncCollective]


def place(needs: Sequence[SyncNeed], collectives: Sequence[SyncCollective]) -> BarrierPositions:
    """Assigns a barrier, or one of the collectives, to every need."""
    placer = _Placer(needs, collectives)
    for number in sorted(range(len(needs)), key=lambda number: _order(needs[number])):
        placer.serve(number)
    return placer.placement()


def _order(need: SyncNeed) -> tuple[int, int, int]:
    """Returns the order in which needs are served: by their ends, then exits before entries, then
    larger groups first, since their barriers serve smaller groups as well."""
    return need.last, list(Role).index(need.role), len(need.participants)


class _Placer:
    def __init__(self, needs: Sequence[SyncNeed], collectives: Sequence[SyncCollective]) -> None:
        self._needs = needs
        self._collectives = collectives
        self._barriers: list[Placed] = []
        self._served: dict[int, SyncCollective] = {}
        self._exits: dict[int, int | SyncCollective] = {}
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

    def _note_exit(self, need: SyncNeed, served_by: int | SyncCollective) -> None:
        if need.role is Role.EXIT:
            self._exits[need.kernel] = served_by

    def _has_barrier(self, need: SyncNeed, number: int) -> bool:
        barrier = self._barriers[number]
        return (
            need.first <= barrier.slot <= need.last
            and covers(barrier.participants, need.participants)
            and all(self._is_left_before(kernel, need, number) for kernel in need.after)
        )

    def _has_collective(self, need: SyncNeed, collective: SyncCollective) -> bool:
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
        if isinstance(served_by, SyncCollective):
            return served_by.position < slot
        if served_by == number:
            return slot == need.last and not need.is_apart
        return (self._barriers[served_by].slot, served_by) < (slot, number)

    def _is_before_collective(self, kernel: int, collective: SyncCollective) -> bool:
        served_by = self._exits.get(kernel)
        if served_by is None:
            return True
        if isinstance(served_by, SyncCollective):
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
        # Exits that were moved up come first, so that the entry's barrier is right before its
        # kernel.
        order = sorted(self._barriers, key=lambda each: (each.slot, each not in early))
        return BarrierPositions(tuple(order), self._served)


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
        """Returns the kind of needs that it serves."""
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
        """Returns the kernels whose operands peers read from here on."""
        return [kernel for role, kernel in self.purposes if role is Role.ENTRY]

    @property
    def leaving(self) -> list[SyncKernel]:
        """Returns the kernels whose results are read from here on."""
        return [kernel for role, kernel in self.purposes if role is Role.EXIT]

    @property
    def keeping(self) -> list[SyncKernel]:
        """Returns the kernels whose operands' buffers are reused from here on."""
        return [kernel for role, kernel in self.purposes if role is not Role.ENTRY]

    def kernels(self) -> list[SyncKernel]:
        """Returns all kernels that it serves."""
        return [kernel for _, kernel in self.purposes]

    def purpose(self) -> str:
        """Returns its purpose as text."""
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
        """Returns all barriers in program order."""
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

    def _add_pin_beside(self, need: SyncNeed, collective: SyncCollective) -> None:
        kernel = self._kernels[need.kernel]
        position = collective.position
        if need.role is Role.ENTRY:
            self._pin(position, _Rank.PIN_BEFORE, need.role, kernel)
        else:
            self._pin(position + 1, _Rank.PIN_AFTER_COLLECTIVE, need.role, kernel)
        [op] = [member.op for member in self._members if member.position == position]
        self.served.append((_text(need.role, kernel), described(op)))

    def _keep_in_order(self, kernel: SyncKernel, entry: Draft | None) -> None:
        """Orders the kernel's operands after the operations between their barrier and the kernel.

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


@dataclass(frozen=True)
class Wanted:
    """The kinds of needs that are served, and the timeout of barriers."""

    roles: frozenset[Role]
    timeout_ms: int


def plan_barriers(module: ir.Module, program: SyncProgram, wanted: Wanted) -> BarriersPlan:
    """Plans the barriers of a program.

    Raises CollectiveError for an operation that cannot be ordered by data.
    """
    planner = _Planner(program.partitions, wanted, marks.next_channel(module))
    return BarriersPlan(module, program, tuple(map(planner.block, program.sequences)))


class _Planner:
    def __init__(self, partitions: int, wanted: Wanted, first_channel: int) -> None:
        self._alone = groups_of_partitions(partitions_of_groups((), partitions))
        self._wanted = wanted
        self._channel = first_channel

    def block(self, sequence: SyncSequence) -> BlockBarriers:
        for member in sequence.members:
            if not isinstance(member, Nested):
                _check_can_be_ordered(member)
        kernels = [member for member in sequence.members if isinstance(member, SyncKernel)]
        needs = self._needs(sequence.block, kernels)
        collectives = [
            SyncCollective(member.position, member.participants)
            for member in sequence.members
            if isinstance(member, XlaCollective) and member.participants is not None
        ]
        drafts = BarrierDrafts(sequence, needs, place(needs, collectives))
        barriers = []
        for draft in drafts.in_order():
            groups = (
                self._alone
                if draft.participants is None
                else groups_of_partitions(draft.participants)
            )
            first = draft.kernels()[0]
            barriers.append(
                Barrier(
                    slot=draft.slot,
                    kind=draft.kind,
                    where=self._rendezvous(groups, draft.purpose(), first.op, sequence),
                    location=first.op.location,
                    entering=tuple(draft.entering),
                    leaving=tuple(draft.leaving),
                    keeping=tuple(draft.keeping),
                    passes_returned=draft.kind is BarrierKind.MODULE,
                )
            )
        exchanges = {
            member.position: self._rendezvous(
                member.groups, "ragged all-to-all", member.op, sequence
            )
            for member in sequence.members
            if isinstance(member, RaggedAllToAll)
        }
        return BlockBarriers(sequence, tuple(barriers), exchanges, tuple(drafts.served))

    def _rendezvous(
        self, groups: Groups, purpose: str, op: ir.Operation, sequence: SyncSequence
    ) -> Rendezvous:
        line = source_line(op.location)
        site = f"{purpose} in @{sequence.function}" + (f", {line}" if line else "")
        self._channel += 1
        return Rendezvous(self._channel - 1, groups, self._wanted.timeout_ms, site)

    def _needs(self, block: ir.Block, kernels: Sequence[SyncKernel]) -> list[SyncNeed]:
        if not kernels:
            return []
        positions = _Positions(block)
        found: list[SyncNeed] = []
        for kernel in kernels:
            if Role.ENTRY in kernel.roles & self._wanted.roles:
                found.append(positions.entry(kernel))
            if Role.EXIT in kernel.roles & self._wanted.roles:
                found.append(positions.exit(kernel))
            if Role.MODULE in kernel.roles & self._wanted.roles:
                found.append(positions.module(kernel))
        return found


class _Positions:
    """The positions of the operations of a block, and the needs of kernels by them."""

    def __init__(self, block: ir.Block) -> None:
        self._block = block
        operations = [view.operation for view in block.operations]
        self._of = {op: position for position, op in enumerate(operations)}
        self._terminator = len(operations) - 1

    def entry(self, kernel: SyncKernel) -> SyncNeed:
        makers = sorted(
            self._of[owner.operation]
            for value in kernel.op.operands
            if not isinstance(owner := value.owner, ir.Block)
            and owner.operation.block == self._block
        )
        return SyncNeed(
            kernel.position,
            Role.ENTRY,
            first=makers[-1] + 1 if makers else 0,
            last=kernel.position,
            participants=kernel.participants,
            after=tuple(makers),
            # A kernel that works in place needs its own copy of a value that others read.
            is_apart=bool(kernel.in_place),
        )

    def exit(self, kernel: SyncKernel) -> SyncNeed:
        readers = [
            self._of[walk.ancestor_in(self._block, use.owner.operation)]
            for result in kernel.op.results
            for use in result.uses
        ]
        return SyncNeed(
            kernel.position,
            Role.EXIT,
            first=kernel.position + 1,
            last=min(readers, default=self._terminator),
            participants=kernel.participants,
        )

    def module(self, kernel: SyncKernel) -> SyncNeed:
        return SyncNeed(
            kernel.position,
            Role.MODULE,
            first=kernel.position + 1,
            last=self._terminator,
            participants=kernel.participants,
        )


def _check_can_be_ordered(member: SyncKernel | RaggedAllToAll | XlaCollective) -> None:
    for values, what in ((member.op.operands, "operand"), (member.op.results, "result")):
        types = [value.type for value in values]
        for type_ in types:
            if not can_carry_dependency(type_) and not holds_nothing(type_):
                raise CollectiveError(
                    f"{described(member.op)}: {what} of type {type_}; only tensors of "
                    "known shape that are not quantized can be put in an order"
                )
        if isinstance(member, SyncKernel) and not any(map(can_carry_dependency, types)):
            raise CollectiveError(
                f"{described(member.op)} has no {what} that is a tensor with elements: nothing "
                "can be ordered by it. Give it one, if only for that"
            )
