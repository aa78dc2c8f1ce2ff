"""Which barriers a module gets, and what each of them pins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from jax.extend.mlir import ir

from hloom.passes.barriers.collect import (
    Member,
    Nested,
    RaggedAllToAll,
    SyncKernel,
    SyncProgram,
    SyncSequence,
    XlaCollective,
)
from hloom.passes.framework.text import pluralize
from hloom.passes.ir.custom_calls import target_of
from hloom.passes.ir.locations import operation_name, source_line
from hloom.passes.ir.marks import BarrierKind, Rendezvous

_MOST_LISTED = 1000
"""How many places of the order a plan spells out."""


@dataclass(frozen=True)
class Barrier:
    """A barrier in a block.

    Attributes:
      slot: it stands before the operation at this position.
      kind: what for.
      where: who meets.
      location: of the kernel that it is for.
      entering: kernels whose operands pass through it.
      leaving: kernels whose results pass through it.
      keeping: kernels whose operands it keeps.
      passes_returned: what the block returns passes through it, so that XLA cannot leave it out.
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
    """What is done in one block.

    Attributes:
      sequence: its members.
      barriers: in the order of the program.
      exchanges: where the partitions of each ragged all-to-all meet, by its position.
      served: for people, the needs that no barrier of their own serves, each with what does.
    """

    sequence: SyncSequence
    barriers: tuple[Barrier, ...]
    exchanges: dict[int, Rendezvous]
    served: tuple[tuple[str, str], ...]

    def steps(self) -> Iterator[Barrier | Member]:
        """Barriers and members in the order of the program."""
        barriers = list(self.barriers)
        for member in self.sequence.members:
            while barriers and barriers[0].slot <= member.position:
                yield barriers.pop(0)
            yield member
        yield from barriers


@dataclass(frozen=True)
class BarriersPlan:
    """What a module gets: barriers, and one order of all that meets other devices.

    Attributes:
      module: what is edited.
      program: what of it meets other devices.
      blocks: for each sequence of the program.
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
        """Every place that devices meet at, as they come to it."""
        plans = {id(block.sequence): block for block in self.blocks}
        for root in self.program.roots:
            yield from _order_of(root, plans, depth=0)

    def _members(self) -> Iterable[Member]:
        """All that meets other devices by itself."""
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
    """A sequence's places; those inside a loop stand behind it, one deeper."""
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
    return {"name": operation_name(location), "source": source_line(location)}


def _name(member: Member) -> str:
    """For people: "@write", "stablehlo.all_reduce"."""
    if isinstance(member, SyncKernel):
        return f"@{target_of(member.op)}"
    return "ragged_all_to_all" if isinstance(member, RaggedAllToAll) else member.op.name
