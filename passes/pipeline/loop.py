"""A loop over layers as a pipeline: the values that stay or travel, and their shardings."""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.dimension_flow.flow import Flow
from ..analysis.dimension_flow.result import site
from ..analysis.loops.additions import additions
from ..analysis.loops.counted import StackedOutput, upward_count
from ..analysis.program import Node, Program
from ..analysis.shardings.shardings import Shardings
from ..analysis.signatures.signature import AxisLayout, Combine
from ..framework.errors import NotPossibleError
from ..framework.text import pluralize
from ..ir import walk
from ..ir.op_facts import Category
from ..ir.ops import facts_of
from ..ir.shardings import CONSTRAINT, ValueSharding, constraint_placement, has_shardings
from ..ir.types import tensor_bytes
from ..ir.values import constant_int, element_of
from ..phase_loops.contents import Form, Read
from ..phase_loops.exits import AccumulatorRule, has_identity
from ..phase_loops.plan import LoopsPlan, plan_loops
from .batch import LoopBatch
from .early import EarlyWork, early_work
from .mesh_axis import StageAxis
from .schedule import PipelineSchedule
from .segments import LayerLoop


class Moves(enum.StrEnum):
    """The movement of a carry of the loop."""

    TRAVELS = "travels"
    """The carry travels from device to device with its microbatch."""
    ADDED = "added up"
    """Each device adds up its own layers' terms; the devices' sums are reduced once, after the
    loop."""


@dataclass(frozen=True)
class PipelineCarry:
    """A carry of the loop that the body changes.

    Attributes:
      number: the carry's number.
      type: the type of the whole value.
      moves: its movement.
      layout: the batch's layout in it; None where it has none.
      combine: how terms of microbatches are combined, if it has such.
      element: the element type that it is carried in.
      additions: for a summed carry the additions in the body, as in `segments.additions`.
    """

    number: int
    type: ir.Type
    moves: Moves
    layout: AxisLayout | None
    combine: Combine | None
    element: ir.Type
    additions: Mapping[ir.Value, int]


@dataclass(frozen=True)
class WrittenStack:
    """A stack that the loop writes a slice of in each iteration.

    Attributes:
      number: the number of the carry.
      type: the type of the whole stack.
      update: the operation that writes the slice.
      layout: the batch's layout in it; None where a slice is for all microbatches.
      combine: how the terms of microbatches are combined; None where they have none.
      element: the element type that it is written in.
      placement: its sharding after the loop; None where that is unknown.
    """

    number: int
    type: ir.Type
    update: ir.Operation
    layout: AxisLayout | None
    combine: Combine | None
    element: ir.Type
    placement: ValueSharding | None


@dataclass(frozen=True)
class PipelinedLoop:
    """A loop over layers, and all values needed to write it as a pipeline.

    Attributes:
      id: its name, unique in the plan.
      batch: the dimension that is cut.
      plan: one loop over the microbatches, which contains the loop over layers.
      schedule: devices and ticks.
      axes: the axes of the mesh, besides the pipeline's, on which each device runs its own part of
        the batch; the others are left to XLA's partitioner.
      parts: the devices along these.
      read: the batch's layout in the stacks that it reads, in their order; None where it has none.
      written: the stacks that it writes.
      cut: other values of which it reads a chunk, by number, and the batch's layout in them.
      whole: other values that it reads in full, by number.
      early: the work that is done before it begins.
    """

    id: str
    found: LayerLoop
    batch: LoopBatch
    plan: LoopsPlan
    schedule: PipelineSchedule
    axes: tuple[str, ...]
    parts: int
    carries: tuple[PipelineCarry, ...]
    read: tuple[AxisLayout | None, ...]
    written: tuple[WrittenStack, ...]
    cut: tuple[Read, ...]
    whole: tuple[int, ...]
    early: EarlyWork

    @property
    def segment(self) -> int:
        """Returns the layers of a segment."""
        return self.found.layers // (self.schedule.stages * self.schedule.repeats)

    @property
    def travelling(self) -> tuple[PipelineCarry, ...]:
        return tuple(each for each in self.carries if each.moves is Moves.TRAVELS)

    @property
    def added(self) -> tuple[PipelineCarry, ...]:
        return tuple(each for each in self.carries if each.moves is Moves.ADDED)

    @property
    def tick_bytes(self) -> int:
        """Returns the bytes that a device sends to the next one in a tick."""
        chunks = self.schedule.microbatches * self.parts
        return sum(_bytes(each.type) // (chunks if each.layout else 1) for each in self.travelling)

    @property
    def batch_bytes(self) -> int:
        """Returns the bytes of the whole batch that travel, for which each device has a buffer."""
        return sum(
            _bytes(each.type) // self.parts
            if each.layout
            else _bytes(each.type) * self.schedule.microbatches
            for each in self.travelling
        )

    @property
    def stack_bytes(self) -> int:
        """Returns the bytes of the stacks that stay on a device: its share of all."""
        stacks = [
            *((each.value.type, at) for each, at in zip(self.found.read, self.read, strict=True)),
            *((each.type, each.layout) for each in self.written),
        ]
        return sum(
            _bytes(type_) // (self.schedule.stages * (self.parts if layout else 1))
            for type_, layout in stacks
        )

    @property
    def residual_bytes(self) -> int:
        """Returns the bytes of its stacks for the whole batch, on one device."""
        devices = self.schedule.stages * self.parts
        return sum(_bytes(each.type) // devices for each in self.written if each.layout)

    @property
    def description(self) -> str:
        text = pluralize(self.schedule.repeats * self.schedule.stages, "segment")
        return f"{site(self.found.loop.op)}: {self.found.layers} layers in {text}"


def pipelined_loop(
    number: int,
    found: LayerLoop,
    program: Program,
    batch: LoopBatch,
    schedule: PipelineSchedule,
    rule: AccumulatorRule,
    shardings: Shardings,
    axis: StageAxis,
    earlier: Iterable[PipelinedLoop],
) -> PipelinedLoop:
    """Returns the loop as a pipeline; ``earlier`` are those before it in the text.

    Raises NotPossibleError where it cannot be written as one.
    """
    layers, per_turn = found.layers, schedule.stages * schedule.repeats
    if layers % per_turn:
        stages, most = schedule.stages, layers // schedule.stages
        whole = [str(each) for each in range(1, most + 1) if layers % (stages * each) == 0]
        counts = [str(each) for each in (layers // stages * stages, -(-layers // stages) * stages)]
        others = [str(each) for each in range(2, layers + 1) if layers % each == 0]
        remedy = (
            f"want repeats of {' or '.join(whole)}"
            if whole
            else f"want {' or '.join(each for each in counts if each != '0')} layers, or "
            f"{axis.name} over {' or '.join(others)} devices"
        )
        raise NotPossibleError(
            f"its {layers} layers are no multiple of {stages} devices"
            + (f" times {schedule.repeats} repeats" if schedule.repeats > 1 else "")
            + f": {remedy}",
            found.loop.op,
        )
    plan = plan_loops(batch.flow, schedule.microbatches, accumulate_in=rule, by_parts=False)
    of, index = plan.program.of, plan.program.program.index
    results = found.node.results
    carries = tuple(_carry(found, each, of(results[each]), rule) for each in found.carried)
    written = tuple(
        _written(each, found, of(results[each.number]), rule, shardings)
        for each in found.loop.stacks
    )
    read = tuple(of(index[each.inside]).layout for each in found.read)
    reads = _reads(plan, found)
    cut = tuple(each for each in reads if isinstance(each[1], AxisLayout))
    stacked = [*read, *(each.layout for each in written)]
    if any(layout is not None and layout.axis == 0 for layout in stacked):
        raise NotPossibleError("its layers would be divided into microbatches", found.loop.op)
    layouts = [*stacked, *(each.layout for each in carries), *(form for _, form in cut)]
    # Otherwise some of its values would not be in whole parts on the devices, and XLA divides the
    # work.
    by_parts = bool(batch.axes) and all(
        each.outer == batch.devices for each in layouts if isinstance(each, AxisLayout)
    )
    _check_branches(found.node, axis, batch.axes if by_parts else ())
    return PipelinedLoop(
        f"loop-{number}",
        found,
        batch,
        plan,
        schedule,
        batch.axes if by_parts else (),
        batch.devices if by_parts else 1,
        carries,
        read,
        written,
        cut,
        tuple(value for value, form in reads if form is Form.OUTSIDE),
        early_work(
            program,
            found.node,
            shardings,
            axis.count * (batch.devices if by_parts else 1),
            [op for each in earlier for op in each.early.ops],
        ),
    )


def _carry(found: LayerLoop, number: int, flow: Flow, rule: AccumulatorRule) -> PipelineCarry:
    result = found.loop.op.results[number]
    if not tensor_bytes(result.type):
        raise NotPossibleError(f"it carries a {result.type}, which cannot be sent", found.loop.op)
    own, sums = element_of(result), additions(found.loop, number)
    if flow.is_partial and flow.combine is Combine.SUM and sums is not None:
        return PipelineCarry(
            number, result.type, Moves.ADDED, None, flow.combine, rule(result), sums
        )
    return PipelineCarry(number, result.type, Moves.TRAVELS, flow.layout, flow.combine, own, {})


def _written(
    stack: StackedOutput, found: LayerLoop, flow: Flow, rule: AccumulatorRule, shardings: Shardings
) -> WrittenStack:
    result = found.loop.op.results[stack.number]
    own = element_of(result)
    if flow.is_partial and flow.combine is not None and not has_identity(own, flow.combine):
        raise NotPossibleError(
            f"a {flow.combine} of {own} has no value to start with", stack.update
        )
    element = rule(result) if flow.combine is Combine.SUM else own
    return WrittenStack(
        stack.number,
        result.type,
        stack.update,
        flow.layout,
        flow.combine,
        element,
        shardings.placement(result),
    )


def _reads(plan: LoopsPlan, found: LayerLoop) -> tuple[Read, ...]:
    """Returns values that a tick reads from outside, without stacks and initial carries, each once.

    Values that are cut as (value, layout), others as (value, Form.OUTSIDE).
    """
    copies, node = plan.loops[0].copies, found.node
    index = plan.program.program.index
    slices = {walk.key(op) for each in found.read for op in each.slices}
    updates = {walk.key(each.update) for each in found.loop.stacks}
    condition = {each.number for each in node.blocks[0].inside()}
    waiting: list[Read] = []
    for number, group in copies.by_node.items():
        for copy in group if number not in condition else ():
            key = walk.key(copy.node.op)
            if copy.node.number == node.number:
                returned = (*found.carried, *(stack.number for stack in found.loop.stacks))
                waiting += (copy.reads[each] for each in found.everywhere)
                waiting += (copy.returned[1][each] for each in returned)
            elif key in updates:
                waiting.append(copy.reads[1])
            elif key not in slices:
                waiting += copy.reads
                waiting += (each for block in copy.returned for each in block)
    stacks = {index[each.inside] for each in found.read}
    reads: dict[Read, None] = {}
    for read in waiting:
        while read in copies.aliases:
            read = copies.aliases[read]
        base = copies.slices.get(read, read)
        if base[1] is Form.OUTSIDE and base[0] not in stacks:
            reads[read] = None
    return tuple(reads)


def _bytes(type_: ir.Type) -> int:
    return tensor_bytes(type_) or 0


def check_body(node: Node) -> None:
    """Raises NotPossibleError for operations that cannot run in idle ticks, or on some devices."""
    for each in _inside(node):
        op = each.op
        if facts_of(op.name).category is Category.COLLECTIVE:
            raise NotPossibleError("it meets other devices, in a layer", op)
        if each.category is Category.MANUAL:
            raise NotPossibleError(
                "jax.shard_map stands in a layer: it would be in another one", op
            )
        if each.is_call:
            raise NotPossibleError("a function that is called is not cut", op)
        if each.effects and not each.blocks:
            raise NotPossibleError("it has side effects, which microbatches would repeat", op)
        if op.name == CONSTRAINT and not constraint_placement(op).unreduced:
            continue
        if op.name.startswith("sdy.") or has_shardings(op):
            raise NotPossibleError("it has a sharding that is no constraint, in a layer", op)
        if each.category is Category.LOOP and not _ends(op):
            raise NotPossibleError(
                "how often it runs is known at run time only: a device that is idle in a tick, and "
                "computes all the same, might never end",
                op,
            )


def _check_branches(node: Node, axis: StageAxis, axes: Collection[str]) -> None:
    """Raises NotPossibleError if devices that the partitioner has meet may branch apart.

    XLA's partitioner may insert a collective of all devices into a branch, which devices in
    another branch never reach.
    """
    if math.prod(axis.sizes[name] for name in (axis.name, *axes)) == axis.devices:
        return
    for each in _inside(node):
        if each.category is Category.CONDITIONAL:
            raise NotPossibleError(
                "it branches in a layer, where XLA divides work over an axis of the mesh beside "
                "the pipeline's, and devices of other layers may take another branch",
                each.op,
            )


def _ends(loop: ir.Operation) -> bool:
    found = upward_count(loop)
    return found is not None and constant_int(found[1]) is not None


def _inside(node: Node) -> Iterator[Node]:
    return (each for block in node.blocks for each in block.inside())
