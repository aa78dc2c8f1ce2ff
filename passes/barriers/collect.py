"""Collects the operations of a module that synchronize with other devices, by block, in order."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..ir import marks, mesh, walk
from ..ir.build_collectives import Groups
from ..ir.collectives import CollectiveError, SyncRequirement, described, is_ragged_all_to_all
from ..ir.custom_calls import aliased_operands
from ..ir.ops import facts_of
from .requirements import (
    Participants,
    is_trivial,
    partitions_of_groups,
    ragged_groups,
    sync_requirement_of,
    synchronized,
)


class Role(enum.StrEnum):
    """The kind of barrier that a kernel needs."""

    EXIT = "exit"
    ENTRY = "entry"
    MODULE = "module"


@dataclass(frozen=True)
class SyncKernel:
    """A custom call that accesses its peers' memory; `participants` are its groups of peers."""

    op: ir.Operation
    position: int
    needs: SyncRequirement
    participants: Participants

    @property
    def roles(self) -> frozenset[Role]:
        """Returns the barriers that it needs."""
        exits = {"after": Role.EXIT, "module": Role.MODULE}
        entry = {Role.ENTRY} if self.needs.entry else set()
        return frozenset(entry | ({exits[self.needs.exit]} if self.needs.exit else set()))

    @property
    def in_place(self) -> frozenset[int]:
        """Returns the operands whose buffers its results reuse."""
        return aliased_operands(self.op)


@dataclass(frozen=True)
class RaggedAllToAll:
    """A ragged all-to-all, which becomes a mark that takes the token itself.

    Attributes:
      groups: the replica groups of the call: the index in a row is a rank.
    """

    op: ir.Operation
    position: int
    groups: Groups


@dataclass(frozen=True)
class XlaCollective:
    """One of XLA's collectives.

    Attributes:
      participants: the partitions that have arrived at it once one of them leaves it; None if that
        is not certain.
    """

    op: ir.Operation
    position: int
    participants: Participants | None


@dataclass(frozen=True)
class Nested:
    """A loop, conditional, manual computation or call that contains members.

    Attributes:
      sequences: one for each of its blocks, in order; for a call the one of its callee.
    """

    op: ir.Operation
    position: int
    sequences: tuple[SyncSequence, ...]


Member = SyncKernel | RaggedAllToAll | XlaCollective | Nested


@dataclass(frozen=True)
class SyncSequence:
    """The synchronizing operations of a block, in order.

    Attributes:
      function: the symbol of the function that contains the block.
      members: its synchronizing operations; empty if there are none.
    """

    block: ir.Block
    function: str
    members: tuple[Member, ...]

    def walk(self, seen: set[int] | None = None) -> Iterator[SyncSequence]:
        """Yields this sequence and the nested ones, each once: calls of a function share one.

        ``seen`` has the identities of sequences to skip; new ones are added.
        """
        seen = set() if seen is None else seen
        if id(self) in seen:
            return
        seen.add(id(self))
        yield self
        for member in self.members:
            if isinstance(member, Nested):
                for sequence in member.sequences:
                    yield from sequence.walk(seen)


@dataclass(frozen=True)
class SyncProgram:
    """The synchronizing operations of a module.

    Attributes:
      partitions: the number of devices that run the module.
      roots: the sequences of the functions without a caller.
    """

    partitions: int
    roots: tuple[SyncSequence, ...]

    @property
    def sequences(self) -> tuple[SyncSequence, ...]:
        """Returns every sequence with members, once, in program order."""
        seen: set[int] = set()
        return tuple(
            sequence for root in self.roots for sequence in root.walk(seen) if sequence.members
        )


def read_sync_program(module: ir.Module, *, ordered_collectives: str) -> SyncProgram:
    """Reads the kernels and exchanges of a module, and the collectives to order with them.

    Without a kernel and an exchange the program is empty.

    Args:
      module: with every plain call inlined.
      ordered_collectives: "all", or "barriers" to leave XLA's own collectives out.

    Raises CollectiveError if a kernel's needs cannot be read, or cannot be met at its place.
    """
    partitions = mesh.partition_count(module)
    if not any(_is_site(op, partitions) for op in walk.operations(module.operation)):
        return SyncProgram(partitions, ())
    if (replicas := mesh.replica_count(module)) > 1:
        raise CollectiveError(
            f"the module has {replicas} replicas; barriers are for the partitions of one "
            "(jax.jit, jax.shard_map)"
        )
    program = SyncProgram(partitions, _Reader(module, partitions, ordered_collectives).roots())
    members = (member for sequence in program.sequences for member in sequence.members)
    if not any(isinstance(member, SyncKernel | RaggedAllToAll) for member in members):
        return SyncProgram(partitions, ())
    return program


def has_marks(module: ir.Module) -> bool:
    """Whether the pass has threaded a token through the module before."""
    return any(True for _ in marks.marks_in(module.operation, marks.TOKEN))


def _is_site(op: ir.Operation, partitions: int) -> bool:
    return is_ragged_all_to_all(op) or (partitions > 1 and sync_requirement_of(op) is not None)


_REFERENCES = ("callee", "decomposition", "called_computations")


class _Reader:
    def __init__(self, module: ir.Module, partitions: int, ordered_collectives: str) -> None:
        self._partitions = partitions
        self._all = ordered_collectives == "all"
        self._functions = {
            name: function
            for name, function in walk.functions(module).items()
            if len(function.regions[0].blocks)
        }
        self._sequences: dict[str, SyncSequence] = {}
        self._open: list[str] = []

    def roots(self) -> tuple[SyncSequence, ...]:
        called = {
            name
            for function in self._functions.values()
            for op in walk.operations(function)
            for name in _references(op)
        }
        roots = tuple(self._function(name) for name in self._functions if name not in called)
        checked: set[tuple[int, bool]] = set()
        for root in roots:
            self._check_places(root, checked, is_manual=self._partitions == 1)
        return roots

    def _function(self, name: str) -> SyncSequence:
        if name not in self._sequences:
            if name in self._open:
                raise CollectiveError(f"@{name} calls itself, which the order cannot follow")
            self._open.append(name)
            self._sequences[name] = self._read_function(name)
            self._open.pop()
        return self._sequences[name]

    def _read_function(self, name: str) -> SyncSequence:
        sequences = [
            self._sequence(block, name) for block in self._functions[name].regions[0].blocks
        ]
        members = tuple(member for sequence in sequences for member in sequence.members)
        if members and len(sequences) > 1:
            raise CollectiveError(
                f"@{name} has several blocks, and {described(members[0].op)} stands in one: the "
                "order cannot follow its branches"
            )
        return SyncSequence(sequences[0].block, name, members)

    def _sequence(self, block: ir.Block, function: str) -> SyncSequence:
        members = [
            member
            for position, view in enumerate(block.operations)
            if (member := self._member(view.operation, position, function)) is not None
        ]
        return SyncSequence(block, function, tuple(members))

    def _member(self, op: ir.Operation, position: int, function: str) -> Member | None:
        if is_ragged_all_to_all(op):
            groups = ragged_groups(op)
            self._participants(op, groups)
            return RaggedAllToAll(op, position, groups)
        if (needs := sync_requirement_of(op)) is not None:
            participants = self._participants(op, needs.groups)
            return (
                None if is_trivial(participants) else SyncKernel(op, position, needs, participants)
            )
        if facts_of(op.name).communicates:
            known = synchronized(op, self._partitions)
            return XlaCollective(op, position, known) if self._all else None
        sequences = self._sequences_inside(op, function)
        inside = next((sequence.members[0] for sequence in sequences if sequence.members), None)
        if inside is None:
            return None
        if not facts_of(op.name).holds_code and op.name != "func.call":
            raise CollectiveError(
                f"{described(inside.op)} stands inside {described(op)}, where the order of the "
                "collectives cannot be carried to: take it out of there, or name order=barriers "
                "if it is one of XLA's"
            )
        return Nested(op, position, sequences)

    def _sequences_inside(self, op: ir.Operation, function: str) -> tuple[SyncSequence, ...]:
        called = [self._function(name) for name in _references(op) if name in self._functions]
        inside = [
            self._sequence(block, function) for region in op.regions for block in region.blocks
        ]
        return (*called, *inside)

    def _participants(self, op: ir.Operation, groups: Groups | None) -> Participants:
        try:
            return partitions_of_groups(groups, self._partitions)
        except ValueError as error:
            raise CollectiveError(f"{described(op)} {error}") from error

    def _check_places(
        self, sequence: SyncSequence, checked: set[tuple[int, bool]], *, is_manual: bool
    ) -> None:
        """Raises CollectiveError for a kernel outside of all manual computations.

        The partitioner decides which devices run such a custom call.

        ``checked`` has the identities of the sequences that were checked, each with whether it was
        inside a manual computation: a function may be called inside one and outside.
        """
        if (id(sequence), is_manual) in checked:
            return
        checked.add((id(sequence), is_manual))
        for member in sequence.members:
            if isinstance(member, Nested):
                for inside in member.sequences:
                    manual = is_manual or member.op.name == mesh.MANUAL_COMPUTATION
                    self._check_places(inside, checked, is_manual=manual)
            elif not isinstance(member, XlaCollective) and not is_manual:
                raise CollectiveError(
                    f"{described(member.op)} meets other devices and stands outside "
                    "jax.shard_map, where there is no telling which devices run it: call it inside"
                )


def _references(op: ir.Operation) -> list[str]:
    """Returns the symbols of the functions that an operation refers to."""
    attributes = walk.readable_attributes(op)
    found: list[ir.Attribute | None] = []
    for name in _REFERENCES:
        attribute = attributes.get(name)
        found += list(attribute) if isinstance(attribute, ir.ArrayAttr) else [attribute]
    return [each.value for each in found if isinstance(each, ir.FlatSymbolRefAttr)]
