"""Runs the programs of stages in the order of a schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import jax

from hloom.dumps.select.settings import as_part
from hloom_steps.mpmd.batch import Layout, Microbatches
from hloom_steps.mpmd.executables import Executable, Function, Sums, compiled_program, sum_shape
from hloom_steps.mpmd.places import StagePlace
from hloom_steps.mpmd.plans import told_of
from hloom_steps.mpmd.schedules import Task
from hloom_steps.mpmd.timeline import Send, Timeline
from hloom_steps.mpmd.trace import Trace
from hloom_steps.mpmd.transports import Parcel, Transport
from hloom_steps.stages.programs import Batch, Gradient, Parameter, StagePrograms, StageValue

StageArrays = Mapping[Parameter, jax.Array]
"""Parameters of a stage, or their gradients."""


@dataclass(frozen=True, eq=False)
class Driver:
    """The programs of a step on their devices.

    Attributes:
      stages: the programs, with the values that they read and return.
      timeline: the order in which they run.
      layout: the division of a batch.
      places: the devices of each stage.
      executables: the compiled programs of this process's stages.
      sums: the sums of gradients by stage, of this process's stages.
      parameters: by stage, of all processes, the shapes of the parameters that it holds.
      gradients: by stage, the parameters of which it computes a gradient, or a term of one.
      values: the shapes of a microbatch's values on a device, by number.
      outputs: the shape of each output, by number, and the stage that returns it.
      terms: by stage and parameter, the gradients of the same slices on all stages, in the stages'
        order.
      share: the share that a microbatch on a device has in the loss.
      transport: moves values between stages.
    """

    stages: StagePrograms
    timeline: Timeline
    layout: Layout
    places: tuple[StagePlace, ...]
    executables: Mapping[tuple[int, str], Executable]
    sums: Mapping[int, Sums]
    parameters: tuple[Mapping[Parameter, jax.ShapeDtypeStruct], ...]
    gradients: tuple[Mapping[Parameter, jax.ShapeDtypeStruct], ...]
    values: Mapping[int, jax.ShapeDtypeStruct]
    outputs: Mapping[int, tuple[jax.ShapeDtypeStruct, int]]
    terms: Mapping[tuple[int, Parameter], Sequence[tuple[int, Parameter]]]
    share: float
    transport: Transport

    @classmethod
    def of(
        cls,
        stages: StagePrograms,
        functions: Mapping[str, Function],
        timeline: Timeline,
        layout: Layout,
        places: tuple[StagePlace, ...],
        share: float,
        transport: Transport,
    ) -> Driver:
        """Compiles the programs of this process's stages."""
        executables: dict[tuple[int, str], Executable] = {}
        for program in stages.programs:
            place = places[program.stage]
            if place.is_here:
                with as_part("stages", partial(told_of, program, stages, layout.paths, place)):
                    executables[program.stage, str(program.kind)] = compiled_program(
                        program, functions[program.function], place, layout.in_rows
                    )
        parameters: list[dict[Parameter, jax.ShapeDtypeStruct]] = [{} for _ in places]
        gradients: list[dict[Parameter, jax.ShapeDtypeStruct]] = [{} for _ in places]
        values: dict[int, jax.ShapeDtypeStruct] = {}
        outputs: dict[int, tuple[jax.ShapeDtypeStruct, int]] = {}
        for program in stages.programs:
            function = functions[program.function]
            for read, shape in zip(program.reads, function.arguments, strict=True):
                if isinstance(read, Parameter):
                    parameters[program.stage][read] = shape
            for given, shape in zip(program.gives, function.results, strict=True):
                if isinstance(given, Gradient):
                    parameters[program.stage][given.parameter] = shape
                    gradients[program.stage][given.parameter] = shape
                elif isinstance(given, StageValue):
                    values[given.number] = shape
                else:
                    outputs[given.number] = shape, program.stage
        terms = _terms(parameters, gradients)
        readers = Counter(term for others in terms.values() for term in others)
        sums = {
            stage: Sums(f"stage{stage}", made, place, share, {
                each for each in made
                if terms[stage, each] == [(stage, each)] and readers[stage, each] == 1
            })
            for stage, (made, place) in enumerate(zip(gradients, places, strict=True))
            if place.is_here
        }  # fmt: skip
        return cls(stages, timeline, layout, places, executables, sums, tuple(parameters),
                   tuple(gradients), values, outputs, terms, share, transport)  # fmt: skip

    def parcel(self, send: Send) -> Parcel:
        """Returns the arrays that a transfer moves, with their places."""
        source = self.places[send.task.stage]
        shapes = tuple(
            jax.ShapeDtypeStruct((source.devices, *shape.shape), shape.dtype)
            for shape in map(self.values.__getitem__, send.values)
        )
        stages = send.task.stage, send.to
        return Parcel(send.what, stages, shapes, source, self.places[send.to], is_divided=True)

    def _gradient_parcel(self, source: int, to: int, parameter: Parameter) -> Parcel:
        shape = sum_shape(self.gradients[source][parameter])
        what = f"the gradient of {self.layout.paths.get(parameter.leaf, parameter.leaf)}"
        places = self.places[source], self.places[to]
        return Parcel(what, (source, to), (shape,), *places, is_divided=False)

    def prepare(self) -> None:
        """Compiles the programs of transfers, so that no step waits for a compiler."""
        for sends in self.timeline.sends.values():
            for send in sends:
                self.transport.prepare(self.parcel(send))
        for (stage, _), others in self.terms.items():
            for source, other in others:
                if source != stage:
                    self.transport.prepare(self._gradient_parcel(source, stage, other))

    def run(
        self, parameters: Sequence[StageArrays], batch: Microbatches, trace: Trace
    ) -> tuple[dict[int, list[jax.Array]], list[dict[Parameter, jax.Array]]]:
        """Runs a step; returns the outputs of each microbatch by number, and the gradients by
        stage.

        The results of other processes' stages are left out. When this returns, all work is
        dispatched; it may still be running.
        """
        step = _Step(self, parameters, batch, trace)
        for task in self.timeline.order:
            step.do(task)
        return step.outputs, self._finished(step.sums, trace)

    def _finished(
        self, sums: Mapping[int, Mapping[Parameter, jax.Array]], trace: Trace
    ) -> list[dict[Parameter, jax.Array]]:
        """Computes the gradients of a step from sums over its microbatches."""
        totals: list[dict[Parameter, jax.Array]] = [{} for _ in self.places]
        for stage, summed in sums.items():
            totals[stage] = self.sums[stage].totals(summed)
        # Every process adds terms in the order of stages, so that copies stay bit-identical.
        there: dict[tuple[int, int, Parameter], jax.Array] = {
            (stage, stage, each): value
            for stage, total in enumerate(totals)
            for each, value in total.items()
        }
        for (stage, _), others in self.terms.items():
            for source, other in others:
                if source == stage or (stage, source, other) in there:
                    continue
                parcel = self._gradient_parcel(source, stage, other)
                given = [totals[source][other]] if other in totals[source] else []
                moved = self.transport.send(parcel, given)
                trace.sends.append(parcel.name)
                if moved:
                    there[stage, source, other] = moved[0]
        finished: list[dict[Parameter, jax.Array]] = [{} for _ in self.places]
        for (stage, parameter), others in self.terms.items():
            if self.places[stage].is_here:
                found = [(other, there[stage, source, other]) for source, other in others]
                shape = self.parameters[stage][parameter]
                finished[stage][parameter] = self.sums[stage].combined(parameter, shape, found)
        return finished


class _Step:
    """A running step."""

    def __init__(
        self,
        driver: Driver,
        parameters: Sequence[StageArrays],
        batch: Microbatches,
        trace: Trace,
    ) -> None:
        self._driver, self._parameters, self._batch, self._trace = driver, parameters, batch, trace
        self._values: list[dict[tuple[int, int], jax.Array]] = [{} for _ in driver.places]
        """For each stage the values on it, by microbatch and number."""
        self.sums = {stage: sums.zeros() for stage, sums in driver.sums.items()}
        self.outputs: dict[int, list[jax.Array]] = {number: [] for number in driver.outputs}
        self._shapes: dict[int, jax.ShapeDtypeStruct] = {}
        self._begun: set[tuple[int, int]] = set()
        trace.live = [0] * len(driver.places)

    def do(self, task: Task) -> None:
        """Starts a program, and sends its results that other stages read."""
        driver, trace = self._driver, self._trace
        trace.tasks.append(task)
        if driver.places[task.stage].is_here:
            self._start(task)
        values = self._values[task.stage]
        for send in driver.timeline.sends[task]:
            keys = [(task.microbatch, number) for number in send.values]
            moved = driver.transport.send(
                driver.parcel(send), [values[key] for key in keys if key in values]
            )
            trace.sends.append(str(send))
            self._values[send.to].update(zip(keys, moved, strict=bool(moved)))
        self._begun.add((task.stage, task.microbatch))
        live = {number for number, _ in values if (task.stage, number) in self._begun}
        trace.live[task.stage] = max(trace.live[task.stage], len(live))
        for number in driver.timeline.last_reads[task]:
            values.pop((task.microbatch, number), None)

    def _start(self, task: Task) -> None:
        driver, values = self._driver, self._values[task.stage]
        executable = driver.executables[task.stage, str(task.kind)]
        leaves = [each.leaf for each in executable.reads if isinstance(each, Batch)]
        place = driver.places[task.stage]
        batch = dict(zip(leaves, self._batch.on(place, task.microbatch, leaves), strict=True))
        given = [
            self._parameters[task.stage][each]
            if isinstance(each, Parameter)
            else batch[each.leaf]
            if isinstance(each, Batch)
            else values[task.microbatch, each.number]
            for each in executable.reads
        ]
        sums = self.sums[task.stage]
        with self._trace.starting(task):
            added, made = executable.compiled([sums[each] for each in executable.sums], given)
        sums.update(zip(executable.sums, added, strict=True))
        for each, array in zip(executable.gives, made, strict=True):
            if isinstance(each, StageValue):
                values[task.microbatch, each.number] = array
            else:
                self.outputs[each.number].append(array)


def _terms(
    parameters: Sequence[Mapping[Parameter, jax.ShapeDtypeStruct]],
    gradients: Sequence[Mapping[Parameter, jax.ShapeDtypeStruct]],
) -> dict[tuple[int, Parameter], list[tuple[int, Parameter]]]:
    """Returns, for each parameter of a stage, the gradients of the same slices on all stages, in
    the stages' order."""
    return {
        (stage, parameter): [
            (source, other)
            for source, others in enumerate(gradients)
            for other in others
            if parameter.overlaps(other)
        ]
        for stage, mine in enumerate(parameters)
        for parameter in mine
    }
