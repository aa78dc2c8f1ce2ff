"""Which values go through a barrier, and who reads them behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from hloom.passes.barriers.collect import SyncKernel
from hloom.passes.barriers.plan import Barrier
from hloom.passes.ir import walk
from hloom.passes.ir.mark_decompositions import can_carry_dependency
from hloom.passes.ir.ops import facts_of


@dataclass
class PinnedEntry:
    """A value that goes through a barrier.

    Attributes:
      value: what goes in.
      readers: the operands that read what comes out; None for all behind the barrier.
    """

    value: ir.Value
    readers: list[tuple[SyncKernel, int]] | None = field(default_factory=list)


class PinnedValues:
    """The values of one block that go through its barriers, one barrier after the other.

    What peers read has to stay in one buffer from the barrier to the kernel. XLA copies a value
    that is handed to a barrier where something else may read it later, which does no harm: the copy
    is made before. It must not do that behind the barrier. So an operand of a kernel goes through
    for itself where something stands between, or where the kernel writes to it; so do scalars and
    constants, which XLA is to know behind the barrier as it did before: a loop whose counter comes
    out of a call has no known number of iterations. Otherwise all behind the barrier read what came
    out of it, so that there is no copy.
    """

    def __init__(self, block: ir.Block) -> None:
        self._block = block
        self._latest: dict[ir.Value, ir.Value] = {}
        """What came out of the last barrier for a value, where all behind it read that."""

    def entries(self, barrier: Barrier) -> list[PinnedEntry]:
        """What goes through a barrier, in order."""
        own: list[PinnedEntry] = []
        shared: list[ir.Value] = []
        for kernel in barrier.entering:
            for number, value in enumerate(kernel.op.operands):
                is_last = kernel.position == barrier.slot
                if is_last and number not in kernel.in_place and not _is_known(value):
                    shared.append(value)
                else:
                    _add_reader(own, kernel, number, value)
        shared += [self._now(result) for kernel in barrier.leaving for result in kernel.op.results]
        if barrier.passes_returned:
            shared += self._returned()
        common = [PinnedEntry(value, readers=None) for value in dict.fromkeys(shared)]
        return [entry for entry in own + common if can_carry_dependency(entry.value.type)]

    def kept(self, barrier: Barrier, passed: Sequence[ir.Value]) -> list[ir.Value]:
        """What else a barrier has to keep in its buffer, in order."""
        kept = dict.fromkeys(
            self._now(value)
            for kernel in barrier.keeping
            for number, value in enumerate(kernel.op.operands)
            if number not in kernel.in_place
        )
        return [value for value in kept if value not in passed and can_carry_dependency(value.type)]

    def replace(
        self, entries: Sequence[PinnedEntry], given: Sequence[ir.Value], *, behind: ir.Operation
    ) -> None:
        """Lets the readers behind a barrier, the mark, read what came out of it."""
        for entry, value in zip(entries, given, strict=True):
            if entry.readers is None:
                self._replace_behind(entry.value, value, behind)
                self._latest[entry.value] = value
                continue
            for kernel, number in entry.readers:
                kernel.op.operands[number] = value

    def _now(self, value: ir.Value) -> ir.Value:
        while value in self._latest:
            value = self._latest[value]
        return value

    def _returned(self) -> list[ir.Value]:
        """What the block makes and returns; of a loop nothing: the token, its carry, will do."""
        if self._block.owner.operation.name == "stablehlo.while":
            return []
        return [
            value
            for value in walk.terminator(self._block).operands
            if not isinstance(value.owner, ir.Block) and value.owner.operation.block == self._block
        ]

    def _replace_behind(self, old: ir.Value, new: ir.Value, barrier: ir.Operation) -> None:
        for use in list(old.uses):
            reader = use.owner.operation
            if not self._holds(reader):
                continue
            if barrier.is_before_in_block(walk.ancestor_in(self._block, reader)):
                reader.operands[use.operand_number] = new

    def _holds(self, op: ir.Operation) -> bool:
        """Whether an operation stands in the block, or deeper inside."""
        return any(block == self._block for block in _blocks_around(op))


def _blocks_around(op: ir.Operation) -> list[ir.Block]:
    blocks = [op.block]
    while (parent := blocks[-1].owner.operation).name not in ("builtin.module", "func.func"):
        blocks.append(parent.block)
    return blocks


def _is_known(value: ir.Value) -> bool:
    """Whether XLA may know the value, or bounds of it, and copies it at no cost."""
    if isinstance(value.type, ir.RankedTensorType) and value.type.rank == 0:
        return True
    owner = value.owner
    return not isinstance(owner, ir.Block) and facts_of(owner.operation.name).is_constant


def _add_reader(
    entries: list[PinnedEntry], kernel: SyncKernel, number: int, value: ir.Value
) -> None:
    """Adds an operand; what the kernel writes to in place it shares with no other operand."""
    is_shared = number not in kernel.in_place
    for entry in entries if is_shared else []:
        first, first_number = entry.readers[0] if entry.readers else (None, 0)
        if first is kernel and entry.value == value and first_number not in kernel.in_place:
            entry.readers = [*(entry.readers or []), (kernel, number)]
            return
    entries.append(PinnedEntry(value, [(kernel, number)]))
