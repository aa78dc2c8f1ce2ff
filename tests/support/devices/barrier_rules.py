"""What has to be true of a block with barriers, read from the IR alone.

Nothing here knows how the pass decides: it follows values and buffers. `check` fails where a peer
could read an operand that is not there, read a buffer that is in use again, or where two operations
that meet other devices are in no order.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from jax.extend.mlir import ir

from hloom.passes.barriers.requirements import (
    Participants,
    covers,
    is_trivial,
    partitions_of_groups,
    sync_requirement_of,
    synchronized,
)
from hloom.passes.ir import marks
from hloom.passes.ir.marks import BarrierKind
from hloom.passes.ir.ops import facts_of


def barrier_kind(mark: ir.Operation) -> BarrierKind:
    """The purpose of a barrier. Raises KeyError for other marks."""
    attributes = ir.DictAttr(mark.attributes["composite_attributes"])
    return BarrierKind(ir.StringAttr(attributes["kind"]).value)


@dataclass(frozen=True)
class SyncKernel:
    """A kernel of the block: its number there, and who meets at it."""

    number: int
    entry: bool
    exit: str | None
    participants: Participants
    in_place: frozenset[int]


class Rules:
    """One block, each operation by its number."""

    def __init__(self, module: ir.Module, block: ir.Block, partitions: int) -> None:
        self._module = module  # the operations are gone with it
        self.ops = [view.operation for view in block.operations]
        self._partitions = partitions
        self._number: dict[ir.Value, int] = {
            result: number for number, op in enumerate(self.ops) for result in op.results
        }
        self._before: list[frozenset[int]] = []
        for op in self.ops:
            owners = {self._number[value] for value in op.operands if value in self._number}
            self._before.append(owners.union(*(self._before[owner] for owner in owners)))  # type: ignore[arg-type]
        self.kernels = [
            kernel for number in range(len(self.ops)) if (kernel := self._kernel(number))
        ]

    def check(self) -> None:
        """Fails with what is wrong."""
        members = [n for n in range(len(self.ops)) if self._is_member(n)]
        for first, second in pairwise(members) if self.kernels else ():
            assert first in self._before[second], f"no order: {self.ops[first]}, {self.ops[second]}"
        for kernel in self.kernels:
            if kernel.entry:
                for operand in range(len(self.ops[kernel.number].operands)):
                    self._check_entry(kernel, operand)
            if kernel.exit == "after":
                self._check_results(kernel)
            if kernel.exit is not None:
                self._check_operands_stay(kernel)

    def barriers(self) -> list[int]:
        """The barriers at which somebody waits."""
        return [n for n in range(len(self.ops)) if self._is_barrier(n) and not self._is_hold(n)]

    def _kernel(self, number: int) -> SyncKernel | None:
        op = self.ops[number]
        needs = sync_requirement_of(op)
        if needs is None:
            return None
        participants = partitions_of_groups(needs.groups, self._partitions)
        in_place = frozenset({0} if "output_operand_aliases" in op.attributes else ())
        if is_trivial(participants):
            return None
        return SyncKernel(number, needs.entry, needs.exit, participants, in_place)

    def _is_member(self, number: int) -> bool:
        is_kernel = any(kernel.number == number for kernel in self.kernels)
        return is_kernel or facts_of(self.ops[number].name).communicates or self._is_barrier(number)

    def _is_barrier(self, number: int) -> bool:
        return marks.mark_name(self.ops[number]) == marks.BARRIER

    def _is_hold(self, number: int) -> bool:
        return barrier_kind(self.ops[number]) is BarrierKind.PIN

    def _is_barrier_of(self, number: int, participants: Participants) -> bool:
        if not self._is_barrier(number):
            return False
        groups = marks.rendezvous(self.ops[number]).groups
        return covers(partitions_of_groups(groups, self._partitions), participants)

    def _collectives_of(self, participants: Participants) -> list[int]:
        found = []
        for number, op in enumerate(self.ops):
            known = synchronized(op, self._partitions) if facts_of(op.name).communicates else None
            if known is not None and covers(known, participants):
                found.append(number)
        return found

    def _has_met(self, since: int, at: int, participants: Participants) -> bool:
        """Whether all of a participants have been through `since` when one is through `at`."""
        if self._is_barrier_of(at, participants):
            return since in self._before[at]
        return any(
            since in self._before[each] and each in self._before[at]
            for each in self._collectives_of(participants)
        )

    def _check_entry(self, kernel: SyncKernel, operand: int) -> None:
        """The operand is in its buffer on all devices before the kernel runs on one."""
        value = self.ops[kernel.number].operands[operand]
        readers = self._readers(value)
        assert operand not in kernel.in_place or len(readers) == 1, "others read it in place"
        links: list[int] = []
        while True:
            assert value in self._number, f"not through a barrier: {self.ops[kernel.number]}"
            link = self._number[value]
            assert self._is_barrier(link), f"not through a barrier: {self.ops[kernel.number]}"
            links.insert(0, link)
            value = self.ops[link].operands[list(self.ops[link].results).index(value)]
            if self._is_barrier_of(link, kernel.participants):
                break
            if any(self._has_met(link, later, kernel.participants) for later in links[1:]):
                break
        # From there on nothing else reads it, so that XLA does not copy it.
        for link, following in pairwise(links):
            passed = next(
                result
                for result in self.ops[link].results
                if result in list(self.ops[following].operands)[: len(self.ops[following].results)]
                and result.type == value.type
                and result != self.ops[link].results[0]
            )
            assert self._readers(passed) == [following], "it may be copied behind the barrier"
        # What is made by a kernel that peers write to is final by then.
        if value in self._number:
            maker = self._number[value]
            for other in self.kernels:
                if other.number == maker and other.exit == "after":
                    assert self._is_barrier_of(links[0], other.participants), (
                        "not final at the barrier"
                    )

    def _check_results(self, kernel: SyncKernel) -> None:
        """Nothing reads a result before all have left the kernel."""
        for result in self.ops[kernel.number].results:
            for reader in self._readers(result):
                if marks.mark_name(self.ops[reader]) == marks.AFTER_ALL:
                    continue
                assert self._is_barrier(reader), f"read too early: {self.ops[reader]}"
                assert self._has_met(kernel.number, reader, kernel.participants), "read too early"
                op = self.ops[reader]
                passed = list(op.operands)[: len(op.results)]
                assert passed.count(result) == 1, "it is copied before it is final"

    def _check_operands_stay(self, kernel: SyncKernel) -> None:
        """There is a point where all have left the kernel, and its operands live until then."""
        op = self.ops[kernel.number]
        ends = [
            number
            for number in range(len(self.ops))
            if self._is_barrier(number)
            and self._has_met(kernel.number, number, kernel.participants)
        ]
        assert ends, f"nobody waits behind {op}"
        assert any(
            all(
                self._lives_until(value, end)
                for number, value in enumerate(op.operands)
                if number not in kernel.in_place
            )
            for end in ends
        ), f"an operand's buffer may be reused behind {op}"

    def _lives_until(self, value: ir.Value, end: int) -> bool:
        for reader in self._readers(value):
            if reader == end or end in self._before[reader]:
                return True
            op = self.ops[reader]
            if self._is_barrier(reader):
                for operand, result in zip(op.operands, op.results, strict=False):
                    if operand == value and self._lives_until(result, end):
                        return True
        return False

    def _readers(self, value: ir.Value) -> list[int]:
        return [number for number, op in enumerate(self.ops) if value in list(op.operands)]
