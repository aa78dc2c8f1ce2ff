"""The values that pass through each barrier, and the readers of the barrier's results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from ..ir import walk
from ..ir.mark_decompositions import can_carry_dependency
from ..ir.ops import facts_of
from .collect import SyncKernel
from .plan import Barrier


@dataclass
class PinnedEntry:
    """A value that passes through a barrier.

    Attributes:
      value: the barrier's operand.
      readers: the kernels' operands that read the barrier's result; None if all uses after the
        barrier do.
    """

    value: ir.Value
    readers: list[tuple[SyncKernel, int]] | None = field(default_factory=list)


class PinnedValues:
    """The values of one block that pass through its barriers, barrier by barrier.

    A buffer that peers read must stay in place from the barrier to the kernel. If an operand of a
    barrier has other uses, XLA may copy it before the barrier, which is harmless, but XLA must not
    copy it after the barrier. Two ways prevent that. Shared: all uses after the barrier read its
    result, so that there is no copy. Own: an entry of the kernel's operand alone. That is used if
    something is between the barrier and the kernel, if the kernel writes to the operand, and for
    scalars and constants, which XLA must still know after the barrier: a loop whose counter is a
    result of a call has no known trip count.
    """

    def __init__(self, block: ir.Block) -> None:
        self._block = block
        self._latest: dict[ir.Value, ir.Value] = {}
        """By shared value, the result of the last barrier that it passed."""

    def entries(self, barrier: Barrier) -> list[PinnedEntry]:
        """The values that pass through a barrier, in order."""
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
        """The further values that a barrier has to keep alive, in order."""
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
        """Lets the readers of the entries use the results of the barrier ``behind``."""
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
        """The block's own values that it returns; none for a loop, whose token is a carry."""
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
        """Whether an operation is in the block or in a nested one."""
        return any(block == self._block for block in _blocks_around(op))


def _blocks_around(op: ir.Operation) -> list[ir.Block]:
    blocks = [op.block]
    while (parent := blocks[-1].owner.operation).name not in ("builtin.module", "func.func"):
        blocks.append(parent.block)
    return blocks


def _is_known(value: ir.Value) -> bool:
    """Whether XLA may know the value or bounds of it, and copies it at no cost."""
    if isinstance(value.type, ir.RankedTensorType) and value.type.rank == 0:
        return True
    owner = value.owner
    return not isinstance(owner, ir.Block) and facts_of(owner.operation.name).is_constant


def _add_reader(
    entries: list[PinnedEntry], kernel: SyncKernel, number: int, value: ir.Value
) -> None:
    """Adds a kernel's operand; one that it writes to in place shares no entry."""
    is_shared = number not in kernel.in_place
    for entry in entries if is_shared else []:
        first, first_number = entry.readers[0] if entry.readers else (None, 0)
        if first is kernel and entry.value == value and first_number not in kernel.in_place:
            entry.readers = [*(entry.readers or []), (kernel, number)]
            return
    entries.append(PinnedEntry(value, [(kernel, number)]))
