"""The plan of `barriers`: the barriers of each block, and the order of all synchronization."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from jax.extend.mlir import ir

from ..framework.base import PlanBase
from ..framework.tables import MOST_ROWS, Cell, Described, Fact, Kind, Table
from ..framework.text import pluralize
from ..ir.custom_calls import target_of
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


@dataclass(frozen=True)
class Barrier:
    """A barrier in a block.

    Attributes:
      slot: the position of the operation after it.
      kind: its purpose.
      where: its replica groups, channel, timeout and site.
      location: the location of the kernel that it serves.
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
        """Yields barriers and members in program order."""
        barriers = list(self.barriers)
        for member in self.sequence.members:
            while barriers and barriers[0].slot <= member.position:
                yield barriers.pop(0)
            yield member
        yield from barriers


@dataclass(frozen=True)
class BarriersPlan(PlanBase):
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

    def facts(self) -> tuple[Fact, ...]:
        ordered = sorted(Counter(_name(each) for each in self._members()).items())
        listed = ", ".join(f"{count} x {name}" for name, count in ordered)
        in_order = [Fact("in one order with", listed, Kind.CODE)] if listed else []
        return (Fact("barriers", sum(1 for _ in self._barriers())), *in_order)

    def tables(self) -> tuple[Table, ...]:
        # Of functions that call each other the order may have billions of places.
        order = list(islice(self._order(), MOST_ROWS))
        served = tuple(each for block in self.blocks for each in block.served)
        return (
            Table(
                "Where devices meet, in order",
                _COLUMNS,
                tuple(row for _, row in order),
                "One token goes through all of it: no two devices meet these places in different "
                "orders."
                if order
                else "",
                tuple(depth for depth, _ in order),
            ),
            Table("Needs that something else serves", _SERVED_COLUMNS, served),
        )

    def _order(self) -> Iterator[tuple[int, tuple[Cell, ...]]]:
        """Yields all synchronization of the program, in the order in which devices reach it."""
        plans = {id(block.sequence): block for block in self.blocks}
        for root in self.program.roots:
            yield from _order_of(root, plans, depth=0)

    def _members(self) -> Iterable[Member]:
        """Returns all synchronizing operations, without those that only contain some."""
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
) -> Iterator[tuple[int, tuple[Cell, ...]]]:
    """Yields rows of a sequence with their depth; those of a nested one follow, one deeper."""
    plan = plans.get(id(sequence))
    for step in sequence.members if plan is None else plan.steps():
        if isinstance(step, Barrier):
            kind = str(step.kind).replace("+", " and ")
            where = step.where
            timeout_s = None if where.timeout_ms is None else where.timeout_ms / 1000
            place = Described.at(step.location)
            yield depth, (f"{kind} barrier", groups_text(where.groups), timeout_s, place)
            continue
        name = _name(step)
        title = _AROUND.get(name) or name.removeprefix("stablehlo.").replace("_", " ")
        yield depth, (title, None, None, Described.at(step.op.location))
        if isinstance(step, Nested):
            for inside in step.sequences:
                yield from _order_of(inside, plans, depth=depth + 1)


_COLUMNS = {
    "what": Kind.TEXT,
    "devices": Kind.TEXT,
    "waits at most": Kind.SECONDS,
    "where": Kind.VALUE,
}
_SERVED_COLUMNS = {"need": Kind.TEXT, "served by": Kind.TEXT}

_AROUND = {
    "sdy.manual_computation": "in a shard_map",
    "stablehlo.while": "in a loop",
    "stablehlo.case": "in a branch",
    "stablehlo.if": "in a branch",
    "func.call": "in a function",
}
"""Operations that contain the rows after them, which are one level deeper."""

_MOST_DEVICES = 16


def groups_text(rows: Sequence[Sequence[int]]) -> str:
    """Names the devices that meet: "8 devices, 0-7", "2 groups of 4: 0-3, 4-7"."""
    if not rows:
        return ""
    if len(rows) == 1:
        return f"{pluralize(len(rows[0]), 'device')}, {_devices(rows[0])}"
    sizes = {len(row) for row in rows}
    of = f" of {sizes.pop()}" if len(sizes) == 1 else ""
    listed = ", ".join(_devices(row) for row in rows[:4])
    more = f" and {len(rows) - 4} more" if len(rows) > 4 else ""
    return f"{len(rows)} groups{of}: {listed}{more}"


def _devices(row: Sequence[int]) -> str:
    if len(row) > 1 and list(row) == list(range(row[0], row[0] + len(row))):
        return f"{row[0]}-{row[-1]}"
    listed = " ".join(map(str, row[:_MOST_DEVICES]))
    return listed + (" …" if len(row) > _MOST_DEVICES else "")


def _name(member: Member) -> str:
    """Returns a member as text, e.g. "@write", "stablehlo.all_reduce"."""
    if isinstance(member, SyncKernel):
        return f"@{target_of(member.op)}"
    return "ragged_all_to_all" if isinstance(member, RaggedAllToAll) else member.op.name
