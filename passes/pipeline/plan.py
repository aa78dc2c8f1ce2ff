"""The plan of `pipeline` for a module: the loops that become pipelines, in which schedule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.dimension_flow.result import site
from ..analysis.loops.counted import CountedLoop, counted_loops
from ..analysis.program import Node, Program
from ..analysis.shardings.shardings import Shardings
from ..framework import base
from ..framework.errors import NotPossibleError
from ..framework.tables import Described, Fact, Kind, Table
from ..framework.target import Target
from ..framework.text import percent, pluralize, size, upper_first
from ..ir import walk
from ..ir.marks import next_channel
from ..ir.types import tensor_bytes
from ..ir.values import is_read, shape_of
from ..phase_loops.exits import AccumulatorRule
from .batch import LoopBatch, batch_of
from .choice import LoopAndBatch, ScheduleChoice
from .loop import PipelinedLoop, check_body, pipelined_loop
from .mesh_axis import StageAxis
from .schedule import PipelineSchedule
from .segments import LayerLoop, layer_loop, odd_reader, stacks_read

_MOST_DRAWN = 64
"""The most ticks of a schedule that is drawn."""


@dataclass(frozen=True)
class PipelineSettings:
    """The settings of the plan; see the options of the pass."""

    axis: str
    microbatches: int | None
    repeats: int | None
    accumulate_in: AccumulatorRule


@dataclass(frozen=True)
class PipelinePlan(base.ListPlan[PipelinedLoop]):
    """The loops that become pipelines.

    Attributes:
      axis: the axis of the mesh.
      first_channel: the module's collectives have no higher channel than this.
      instead: an alternative that would be as fast by the cost model; empty where there is none.
      warning: the problems of the schedule, in sentences; empty where there are none.
      reason: why no loop becomes one; empty where one does.
      refusal: the same reason, if the user requested a pipeline and has to know.
    """

    axis: StageAxis | None = None
    first_channel: int = 1
    instead: str = ""
    warning: str = ""
    reason: str = ""
    refusal: str = ""

    @property
    def schedule(self) -> PipelineSchedule | None:
        return self.decided[0].schedule if self.decided else None

    def summary(self) -> str:
        if self.schedule is None or self.axis is None:
            return f"no pipeline: {self.reason or 'it is left out'}"
        travels = max(each.tick_bytes for each in self.decided)
        return f"{self.effect()}; {size(travels)} sent a tick"

    def effect(self) -> str:
        if self.schedule is None or self.axis is None:
            return ""
        layers = max(each.found.layers for each in self.decided)
        repeats = self.schedule.repeats
        circular = f" in {repeats} repeats" if repeats > 1 else ""
        return (
            f"pipeline over {self.axis.name}: {pluralize(layers, 'layer')} on "
            f"{self.axis.count} devices{circular}, "
            f"{self.schedule.microbatches} microbatches, "
            f"bubble {percent(self.schedule.bubble)}"
        )

    def facts(self) -> tuple[Fact, ...]:
        schedule = self.schedule
        if schedule is None:
            return ()
        batch = " and ".join(dict.fromkeys(each.batch.text for each in self.decided))
        return (
            Fact("bubble", schedule.bubble, Kind.SHARE),
            Fact("ticks", schedule.ticks),
            Fact("microbatches", schedule.microbatches),
            Fact("repeats", schedule.repeats),
            Fact("sent a tick", max(each.tick_bytes for each in self.decided), Kind.BYTES),
            Fact("batch", batch, Kind.TEXT),
            *((Fact("instead", self.instead, Kind.TEXT),) if self.instead else ()),
            *((Fact("warning", self.warning, Kind.TEXT),) if self.warning else ()),
        )

    def tables(self) -> tuple[Table, ...]:
        schedule = self.schedule
        if schedule is None:
            return (Table("No pipeline", {}, (), self.reason),) if self.reason else ()
        columns = {
            "loop": Kind.VALUE,
            "layers": Kind.COUNT,
            "of a segment": Kind.COUNT,
            "begins": Kind.TEXT,
            "stays on a device": Kind.BYTES,
            "sent a tick": Kind.BYTES,
            "of the whole batch": Kind.BYTES,
            "added up": Kind.COUNT,
            "each device has its part of": Kind.TEXT,
        }
        rows = tuple(
            (
                Described.of(each.found.loop.op),
                each.found.layers,
                each.segment,
                "first device" if each.found.slope == 1 else "last device",
                each.stack_bytes,
                each.tick_bytes,
                each.batch_bytes,
                len(each.added),
                " and ".join((self.axis.name if self.axis else "", *each.axes)),
            )
            for each in self.decided
        )
        return (Table("Loops that are pipelines", columns, rows), _drawn(schedule))


def _drawn(schedule: PipelineSchedule) -> Table:
    """Draws the schedule: devices by ticks, each with its microbatch."""
    text = (
        f"{pluralize(schedule.ticks, 'tick')}: microbatches in the order in which a device takes "
        f"them, idle ones as dots. A device is idle in {schedule.stages - 1} of them, "
        f"{percent(schedule.bubble)}."
    )
    if schedule.ticks > _MOST_DRAWN:
        return Table("Schedule", {}, (), text)
    columns = {"device, by its place": Kind.COUNT, "microbatch in each tick": Kind.DRAWING}
    return Table("Schedule", columns, tuple(schedule.picture()), text)


def plan_pipeline(module: ir.Module, settings: PipelineSettings, target: Target) -> PipelinePlan:
    """Plans a module; pure."""
    try:
        axis = StageAxis.of(module, settings.axis)
        if axis is None or axis.count < 2:
            return PipelinePlan((), reason="there is one device to run the layers on")
        planner = PipelinePlanner(module, axis, settings, target)
        loops = planner.loops()
    except (_NothingToDoError, walk.NoEntryError) as error:
        return PipelinePlan((), reason=str(error))
    except NotPossibleError as error:
        why = error.reason if error.op is None else f"{site(error.op)}: {error.reason}"
        return PipelinePlan((), reason=why, refusal=f"{upper_first(why)}.")
    block = walk.entry_function(module).regions[0].blocks[0]
    return PipelinePlan(
        loops,
        axis=axis,
        first_channel=next_channel(module),
        instead=planner.choice.instead(loops),
        warning=" ".join(f"{each}." for each in planner.choice.warnings(loops, block)),
    )


class PipelinePlanner:
    """Plans for one module. Raises NotPossibleError."""

    def __init__(
        self, module: ir.Module, axis: StageAxis, settings: PipelineSettings, target: Target
    ) -> None:
        self._module = module
        self._axis = axis
        self._settings = settings
        self._shardings = Shardings.of(module)
        self._made: set[ir.Value] = set()
        """Stacks that loops over layers make."""
        self.choice = ScheduleChoice(
            axis, self._shardings, target, self._made, settings.accumulate_in
        )
        self._odd: NotPossibleError | None = None
        """Why the first loop that reads stacks on the axis is not one over layers."""

    def loops(self) -> tuple[PipelinedLoop, ...]:
        found: list[LoopAndBatch] = []
        programs: list[Program] = []
        for program in self._programs():
            for loop, node in _loops_of(program):
                layers = self._layer_loop(loop, node, program)
                if layers is None:
                    continue
                check_body(node)
                batch = batch_of(layers, program, self._shardings, self._axis, self._made)
                self._check_carried(layers, batch)
                found.append((layers, batch))
                programs.append(program)
                self._made.update(loop.op.results[stack.number] for stack in loop.stacks)
        if not found:
            raise self._no_loop()
        settings, rule = self._settings, self._settings.accumulate_in
        schedule = self.choice.schedule(found, settings.microbatches, settings.repeats)
        axis, shardings = self._axis, self._shardings
        loops: list[PipelinedLoop] = []
        for number, ((layers, batch), program) in enumerate(zip(found, programs, strict=True)):
            loops.append(
                pipelined_loop(
                    number, layers, program, batch, schedule, rule, shardings, axis, loops
                )
            )
        return tuple(loops)

    def _programs(self) -> Iterator[Program]:
        """Yields the step, and the bodies of its loops, e.g. that over microbatches.

        Bodies of loops over layers are left out.
        """
        entry = walk.entry_function(self._module).regions[0].blocks[0]
        waiting = [entry]
        while waiting:
            block = waiting.pop(0)
            program = Program(block)
            program.module = self._module
            yield program
            waiting += [
                loop.body
                for loop, node in _loops_of(program)
                if node.flops and not self._has_stacks(loop, node, program)
            ]

    def _has_stacks(self, loop: CountedLoop, node: Node, program: Program) -> bool:
        return any(self._is_on_axis(each.value) for each in stacks_read(loop, node, program))

    def _is_on_axis(self, value: ir.Value) -> bool:
        """Whether layers of a stack are, or will be, on the devices of the axis."""
        if value in self._made:
            return True
        placement = self._shardings.placement(value)
        if placement is None or not placement.axes:
            return False
        first = placement.axes[0]
        return bool(first) and first[0].name == self._axis.name and not first[0].part

    def _layer_loop(self, loop: CountedLoop, node: Node, program: Program) -> LayerLoop | None:
        """Reads the loop as one over layers; None where its layers are not on the axis."""
        if not any(is_read(result) for result in loop.op.results):
            return None
        read = tuple(stacks_read(loop, node, program))
        stacks = {each.value for each in read}
        given = [(loop.body.arguments[each], loop.op.operands[each]) for each in loop.invariant]
        given += [(program.values[each], program.values[each]) for each in node.captures]
        is_over_layers = any(self._is_on_axis(each.value) for each in read)
        for inside, value in given:
            if value in stacks or not self._is_on_axis(value):
                continue
            reader = odd_reader(loop, inside)
            if reader is None:
                continue
            error = NotPossibleError(
                f"it reads {value.type}, which is sharded along its layers over "
                f"{self._axis.name}, otherwise than the layer of the loop's iteration: a pipeline "
                "takes a scan that reads one layer in each iteration",
                reader,
            )
            if is_over_layers:
                raise error
            # A loop around one over layers, e.g. that over microbatches, passes the stack to it.
            if reader.name != "stablehlo.while":
                self._odd = self._odd or error
        if not is_over_layers:
            return None
        return layer_loop(loop, node, read)

    def _check_carried(self, found: LayerLoop, batch: LoopBatch) -> None:
        """Raises NotPossibleError where layers themselves would travel."""
        index = batch.flow.program.index
        for number in found.carried:
            value = found.loop.op.operands[number]
            layout = batch.flow.of(index[found.loop.op.results[number]]).layout
            is_batch = layout is not None and layout.axis == 0
            if shape_of(value)[:1] == [found.layers] and self._is_on_axis(value) and not is_batch:
                raise NotPossibleError(
                    f"it carries {value.type}, which is sharded along its layers over "
                    f"{self._axis.name}, and reads or writes it otherwise than one layer in each "
                    "iteration",
                    found.loop.op,
                )

    def _no_loop(self) -> NotPossibleError:
        """Says why no loop over layers is sharded over the axis."""
        if self._odd is not None:
            return self._odd
        name = self._axis.name
        for program in self._programs():
            for loop, node in _loops_of(program):
                read = list(stacks_read(loop, node, program))
                if node.flops and read:
                    largest = max(read, key=lambda each: tensor_bytes(each.value.type) or 0)
                    return NotPossibleError(
                        f"no loop reads stacks that are sharded along their layers over {name}. "
                        f"This one reads {pluralize(len(read), 'stack')} of {loop.trip_count} "
                        f"layers, of which every device of {name} has all, such as "
                        f"{largest.value.type}: shard them along axis 0, as P('{name}')",
                        loop.op,
                    )
        block = walk.entry_function(self._module).regions[0].blocks[0]
        stacks = [value for value in block.arguments if self._is_on_axis(value)]
        if stacks:
            reader = next((use.owner.operation for use in stacks[0].uses), None)
            return NotPossibleError(
                f"no loop reads {stacks[0].type}, which is sharded along axis 0 over {name}: are "
                "the layers unrolled? A pipeline takes a scan over stacked layers",
                reader,
            )
        raise _NothingToDoError(f"no loop is over layers on {name}")


class _NothingToDoError(Exception):
    """A program without layers, which is not reported."""


def _loops_of(program: Program) -> list[tuple[CountedLoop, Node]]:
    nodes = {walk.key(node.op): node for node in program.root.nodes}
    return [(loop, nodes[walk.key(loop.op)]) for loop in counted_loops(program.block)]
