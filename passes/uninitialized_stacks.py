"""Let the stacks that a loop overwrites as a whole start uninitialised, instead of filled.

A scan's stack starts from zeros: XLA writes all of it, and the loop writes all of it again.

Before::

    %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<12x8x1024xf32>
    %0:2 = stablehlo.while(%i = %c, %s = %zeros) { ... }

After::

    %any = stablehlo.composite "hloom.uninitialized" {...} : () -> tensor<12x8x1024xf32>
    %0:2 = stablehlo.while(%i = %c, %s = %any) { ... }

A stack qualifies that starts from a constant and is proved to be written whole before it is read;
not on the host, nor where XLA's partitioner has yet to split it. XLA may then choose a schedule of
more memory, so that the pass compares XLA's figures, unless the spec has a pass with a budget. The
results are the same to the bit.

Source: ``AllocateBuffer``, the custom call that XLA's own host offloading writes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from jax.extend.mlir import ir

from .analysis.constants import ConstantValues
from .analysis.loops.counted import counted_loop
from .cse import Cse
from .drop_constraints import DropConstraints
from .framework.base import OTHERS, ListPlan, Pass
from .framework.feedback import Attempt, Complaint, MeasuredPass, PlanRecord
from .framework.options import Bytes, option
from .framework.structure import Whole
from .framework.tables import Described, Fact, Kind, Table
from .framework.target import Target
from .framework.text import pluralize, size
from .free_constants import FreeConstants
from .ir import mesh, walk
from .ir.custom_calls import is_stored_on_host
from .ir.erase import erase
from .ir.marks import MarkBuilder
from .ir.types import tensor_bytes
from .ir.values import is_read

_LARGEST_SHARE = 3 / 4
"""The share of all stacks' bytes in the largest ones that are tried alone."""


@dataclass(frozen=True)
class OverwrittenStack:
    """A stack that its loop overwrites as a whole.

    Attributes:
      id: the loop's number in the module, and the carry's in the loop.
      loop, number: the loop, and its operand that is the stack's initial value.
      update: the operation that writes the slices.
      size_bytes: the bytes of the whole stack, on one device.
      fill: the operations that compute the initial value.
    """

    id: str
    loop: ir.Operation
    number: int
    update: ir.Operation
    size_bytes: int
    fill: tuple[ir.Operation, ...]

    @property
    def value(self) -> Described:
        return Described.of(self.update, self.size_bytes)

    @property
    def description(self) -> str:
        return self.value.called("a scan")


@dataclass(frozen=True)
class StacksRecord(PlanRecord):
    """The record of a plan of `uninitialized-stacks`.

    Attributes:
      unfilled_bytes: the bytes of the stacks that start uninitialised.
      filled_bytes: the bytes of those that could, and start filled.
    """

    unfilled_bytes: Whole = 0
    filled_bytes: Whole = 0

    @property
    def is_final(self) -> bool:
        return not (self.unfilled_bytes or self.filled_bytes)


@dataclass(frozen=True)
class StacksPlan(ListPlan[OverwrittenStack]):
    """The stacks that start uninitialised, and those of the module that could and start filled."""

    filled: tuple[OverwrittenStack, ...] = ()
    module: ir.Module = field(kw_only=True)

    @property
    def record(self) -> StacksRecord:
        return StacksRecord(
            unfilled_bytes=sum(stack.size_bytes for stack in self.decided),
            filled_bytes=sum(stack.size_bytes for stack in self.filled),
        )

    def summary(self) -> str:
        record = self.record
        if record.is_final:
            return "no stack that a loop overwrites as a whole starts filled"
        filled = f"{pluralize(len(self.filled), 'stack')} filled, {size(record.filled_bytes)}"
        return ", ".join(filter(None, (self.effect(), filled if self.filled else "")))

    def effect(self) -> str:
        if self.empty:
            return ""
        what = pluralize(len(self.decided), "stack")
        return f"{what} not filled, {size(self.record.unfilled_bytes)}"

    def facts(self) -> tuple[Fact, ...]:
        unfilled, filled = self.record.unfilled_bytes, self.record.filled_bytes
        return (Fact("not filled", unfilled, Kind.BYTES), Fact("filled", filled, Kind.BYTES))

    def tables(self) -> tuple[Table, ...]:
        columns = {"stack takes": Kind.BYTES, "written by": Kind.VALUE}
        both = (
            ("Stacks that start uninitialised", self.decided),
            ("Filled as before", self.filled),
        )
        return tuple(
            Table(title, columns, tuple((stack.size_bytes, stack.value) for stack in stacks))
            for title, stacks in both
        )

    def restricted_to(self, ids: Collection[str]) -> StacksPlan:
        return _plan_of(self.module, (*self.decided, *self.filled), ids)


@dataclass(frozen=True)
class UninitializedStacks(MeasuredPass[StacksRecord]):
    """Let stacks that are overwritten as a whole start uninitialised."""

    name: ClassVar[str] = "uninitialized-stacks"
    summary: ClassVar[str] = "do not fill the stacks that a scan overwrites as a whole"
    example: ClassVar[str] = "uninitialized-stacks{min_bytes=1MiB}"
    requires: ClassVar[tuple[type[Pass], ...]] = (DropConstraints, Cse, FreeConstants)
    once: ClassVar[bool] = True
    record_type: ClassVar[type[StacksRecord]] = StacksRecord
    not_on: ClassVar[Mapping[str, str]] = {
        "cuda": "",
        "cpu": "XLA has no uninitialised buffers there",
        "tpu": "XLA leaves such stacks unfilled itself",
        OTHERS: "whether XLA has uninitialised buffers there is not known to hloom",
    }

    min_bytes: Bytes = option(
        Bytes(64 * 1024), doc="stacks smaller than this start filled", minimum=1
    )
    compiles: int = option(
        3,
        doc="how often the program may be compiled, to compare all stacks uninitialised, none, "
        "and the largest alone; with 1 the memory may grow",
        minimum=1,
    )

    @property
    def is_bounded(self) -> bool:
        return False

    @property
    def compares(self) -> bool:
        return True

    def plan_after(
        self, module: ir.Module, target: Target, attempts: Sequence[Attempt[StacksRecord]]
    ) -> StacksPlan:
        stacks = overwritten_stacks(module, self.min_bytes)
        match len(attempts):
            case 0:
                return StacksPlan(stacks, module=module)
            case 1:
                return StacksPlan((), filled=stacks, module=module)
            case _:
                return _plan_of(module, stacks, _largest(stacks))

    def wants_another(self, attempts: Sequence[Attempt[StacksRecord]], target: Target) -> bool:
        if attempts[0].record.is_final:
            return False
        return len(attempts) == 1 or (len(attempts) == 2 and self.best(attempts, target) != 0)

    def best(self, attempts: Sequence[Attempt[StacksRecord]], target: Target) -> int:
        filled = (a for a in attempts if not a.record.unfilled_bytes and not a.is_refused)
        limit = min((attempt.step_bytes for attempt in filled), default=None)
        holding = (
            number
            for number, attempt in enumerate(attempts)
            if not attempt.is_refused and (limit is None or attempt.step_bytes <= limit)
        )
        return max(holding, key=lambda number: attempts[number].record.unfilled_bytes, default=0)

    def complaint(
        self,
        attempts: Sequence[Attempt[StacksRecord]],
        best: int,
        target: Target,
        module_of_best: Callable[[], ir.Module],
        unmodified: Callable[[], ir.Module],
    ) -> Complaint | None:
        return None

    def apply(self, plan: StacksPlan) -> None:
        builder = MarkBuilder(plan.module)
        for stack in plan.decided:
            with ir.InsertionPoint(stack.loop), stack.loop.location:
                type_ = stack.loop.operands[stack.number].type
                stack.loop.operands[stack.number] = builder.uninitialized(type_)
        # Each after its operands, once: stacks may share the zero that they are filled with.
        fills = {walk.key(op): op for stack in plan.decided for op in stack.fill}
        for op in reversed(fills.values()):
            if not is_read(op):
                erase(op)


def overwritten_stacks(module: ir.Module, min_bytes: int) -> tuple[OverwrittenStack, ...]:
    """Returns the stacks of that size that start as a constant and are proved to be overwritten.

    The function is pure. The stacks are in the module's order; its calls have to be inlined.
    """
    partitions = mesh.partition_count(module)
    constants = ConstantValues()
    found: list[OverwrittenStack] = []
    loops = (op for op in walk.operations(module.operation) if op.name == "stablehlo.while")
    for position, op in enumerate(loops):
        loop = counted_loop(op)
        if loop is None or not mesh.is_manual(op, partitions):
            continue
        for stack in loop.stacks:
            start = op.operands[stack.number]
            size_bytes = tensor_bytes(start.type) or 0
            if size_bytes < min_bytes or is_stored_on_host(stack.update):
                continue
            if (fill := constants.chain(start)) is not None:
                found.append(
                    OverwrittenStack(
                        f"{position}.{stack.number}",
                        op,
                        stack.number,
                        stack.update,
                        size_bytes,
                        fill,
                    )
                )
    return tuple(found)


def _largest(stacks: Sequence[OverwrittenStack]) -> set[str]:
    """Returns the fewest stacks with that share of the bytes of all."""
    left = _LARGEST_SHARE * sum(stack.size_bytes for stack in stacks)
    taken: set[str] = set()
    for stack in sorted(stacks, key=lambda stack: -stack.size_bytes):
        if left <= 0:
            break
        taken.add(stack.id)
        left -= stack.size_bytes
    return taken


def _plan_of(
    module: ir.Module, stacks: Sequence[OverwrittenStack], unfilled: Collection[str]
) -> StacksPlan:
    """Returns the plan that leaves the named stacks unfilled."""
    return StacksPlan(
        tuple(stack for stack in stacks if stack.id in unfilled),
        filled=tuple(stack for stack in stacks if stack.id not in unfilled),
        module=module,
    )
