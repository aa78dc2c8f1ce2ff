"""The plan of `accumulate` for a module: the loops, or why there are none."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from jax.extend.mlir import ir

from ..accumulate_in_place import AccumulateInPlace, DeviceSums
from ..analysis.dimension_flow.result import DimensionFlow, Seed, site
from ..analysis.dimension_flow.solve import dimension_flow
from ..analysis.memory_model.targets import memory_rules
from ..analysis.memory_model.tracer import MemoryPrediction, predict
from ..analysis.program import Program
from ..analysis.shardings.exchanges import exchanges_of
from ..analysis.shardings.propagation import Remembered
from ..analysis.shardings.shardings import Shardings
from ..analysis.signatures.signature import AxisLayout, Combine
from ..framework import base
from ..framework.errors import NotPossibleError
from ..framework.feedback import Attempt, Prediction
from ..framework.options import Axes
from ..framework.tables import Fact, Kind, Table
from ..framework.target import Target
from ..framework.text import pluralize, size, upper_first
from ..ir import mesh, walk
from ..ir.clone import clone_module
from ..ir.product_terms import product_behind
from ..ir.shardings import ValueSharding
from ..ir.types import tensor_bytes
from ..ir.values import defining_op, shape_of
from ..phase_loops.devices import DeviceParts
from ..phase_loops.exits import AccumulatorRule, Leaves
from ..phase_loops.gathers import Gather, gathers_of
from ..phase_loops.plan import LOOP_COLUMNS, LoopsPlan, plan_loops
from ..phase_loops.write import apply_loops
from .batch import ArgumentNames, NoStepError, choose, names_of
from .closed_loop import Correction, least_number, next_number, next_once
from .record import AccumulateRecord, Once

SCOPE = "hloom.accumulate"
"""Name-stack component of the operations that are added."""

REMADE_BYTES = 2**16
"""Smaller values are computed from the parameters once, before the loop: kernels for little
memory."""

_LITTLE = 0.25
"""Sums of less than this share of a step's memory are not modelled: they cannot raise it much."""

_LENT = 0.25
"""The share of the memory saved that may be used to send less, where there is no budget."""

_ONCE = {
    Once.GATHERS: "parameters gathered once",
    Once.SUMS: "parameters gathered and gradients reduced once",
}

_RAISED = "which take more memory than one by the model"

_MODEL_ERROR = 1.1
"""The factor by which the model may be off."""

_LEAST_TOLD = 2**20
"""Fewer bytes than these are not reported."""


@dataclass(frozen=True)
class AccumulatePlan(base.PlanBase):
    """The loops over the microbatches.

    Attributes:
      loops: None where the program is unchanged.
      batch: the axes that are divided, for users; empty where none was found.
      reason: why there are no loops; empty where there are.
      refusal: the same reason, if the user requested the loops and has to know.
      record: the record for later plans.
      raised: returns the temporary memory by the model, before and after, if that rises; for text.
    """

    loops: LoopsPlan | None = None
    batch: str = ""
    reason: str = ""
    refusal: str = ""
    record: AccumulateRecord = field(default_factory=AccumulateRecord)
    raised: Callable[[], tuple[int, int] | None] = field(
        default=lambda: None, repr=False, compare=False
    )

    @property
    def empty(self) -> bool:
        return self.loops is None

    def summary(self) -> str:
        if self.loops is None:
            return f"nothing to accumulate: {self.reason}"
        sums = [found for found in self.loops.exits if found.leaves is Leaves.ACCUMULATED]
        loops = len(self.loops.flow.phases)
        text = (
            f"{self._microbatches(self.loops)} along {self.batch}: {pluralize(loops, 'loop')}, "
            f"{pluralize(len(sums), 'value')} accumulated"
        )
        text += "".join(f", {each}" for each in self._once)
        if (prediction := self.record.prediction) is not None:
            text += f", {prediction.step_bytes / 2**20:.1f} MiB predicted for the step"
        if (raised := self.raised()) is not None:
            before, after = map(size, raised)
            text += f", {_RAISED}: {after} of temporaries for {before}"
        return text

    def effect(self) -> str:
        if self.loops is None:
            return ""
        text = self._microbatches(self.loops)
        if self.record.once:
            text += f", {_ONCE[self.record.once]}"
        return f"{text}, {_RAISED}" if self.raised() else text

    @property
    def _once(self) -> tuple[str, ...]:
        """Returns the work that is done once a step, as a text, if there is any."""
        if self.loops is None or not self.record.once:
            return ()
        gathered = size(sum(each.size for each in self.loops.gathers))
        return (f"{_ONCE[self.record.once]} ({gathered} gathered)",)

    @staticmethod
    def _microbatches(loops: LoopsPlan) -> str:
        return loops.schedule.text("microbatches")

    def facts(self) -> tuple[Fact, ...]:
        if self.loops is None:
            return ()
        return (
            Fact("batch", self.batch, Kind.TEXT),
            Fact("microbatches", self.loops.cut, Kind.TEXT),
            *(Fact("exchanges", text, Kind.TEXT) for text in self._once),
        )

    def tables(self) -> tuple[Table, ...]:
        if self.loops is None:
            return (Table("Nothing to accumulate", {}, (), self.reason),)
        return (Table("Loops over the microbatches", LOOP_COLUMNS, self.loops.rows),)

    def decisions(self) -> tuple[base.Decision, ...]:
        """Returns one decision: a step is accumulated, or it is not."""
        return () if self.empty else (base.Decision("accumulate", self.summary()),)

    def restricted_to(self, ids: Collection[str]) -> AccumulatePlan:
        return self if "accumulate" in ids else AccumulatePlan(reason="it is left out")


@dataclass(frozen=True)
class AccumulateSettings:
    """The settings of a plan; see the options of the pass."""

    axes: Axes | None
    phases: int
    accumulate_in: AccumulatorRule
    once: tuple[Once, Once]
    """The least and the most work that may be done once."""


_Places = tuple[tuple[int, AxisLayout], ...]
"""Arguments by number, and an axis in each."""


@dataclass(frozen=True)
class _Batch:
    """The divided dimension, by the numbers of arguments: it holds for any clone of the module.

    Attributes:
      places: arguments by number, and the axis of the batch in them.
      text: the same for users.
      flow: the flow of the batch in the module itself.
    """

    places: _Places
    text: str
    flow: DimensionFlow

    @property
    def size(self) -> int:
        return self.flow.size

    def flow_in(self, module: ir.Module) -> DimensionFlow:
        return self.flow if module is self.flow.program.module else _flow_of(self.places, module)


def _flow_of(places: _Places, module: ir.Module) -> DimensionFlow:
    program = Program.of(module)
    values = [program.values[number] for number in program.root.arguments]
    return dimension_flow(program, [Seed(values[number], layout) for number, layout in places])


_FOUND: Remembered[tuple[_Places, str] | AccumulatePlan] = Remembered()
"""The batches of the last modules, or why they have none: a missed budget's complaint asks for each
number of microbatches."""


class MicrobatchPlanner:
    """Plans for one module and for clones of it, whose batch is searched once."""

    def __init__(self, origin: ir.Module, target: Target, settings: AccumulateSettings) -> None:
        self._origin = origin
        self._target = target
        self._settings = settings
        self._modelled: dict[int, MemoryPrediction] = {}
        self._added: dict[Once, int] = {}
        self._device_sums = DeviceSums(origin)

    def fixed(self, module: ir.Module, microbatches: int) -> AccumulatePlan:
        """Returns the plan for a number of microbatches; for the most possible, if that is less."""
        batch = self._batch
        if isinstance(batch, AccumulatePlan):
            return batch
        number = min(microbatches, batch.size)
        try:
            once = self._once(batch, number)
        except NotPossibleError as error:
            return _refused(_not_loopable(error), batch.text)
        record = AccumulateRecord(microbatches=number, once=once)
        plan = self._planned(module, batch, number, record)
        return replace(plan, raised=lambda: self._raised(batch, plan))

    def _once(self, batch: _Batch, number: int) -> Once:
        """Returns the work done once without a budget: work that takes little of the saved memory.

        The available memory is unknown then, and the user requests microbatches to take less of it.
        """
        added = self._added_by(batch)
        if len(added) == 1 or number == 1:
            return min(added)
        whole, parts = (self._predicted(batch, each).temp_bytes for each in (1, number))
        lent = (whole - parts) * _LENT
        return max((once for once, size in added.items() if size <= lent), default=min(added))

    def _raised(self, batch: _Batch, plan: AccumulatePlan) -> tuple[int, int] | None:
        """Returns the temporary memory before and after, by the model; None where it is not raised.

        It is raised where sums take more than the activations of the rest of the batch did. Sums
        that are small beside the step's memory are not modelled.
        """
        if plan.loops is None:
            return None
        before = self._predicted(batch, 1).temp_bytes
        if plan.loops.carried_bytes < before * _LITTLE:
            return None
        after = self._predicted(batch, plan.record.microbatches).temp_bytes
        after += self._added_by(batch)[plan.record.once]
        is_raised = after > max(before * _MODEL_ERROR, before + _LEAST_TOLD)
        return (before, after) if is_raised else None

    @property
    def around_bytes(self) -> int | None:
        """Returns bytes of arguments and results by the model; None without a batch to divide."""
        batch = self._batch
        if isinstance(batch, AccumulatePlan):
            return None
        whole = self._predicted(batch, 1)
        return whole.step_bytes - whole.temp_bytes

    def within(
        self,
        module: ir.Module,
        limit_bytes: int | None,
        attempts: Sequence[Attempt[AccumulateRecord]],
        *,
        least: bool = False,
    ) -> AccumulatePlan:
        """Returns the plan after these attempts, for as much temporary memory or for the least.

        It is the unmodified program where the memory that the budget bounds is unknown.
        """
        batch = self._batch
        if isinstance(batch, AccumulatePlan):
            return batch
        possible = tuple(n for n in range(1, batch.size + 1) if batch.size % n == 0)
        known = _known(attempts)

        def model(number: int) -> int:
            if number not in known:
                known[number] = self._predicted(batch, number).temp_bytes
            return known[number]

        number, once = 1, Once.NOTHING
        try:
            added = self._added_by(batch)
            expected = Correction(model, attempts, added)
            if least:
                number = least_number(possible, expected)
                once = expected.least_once if number > 1 else once
            elif limit_bytes is not None:
                number = next_number(possible, expected, attempts, limit_bytes)
                once = next_once(number, expected, limit_bytes)
        except NotPossibleError as error:
            return _refused(_not_loopable(error), batch.text)
        around = self.around_bytes
        if attempts:
            around = attempts[0].step_bytes - attempts[0].temp_bytes
        assert around is not None
        temp_bytes = int(expected(number, once if number > 1 else None))
        record = AccumulateRecord(
            prediction=Prediction(around + temp_bytes, temp_bytes, 0.0),
            microbatches=number,
            possible=possible,
            modelled=tuple(sorted(known.items())),
            once=once,
            added=tuple(sorted(added.items())) if len(added) > 1 else (),
        )
        why = "no number of microbatches takes less memory than the whole batch"
        if limit_bytes is None and not least:
            why = "what memory there is is not known: give microbatches= or a budget="
        elif limit_bytes is not None and expected(1) <= limit_bytes:
            why = (
                "how many? The whole batch holds the budget; accumulate{microbatches=8} divides "
                "it all the same"
            )
        return self._planned(module, batch, number, record, why)

    def _planned(
        self,
        module: ir.Module,
        batch: _Batch,
        number: int,
        record: AccumulateRecord,
        why_whole: str = "one microbatch is asked for, which is the whole batch",
    ) -> AccumulatePlan:
        if number == 1:
            return AccumulatePlan(batch=batch.text, reason=why_whole, record=record)
        try:
            loops = self._loops(batch, module, number, record.once)
        except NotPossibleError as error:
            return _refused(_not_loopable(error), batch.text)
        return AccumulatePlan(loops, batch.text, record=record)

    def _loops(
        self, batch: _Batch, module: ir.Module, number: int, once: Once = Once.NOTHING
    ) -> LoopsPlan:
        flow = batch.flow_in(module)
        plan = plan_loops(
            flow,
            number,
            accumulate_in=self._settings.accumulate_in,
            remade_bytes=REMADE_BYTES,
            gathers=self._gathers if once else (),
            by_parts=once is not Once.GATHERS,
        )
        is_run = AccumulateInPlace.nothing_on(self._target.platform) is None
        plan = replace(plan, widens_moved=is_run)
        values = batch.flow.program.values
        parts = plan.parts
        if parts is None:
            return plan.with_exits(
                lambda found: replace(found, rounds=self._is_sent(values[found.number]))
            )
        # Each device adds up by itself, and sends its sum once.
        return plan.with_exits(
            lambda found: (
                replace(found, scattered=self._scattered(parts, values[found.number]))
                if found.flow.combine is Combine.SUM
                else found
            )
        )

    def _scattered(self, parts: DeviceParts, value: ir.Value) -> int | None:
        """Returns the axis along which devices have parts of a value of the origin."""
        placement = self._shardings.placement(value)
        if placement is None:
            return None
        return _scattered_axis(parts, placement, value.type, self._origin.operation)

    def _added_by(self, batch: _Batch) -> dict[Once, int]:
        """Returns the work that may be done once, and the bytes that it adds, as far as allowed."""
        if not self._added:
            added = {Once.NOTHING: 0}
            least, most = self._settings.once
            for once in (Once.GATHERS, Once.SUMS) if self._gathers and batch.size > 1 else ():
                plan = self._loops(batch, self._origin, 2, once)
                if not plan.gathers or (once is Once.SUMS and plan.parts is None):
                    break
                added[once] = sum(each.added_bytes for each in plan.gathers)
                if once is Once.SUMS:
                    added[once] += self._whole_bytes(batch, plan)
            asked = {once: size for once, size in added.items() if least <= once <= most}
            highest = max(once for once in added if once <= most)
            self._added = asked or {highest: added[highest]}
        return self._added

    def _whole_bytes(self, batch: _Batch, plan: LoopsPlan) -> int:
        """Returns the additional bytes of sums that are whole on each device, and of gradients of a
        microbatch that a loop over layers stacks before they are added."""
        found_bytes = 0
        for found in plan.exits:
            if found.leaves is Leaves.ACCUMULATED:
                value = batch.flow.program.values[found.number]
                maker = defining_op(value)
                is_stacked = maker is not None and maker.name == "stablehlo.while"
                stacked_bytes = (tensor_bytes(value.type) or 0) if is_stacked else 0
                whole_bytes = plan.bytes_of(found) + stacked_bytes
                found_bytes += int(whole_bytes * (1 - self._shardings.share(value)))
        return found_bytes

    @functools.cached_property
    def _gathers(self) -> tuple[Gather, ...]:
        batch = self._batch
        if isinstance(batch, AccumulatePlan):
            return ()
        flow, shardings = batch.flow, self._shardings
        exchanges = functools.partial(exchanges_of, self._origin)
        return gathers_of(flow, shardings, exchanges, batch_axes(flow, shardings))

    @functools.cached_property
    def _shardings(self) -> Shardings:
        return Shardings.of(self._origin)

    def _is_sent(self, value: ir.Value) -> bool:
        """Whether a value of the origin is a product whose sums devices exchange."""
        found = product_behind(value)
        return found is not None and self._device_sums.are_sent(found[0])

    @functools.cached_property
    def _batch(self) -> _Batch | AccumulatePlan:
        flows: list[DimensionFlow] = []
        asked = self._settings.axes, self._settings.phases
        found = _FOUND.of(self._origin, lambda: self._searched(flows), asked=asked)
        if isinstance(found, AccumulatePlan):
            return found
        places, text = found
        return _Batch(places, text, flows[0] if flows else _flow_of(places, self._origin))

    def _searched(self, flows: list[DimensionFlow]) -> tuple[_Places, str] | AccumulatePlan:
        """Returns the batch, whose flow is added to ``flows``, or why there is none."""
        try:
            program = Program.of(self._origin)
            trial = choose(program, self._settings.axes, self._settings.phases)
        except (NoStepError, walk.NoEntryError) as error:
            return AccumulatePlan(reason=str(error))
        except NotPossibleError as error:
            return _refused(str(error))
        flows.append(trial.flow)
        places = [(seed.value, seed.layout) for seed in trial.flow.seeds]
        text = names_of(ArgumentNames(program), [(value, each.axis) for value, each in places])
        numbers = [(ir.BlockArgument(value).arg_number, layout) for value, layout in places]
        return tuple(numbers), text

    def _predicted(self, batch: _Batch, number: int) -> MemoryPrediction:
        if number not in self._modelled:
            module = self._origin
            if number > 1:
                module = clone_module(module)
                with module.context, ir.Location.unknown():
                    apply_loops(self._loops(batch, module, number), SCOPE)
            self._modelled[number] = predict(module, rules=memory_rules(self._target))
        return self._modelled[number]


def _known(attempts: Sequence[Attempt[AccumulateRecord]]) -> dict[int, int]:
    return dict(attempts[-1].record.modelled) if attempts else {}


def _not_loopable(error: NotPossibleError) -> str:
    return error.reason if error.op is None else f"{site(error.op)}: {error.reason}"


def _refused(why: str, batch: str = "") -> AccumulatePlan:
    refusal = f"{upper_first(why).removesuffix('.')}."
    return AccumulatePlan(batch=batch, reason=why, refusal=refusal)


def _scattered_axis(
    parts: DeviceParts, placement: ValueSharding, type_: ir.Type, op: ir.Operation
) -> int | None:
    """Returns the axis along which a sum of this placement has a part on each device.

    None where it is placed otherwise, or the parts are not in the order of the devices.
    """
    if placement.mesh != str(parts.mesh) or len(placement.counts) != 1:
        return None
    [axis] = placement.counts
    along = tuple(each.name for each in placement.axes[axis] if not each.part)
    found = mesh.resolved(parts.mesh, op)
    if found is None or len(found.device_ids) or shape_of(type_)[axis] % parts.count:
        return None
    in_order = [name for name in mesh.axis_sizes(found) if name in parts.axes]
    return axis if along == parts.axes == tuple(in_order) else None


def batch_axes(flow: DimensionFlow, shardings: Shardings) -> frozenset[str]:
    """Returns the axes of the mesh that the dimension is sharded along in the given values."""
    names: set[str] = set()
    for seed in flow.seeds:
        placement = shardings.placement(seed.value)
        if placement is not None:
            names.update(axis.name for axis in placement.axes[seed.layout.axis])
    return frozenset(names)
