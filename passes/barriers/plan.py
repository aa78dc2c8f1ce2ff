"""The plan of `barriers`: the barriers of each block, and the order of all synchronization."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from jax.extend.mlir import ir

from ..framework.text import pluralize
from ..ir.custom_calls import target_of
from ..ir.locations import operation_name, source_of
from ..ir.marks import BarrierKind, Rendezvous
from .collect import (
    Member,
    Nested,
    RaggedAllToAll,
    SyncKernel,
    SyncProgram,
    SyncSequence,
    XlaCollective,
)

_MOST_LISTED = 1000
"""The number of entries of the order that a plan lists."""


@dataclass(frozen=True)
class Barrier:
    """A barrier in a block.

    Attributes:
      slot: the position of the operation that it is put before.
      kind: its purpose.
      where: its replica groups, channel, timeout and site.
      location: of the kernel that it serves.
      entering: kernels whose operands pass through it.
      leaving: kernels whose results pass through it.
      keeping: kernels whose operands it keeps alive.
      passes_returned: whether the values that the block returns pass through it, so that XLA cannot
        remove it.
    """

    slot: int
    kind: BarrierKind
    where: Rendezvous
    location: ir.Location
    entering: tuple[SyncKernel, ...] = ()
    leaving: tuple[SyncKernel, ...] = ()
    keeping: tuple[SyncKernel, ...] = ()
    passes_returned: bool = False


@dataclass(frozen=True)
class BlockBarriers:
    """The barriers of one block.

    Attributes:
      sequence: the synchronizing operations of the block.
      barriers: in program order.
      exchanges: by the position of a ragged all-to-all, its rendezvous.
      served: as text, the needs without a barrier of their own, each with what serves it.
    """

    sequence: SyncSequence
    barriers: tuple[Barrier, ...]
    exchanges: dict[int, Rendezvous]
    served: tuple[tuple[str, str], ...]

    def steps(self) -> Iterator[Barrier | Member]:
        """Barriers and members in program order."""
        barriers = list(self.barriers)
        for member in self.sequence.members:
            while barriers and barriers[0].slot <= member.position:
                yield barriers.pop(0)
            yield member
        yield from barriers


@dataclass(frozen=True)
class BarriersPlan:
    """The barriers of a module, in one order with all its synchronizing operations.

    Attributes:
      module: the module to edit.
      program: its synchronizing operations.
      blocks: the barriers of each sequence of the program.
    """

    module: ir.Module
    program: SyncProgram
    blocks: tuple[BlockBarriers, ...]

    @property
    def empty(self) -> bool:
        return not self.blocks

    def summary(self) -> str:
        if self.empty:
            return "no kernel that meets other devices, or they are in order already"
        members = Counter(type(member) for member in self._members())
        kinds = Counter(barrier.kind for barrier in self._barriers())
        pins = kinds.pop(BarrierKind.PIN, 0)
        served = sum(len(block.served) for block in self.blocks)
        parts = [
            pluralize(sum(kinds.values()), "barrier"),
            pluralize(pins, "pin") if pins else "",
            f"for {pluralize(members[SyncKernel], 'kernel')}" if members[SyncKernel] else "",
            f"({pluralize(served, 'need')} served by another)" if served else "",
        ]
        ordered = [
            pluralize(members[kind], text)
            for kind, text in ((RaggedAllToAll, "ragged all-to-all"), (XlaCollective, "collective"))
            if members[kind]
        ]
        first = " ".join(filter(None, parts))
        return f"{first}, in one order with {' and '.join(ordered)}" if ordered else first

    def to_json(self) -> dict[str, object]:
        return {
            "barriers": [
                {
                    "kind": str(barrier.kind),
                    "site": barrier.where.site,
                    "channel": barrier.where.channel,
                    "replica_groups": [list(row) for row in barrier.where.groups],
                    "timeout_ms": barrier.where.timeout_ms,
                }
                for barrier in self._barriers()
            ],
            "served": [
                {"need": need, "by": by} for block in self.blocks for need, by in block.served
            ],
            "ordered": dict(sorted(Counter(_name(each) for each in self._members()).items())),
            "order": list(islice(self._order(), _MOST_LISTED)),
        }

    def _order(self) -> Iterator[dict[str, object]]:
        """All synchronization of the program, in the order in which devices reach it."""
        plans = {id(block.sequence): block for block in self.blocks}
        for root in self.program.roots:
            yield from _order_of(root, plans, depth=0)

    def _members(self) -> Iterable[Member]:
        """All synchronizing operations, without those that only contain some."""
        return (
            member
            for block in self.blocks
            for member in block.sequence.members
            if not isinstance(member, Nested)
        )

    def _barriers(self) -> Iterable[Barrier]:
        return (barrier for block in self.blocks for barrier in block.barriers)


def _order_of(
    sequence: SyncSequence, plans: Mapping[int, BlockBarriers], *, depth: int
) -> Iterator[dict[str, object]]:
    """The entries of a sequence; those of a nested one follow it, one level deeper."""
    plan = plans.get(id(sequence))
    for step in sequence.members if plan is None else plan.steps():
        place = {"depth": depth}
        if isinstance(step, Barrier):
            what = {"what": "barrier", "kind": str(step.kind), "site": step.where.site}
            yield place | what | _where(step.location)
            continue
        yield place | {"what": _name(step)} | _where(step.op.location)
        if isinstance(step, Nested):
            for inside in step.sequences:
                yield from _order_of(inside, plans, depth=depth + 1)


def _where(location: ir.Location) -> dict[str, object]:
    return {"name": operation_name(location), **source_of(location).to_json()}


def _name(member: Member) -> str:
    """A member as text, e.g. "@write", "stablehlo.all_reduce"."""
    if isinstance(member, SyncKernel):
        return f"@{target_of(member.op)}"
    return "ragged_all_to_all" if isinstance(member, RaggedAllToAll) else member.op.name
