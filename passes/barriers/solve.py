"""Solves each block: the needs of its kernels as intervals, then its barriers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..ir import marks, walk
from ..ir.collectives import (
    CollectiveError,
    described,
    groups_of_partitions,
    partitions_of_groups,
)
from ..ir.locations import source_line
from ..ir.mark_decompositions import Groups, can_carry_dependency, holds_nothing
from ..ir.marks import BarrierKind, Rendezvous
from .collect import (
    Nested,
    RaggedAllToAll,
    SyncKernel,
    SyncProgram,
    SyncSequence,
    XlaCollective,
)
from .intervals import Collective, Role, SyncNeed, place
from .placement import BarrierDrafts
from .plan import Barrier, BarriersPlan, BlockBarriers


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
            Collective(member.position, member.participants)
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
