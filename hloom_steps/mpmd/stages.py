"""`hloom.stages` runs a loss as several programs on several devices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from hloom._jax.module_call import abstract, trace_state
from hloom.dumps.collect.divided import DividedStep
from hloom.passes.framework.errors import SpecError
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import Table
from hloom.plugin import flag_value
from hloom_steps.mpmd.batch import Layout, Microbatches
from hloom_steps.mpmd.cut import Call, cut
from hloom_steps.mpmd.driver import Driver
from hloom_steps.mpmd.job import StagesJob
from hloom_steps.mpmd.places import StagePlace, places_of
from hloom_steps.mpmd.plans import StagedPlan, schedule_table
from hloom_steps.mpmd.schedules import check_schedule, rows_of
from hloom_steps.mpmd.timeline import timeline_of
from hloom_steps.mpmd.trace import Trace, told
from hloom_steps.stages import Stages as StagesPass
from hloom_steps.stages.programs import Parameter, StagePrograms

Placed = tuple[dict[str, jax.Array], ...]
"""Parameters, or their gradients: the arrays of each stage, by name."""


def stages(
    loss: Callable[..., Any],
    stages: int = 4,
    microbatches: int = 8,
    schedule: str = "1f1b",
    meshes: Sequence[Mesh] | None = None,
    *,
    has_aux: bool = False,
    reduction: str = "mean",
    passes: str | None = None,
    timeout_s: float = 120.0,
) -> StagedLoss:
    """Returns a loss and its gradients as several programs on several devices: a pipeline of
    stages.

    The joint program of `loss(params, *batch)` and its gradients is cut where the fewest bytes
    cross, into stages of about equal time. Each stage has its own devices and parameters, a forward
    and a backward program, and is compiled by itself.

        step = hloom.stages(loss, stages=4, microbatches=8)
        params = step.place(params, batch)
        value, gradients = step(params, batch)
        print(step.plan)

    Args:
      loss: a function of parameters and of a batch whose arrays share their leading axis; it
        returns a scalar.
      stages: the number of stages, at least 2.
      microbatches: the number of equal parts of the batch.
      schedule: "1f1b", "gpipe", or "zero-bubble", which computes gradients of weights apart.
      meshes: the devices of each stage, as many for each stage, all of one process. They divide
        each microbatch between them. By default a stage has one device, in the order of
        `jax.devices()`.
      has_aux: whether the loss returns (loss, auxiliary output), and the step ((loss, auxiliary
        output), gradients), as `jax.value_and_grad` does. Each array of the auxiliary output has a
        new leading axis, of the parts of the batch, in order: a microbatch on one device of a stage
        is a part.
      reduction: the reduction of the loss over the examples of a batch, "mean" or "sum"; it is
        applied again to the parts' losses. The result differs from the whole batch's for any other
        loss, e.g. a mean over a mask, or one with batch statistics.
      passes: the passes that run on the step before the cut, e.g. "one-hot"; by default the spec of
        `jax_hloom`. `remat` plans each stage by itself after the cut, except with "off".
      timeout_s: with several processes, the seconds without progress after which a transfer raises
        an error that says which process waits for which.

    Raises ValueError or TypeError for a mistaken argument, SpecError for a mistaken spec.
    """
    if not callable(loss):
        raise TypeError(f"hloom.stages: wanted a function, got {type(loss).__name__}.")
    for name, count, least in (("stages", stages, 2), ("microbatches", microbatches, 1)):
        if not isinstance(count, int) or isinstance(count, bool) or count < least:
            raise ValueError(
                f"hloom.stages: {name}={count!r}: wanted a whole number of at least {least}."
            )
    if reduction not in ("mean", "sum"):
        raise ValueError(f"hloom.stages: reduction={reduction!r}: wanted 'mean' or 'sum'.")
    if not isinstance(timeout_s, int | float) or timeout_s <= 0:
        raise ValueError(f"hloom.stages: timeout_s={timeout_s!r}: wanted seconds, more than 0.")
    settings = _Settings(
        stages, microbatches, check_schedule(schedule), bool(has_aux), reduction == "mean", passes,
        timeout_s,
    )  # fmt: skip
    settings.before()
    return StagedLoss(loss, settings, None if meshes is None else tuple(meshes))


@dataclass(frozen=True)
class _Settings:
    stages: int
    microbatches: int
    schedule: str
    has_aux: bool
    is_mean: bool
    passes: str | None
    timeout_s: float

    def before(self) -> Pipeline:
        """Returns the passes that run before the cut. Raises SpecError."""
        spec, source = self.passes, "hloom.stages: passes"
        if spec is None:
            spec, source = flag_value(), "JAX_HLOOM"
        found = Pipeline.parse(spec or "off", source=source)
        if any(isinstance(each, StagesPass) for each in found.passes):
            raise SpecError(f"{source}={spec!r}: the cut into stages comes last by itself.")
        return found


class StagedLoss:
    """A loss that runs on several devices, the result of `stages`."""

    def __init__(
        self, loss: Callable[..., Any], settings: _Settings, meshes: tuple[Mesh, ...] | None
    ) -> None:
        self._loss, self._settings, self._meshes = loss, settings, meshes
        self._known: dict[Any, _Planned] = {}
        self._last: _Planned | None = None
        self._lock = threading.Lock()
        self._job: StagesJob | None = None
        self.trace = Trace()
        """The operations of the last call, in their order."""

    def place(self, params: Any, *batch: Any, **kwargs: Any) -> Placed:
        """Places parameters on the devices of the stages that read them.

        A parameter that several stages read is on each of them. In a job of several processes each
        process has those of its own stages. The batch, or `jax.ShapeDtypeStruct`s of one,
        determines where stages end; only the first call needs it.

        Raises ValueError where the first call has no batch, and what `stages` raises.
        """
        if batch or kwargs:
            planned = self._planned(Call.of(self._loss, params, batch, kwargs))
        elif self._last is None:
            raise ValueError(
                "hloom.stages: place(params) before any batch: where stages end depends on one. "
                "Call place(params, batch) with a batch, or with jax.ShapeDtypeStructs of one."
            )
        else:
            planned = self._last
        return planned.placed(params)

    def __call__(self, params: Placed, *batch: Any, **kwargs: Any) -> tuple[Any, Placed]:
        """Returns (loss, gradients); the gradients are placed as the parameters from `place`.

        With `has_aux` the loss is (loss, auxiliary output). In a job of several processes all call
        this with the same batch, each with its own parameters; all of them get the loss.

        Raises ValueError where parameters were not placed, or the batch cannot be divided;
        StagesError where another process has died, or does not connect.
        """
        last = self._last
        if last is None or not last.is_placed(params):
            raise ValueError(
                "hloom.stages: the parameters are not those that place gave. Call "
                "place(params, batch) once, and give on what it returns, or what an optimizer "
                "makes of it."
            )
        whole = last.unplaced_shapes(params)
        call = Call.of(self._loss, whole, batch, kwargs)
        planned = self._planned(call)
        if not planned.is_placed(params):
            raise ValueError(
                "hloom.stages: with a batch of other shapes the stages end elsewhere. Place the "
                "parameters again: place(gather(params), batch)."
            )
        self.trace = Trace()
        return planned.run(params, call.batch, self.trace)

    def gather(self, placed: Placed) -> Any:
        """Returns the tree of placed parameters, or gradients, in the host's memory.

        In a job of several processes all call this, and each gets the whole tree.
        """
        if self._last is None or not self._last.is_placed(placed):
            raise ValueError("hloom.stages: gather wants what place, or a call, has given.")
        return self._last.gathered(placed)

    def check(self, params: Placed, *batch: Any, **kwargs: Any) -> float:
        """Returns the relative error of the loss in stages against the whole batch's loss in one
        program.

        This is a test of `reduction`, for a batch whose loss, without gradients, fits one device
        beside all parameters. A loss that draws from a key always differs.

        Raises ValueError where the error is above 0.1 % and the rounding of the loss's type.
        """
        has_aux = self._settings.has_aux
        given, _ = self(params, *batch, **kwargs)
        loss = given[0] if has_aux else given
        found = float(np.asarray(loss.addressable_shards[0].data))
        whole = jax.jit(self._loss)(self.gather(params), *batch, **kwargs)
        whole = whole[0] if has_aux else whole
        wanted = float(whole)
        off = abs(found - wanted) / max(abs(wanted), float(jnp.finfo(whole.dtype).tiny))
        if off <= max(1e-3, 8 * float(jnp.finfo(whole.dtype).eps)):
            return off
        parts = self._settings.microbatches * self.plan.places[0].devices
        is_mean = self._settings.is_mean
        other = found * parts if is_mean else found / parts
        given, remedy = ("mean", "sum") if is_mean else ("sum", "mean")
        hint = "It is neither their mean nor their sum, or draws from a key."
        if abs(other - wanted) <= 1e-3 * abs(wanted):
            hint = f"It is their {remedy}: give reduction={remedy!r}."
        raise ValueError(
            f"hloom.stages: the loss of the whole batch is {wanted:.6g}, and the {given} of those "
            f"of its {parts} parts {found:.6g}. {hint}"
        )

    @property
    def plan(self) -> StagedPlan:
        """Returns the plan: programs, bytes, seconds, crossing values, the schedule.

        Raises ValueError before `place`.
        """
        if self._last is None:
            raise ValueError(
                "hloom.stages: there is no plan before place(params, batch), which makes it."
            )
        return self._last.plan

    def _planned(self, call: Call) -> _Planned:
        shapes = tuple((each.shape, each.dtype) for each in map(abstract, call.leaves))
        key = call.tree, shapes, trace_state(), self._settings.before()
        with self._lock:
            if key not in self._known:
                self._known[key] = self._new(call)
            self._last = self._known[key]
            return self._last

    def _new(self, call: Call) -> _Planned:
        settings = self._settings
        places = places_of(self._meshes, settings.stages)
        devices = places[0].devices
        layout = Layout.of(call.batch, dict(enumerate(call.paths)), settings.microbatches, devices)
        parts = {number: layout.part(number) for number in call.batch}
        rows = rows_of(settings.schedule, settings.stages, settings.microbatches)

        def tables(programs: StagePrograms) -> list[Table]:
            return [schedule_table(settings.schedule, programs, timeline_of(programs, rows))]

        programs, functions, divided, aux = cut(
            call, parts, settings.before(), StagesPass(
                stages=settings.stages, weights=settings.schedule == "zero-bubble",
                remat=settings.passes != "off",
            ),
            next(place.mesh.devices.flat[0] for place in places if place.is_here), tables,
            has_aux=settings.has_aux,
        )  # fmt: skip
        timeline = timeline_of(programs, rows)
        timed = timeline_of(programs, rows, lambda program: max(program.seconds, 1e-12))
        plan = StagedPlan(
            call.name, settings.schedule, settings.microbatches, programs, timeline, timed, places
        )
        share = 1 / layout.parts if settings.is_mean else 1.0
        if self._job is None:
            self._job = StagesJob.of(places, settings.timeout_s)
        self._job.agree(f"{programs.code} {[str(task) for task in timeline.order]}")
        driver = Driver.of(
            programs, functions, timeline, layout, places, share, self._job.transport
        )
        driver.prepare()
        stacked = (aux,) if settings.has_aux else None
        return _Planned(plan, driver, call, self._job, divided, stacked)


class _Planned:
    """The programs for a batch of one kind."""

    def __init__(
        self,
        plan: StagedPlan,
        driver: Driver,
        call: Call,
        job: StagesJob,
        divided: DividedStep,
        aux: tuple[Any] | None,
    ) -> None:
        self.plan, self._driver, self._job, self._divided = plan, driver, job, divided
        self._tree: Any = jax.tree.structure(jax.tree.unflatten(call.tree, call.leaves)[0][0])
        given = [abstract(leaf) for leaf in call.leaves[: call.parameters]]
        self._shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in given]
        self._paths = list(call.paths)
        self._names = [
            {self._name(each): each for each in driver.stages.parameters(stage)}
            for stage in range(driver.stages.count)
        ]
        share = driver.share

        def total(losses: list[jax.Array]) -> jax.Array:
            return jnp.sum(jnp.stack(losses)) * jnp.asarray(share, losses[0].dtype)

        place = driver.places[driver.outputs[0][1]]
        self._loss = jax.jit(total, out_shardings=place.whole)
        self._aux = aux
        self._stacked = [
            jax.jit(jnp.concatenate, out_shardings=driver.places[driver.outputs[number][1]].whole)
            for number in range(1, len(driver.outputs))
        ]

    def _name(self, parameter: Parameter) -> str:
        path = self._paths[parameter.leaf]
        if parameter.start is None:
            return path
        return f"{path}[{parameter.start}:{parameter.stop}]"

    def placed(self, params: Any) -> Placed:
        """Places parameters; raises ValueError where their tree or shapes differ from the planned
        ones."""
        leaves, tree = jax.tree.flatten(params)
        if tree != self._tree:
            raise ValueError(
                f"hloom.stages: place got parameters of the structure {tree}; wanted {self._tree}."
            )
        for given, shape, path in zip(leaves, self._shapes, self._paths, strict=False):
            leaf = abstract(given)
            if leaf.shape != shape.shape or leaf.dtype != shape.dtype:
                raise ValueError(
                    f"hloom.stages: place got {path} of {leaf.dtype}{list(leaf.shape)}; wanted "
                    f"{shape.dtype}{list(shape.shape)}."
                )
        return tuple(
            _put({name: _slices(leaves[each.leaf], each) for name, each in names.items()}, place)
            for names, place in zip(self._names, self._driver.places, strict=True)
        )

    def is_placed(self, params: Any) -> bool:
        """Whether parameters have the form that `placed` returns."""
        return (
            isinstance(params, tuple)
            and len(params) == len(self._names)
            and all(
                isinstance(held, dict) and held.keys() == (names.keys() if place.is_here else set())
                for held, names, place in zip(params, self._names, self._driver.places, strict=True)
            )
        )

    def unplaced_shapes(self, params: Placed) -> Any:
        """Returns the tree of parameters, as shapes."""
        for held, names, shapes in zip(params, self._names, self._driver.parameters, strict=True):
            for name, array in held.items():
                shape = shapes[names[name]]
                if array.shape != shape.shape or array.dtype != shape.dtype:
                    raise ValueError(
                        f"hloom.stages: {name} is {array.dtype}{list(array.shape)}; wanted "
                        f"{shape.dtype}{list(shape.shape)}, as it was placed."
                    )
        return jax.tree.unflatten(self._tree, self._shapes)

    def run(self, params: Placed, leaves: dict[int, Any], trace: Trace) -> tuple[Any, Placed]:
        """A step."""
        driver = self._driver
        arrays = [
            {names[name]: array for name, array in held.items()}
            for held, names in zip(params, self._names, strict=True)
        ]
        batch = Microbatches(driver.layout, leaves, self.plan.microbatches)

        def step() -> tuple[Any, Placed]:
            outputs, gradients = driver.run(arrays, batch, trace)
            return self._given(outputs), tuple(
                {name: held[each] for name, each in names.items()} if held else {}
                for held, names in zip(gradients, self._names, strict=True)
            )

        found = self._job.run(step)
        if self._divided.wants_run:
            self._divided.ran(told(self.plan, trace))
        return found

    def _given(self, outputs: Mapping[int, list[jax.Array]]) -> Any:
        """Computes the loss's result from those of the microbatches, in all processes."""
        found: list[jax.Array] = []
        for number, whole in enumerate([self._loss, *self._stacked]):
            shape, stage = self._driver.outputs[number]
            parts = outputs[number]
            if number:
                count = self.plan.microbatches * self._driver.places[stage].devices
                shape = jax.ShapeDtypeStruct((count, *shape.shape), shape.dtype)
            array = whole(parts) if parts else None
            what = "the auxiliary output" if number else "the loss"
            found.append(self._job.everywhere(what, array, shape, stage))
        if self._aux is None:
            return found[0]
        return found[0], jax.tree.unflatten(jax.tree.structure(self._aux[0]), found[1:])

    def gathered(self, placed: Placed) -> Any:
        """Returns the tree of the arrays placed on stages."""
        whole: dict[int, np.ndarray] = {}
        for stage, names in enumerate(self._names):
            for name, each in names.items():
                shape, of = self._driver.parameters[stage][each], self._shapes[each.leaf]
                array = self._job.on_host(name, placed[stage].get(name), shape, stage)
                if each.start is None:
                    whole[each.leaf] = array
                    continue
                if each.leaf not in whole:
                    whole[each.leaf] = np.zeros(of.shape, of.dtype)
                # An array that a device has whole contains these slices already.
                if whole[each.leaf].flags.writeable:
                    whole[each.leaf][each.start : each.stop] = array
        leaves = [jnp.asarray(whole[number]) for number in range(len(self._shapes))]
        return jax.tree.unflatten(self._tree, leaves)


def _slices(leaf: Any, parameter: Parameter) -> Any:
    return leaf if parameter.start is None else leaf[parameter.start : parameter.stop]


def _put(arrays: dict[str, Any], place: StagePlace) -> dict[str, jax.Array]:
    if not place.is_here or not arrays:
        return {}
    return jax.device_put(arrays, place.whole)
