"""Runs passes over a module: plan, apply, verify, each timed, and a range in JAX's profiler."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

from jax.extend.mlir import ir
from jax.profiler import TraceAnnotation

from ..ir.mesh import has_several_devices
from .base import Pass, Plan, PlanWithEffect, RefusingPlan, WarningPlan
from .errors import PassError, reason_of
from .feedback import Attempt, MeasuredPass, MeasuredPlan, Planner, PlanRecord
from .spec import parse_spec, print_spec
from .target import Target
from .text import pluralize


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disables the collection of cyclic garbage inside the block.

    Passes make no cycles, but lists by the hundred thousand, and scanning these repeatedly takes a
    quarter of their time. Those that are left count as old: the next collection, of young objects,
    would scan them all for a tenth of that time. Where a program has frozen objects, they are not
    touched.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class PassRun:
    """The record of one step.

    Attributes:
      name: the pass.
      summary: its plan in one line.
      effect: its change of the program, in a few words; empty where it changed nothing, or only
        prepared for others.
      plan: its plan as `Plan.to_json` returns it.
      empty: it had nothing to do; `apply` and the verifier did not run.
      rewrites: it changed the program, and did not only request compile options.
      plan_s, apply_s, verify_s: the seconds of each phase.
      record: the data that a measured pass needs of its plan later; None for others.
      requested: the spec names it, and it does more than to normalise for others.
      refusal: the part of the spec's request that the plan does not do; empty where none.
      warning: the flaw of its changes; empty where none.
    """

    name: str
    summary: str
    effect: str
    plan: dict[str, object] = dataclasses.field(repr=False, hash=False)
    empty: bool
    rewrites: bool
    plan_s: float
    apply_s: float
    verify_s: float
    record: PlanRecord | None = dataclasses.field(default=None, repr=False)
    requested: bool = True
    refusal: str = ""
    warning: str = ""

    @property
    def seconds(self) -> float:
        """Returns the sum of the seconds."""
        return self.plan_s + self.apply_s + self.verify_s


@dataclasses.dataclass(frozen=True)
class PipelineResult:
    """The record of a whole run.

    Attributes:
      runs: one for each step, in order.
      seconds: wall time of the run, observers included.
      changed: a step that does more than to prepare had something to do (`Pipeline.prepares`).
        Where False, continue with the module that the run's clone was copied from.
      rewritten: one of them changed the program, and did not only request compile options.
    """

    runs: tuple[PassRun, ...]
    seconds: float
    changed: bool
    rewritten: bool


class Observer(Protocol):
    """Watches a run, as IR printing and dumps do. It must not edit the module."""

    def before(self, index: int, step: Pass, module: ir.Module) -> None:
        """Observes the module before the step with this index, which counts from 0, plans."""

    def after(self, index: int, step: Pass, plan: Plan, module: ir.Module) -> None:
        """Observes the module after the step and the check of its result.

        The plan states what it stated before it was applied; the operations that it names may be
        erased by now.
        """


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """Passes in order. `str(pipeline)` is a spec that parses back to an equal pipeline."""

    passes: tuple[Pass, ...] = ()

    @classmethod
    def parse(cls, spec: str, *, source: str = "spec") -> Pipeline:
        """Returns the pipeline that `spec` describes; `source` names the spec's origin, for errors.

        Raises SpecError.
        """
        passes = list(parse_spec(spec, source=source))
        for at in range(len(passes)):
            for later in passes[at + 1 :]:
                passes[at] = passes[at].in_front_of(later)
            for earlier in passes[:at]:
                passes[at] = passes[at].behind(earlier)
        return cls(tuple(passes))

    def __str__(self) -> str:
        return print_spec(self.passes)

    def steps(self) -> tuple[Pass, ...]:
        """Returns the passes, each after those that it requires, which are added at most once."""
        steps: list[Pass] = []
        for step in self.passes:
            _require(step, steps)
            steps.append(step)
        return tuple(steps)

    def driver(self, platform: str) -> tuple[int, MeasuredPass[Any]] | None:
        """Returns the measured pass that decides on further attempts, and its index in `steps`.

        The first that has something to hold; where none has, the first that compares its plans;
        else the first measured pass. One that does nothing on the platform has no plans to try.
        """
        measured = [
            (index, step)
            for index, step in enumerate(self.steps())
            if isinstance(step, MeasuredPass) and step.nothing_on(platform) is None
        ]
        # Python's sort is stable: of equal passes the first stays first.
        measured.sort(key=lambda each: (not each[1].is_bounded, not each[1].compares))
        return next(iter(measured), None)

    def prepares(self, step: Pass, platform: str) -> bool:
        """Whether a step of `steps` is alone no reason to change a program on a platform.

        True for steps that only normalise, and for required steps where the driver compares its
        attempts with the unmodified program: that must be the program from JAX, since one that
        helpers have changed takes another amount of memory.
        """
        found = self.driver(platform)
        holds = found is not None and (found[1].is_bounded or found[1].compares)
        return step.preparation or (holds and not any(step is each for each in self.passes))

    def run(
        self,
        module: ir.Module,
        *,
        target: Target,
        observers: Sequence[Observer] = (),
        start: int = 0,
        stop: int | None = None,
        attempts: Sequence[Attempt[Any]] = (),
        planner: Planner[Any] | None = None,
    ) -> PipelineResult:
        """Runs the steps on `module`, in place, and verifies it after each.

        Args:
          module: the module to change.
          target: the device that it will run on.
          observers: the watchers of the run.
          start, stop: the indices in `steps` to begin at and to end before.
          attempts: the results of the driver's earlier plans on this module, oldest first.
          planner: makes the driver's plan, where it made earlier ones.

        Raises PassError where a step fails; the module must then be discarded, so pass a clone of
        a module that you keep. An observer that raises counts as its step failing, in phase
        "observe".
        """
        start_s = time.perf_counter()
        runs: list[PassRun] = []
        changed = rewritten = False
        driver = self.driver(target.platform)
        with module.context, ir.Location.unknown(), gc_paused():
            for index, step in list(enumerate(self.steps()))[start:stop]:
                _observe(step, [partial(o.before, index, step, module) for o in observers])
                make_plan: Callable[[], Plan] = partial(step.plan, module, target)
                nothing = step.nothing_on(target.platform)
                if nothing is not None:
                    make_plan = partial(_given, nothing)
                elif driver is not None and driver[0] == index:
                    planner = planner or driver[1].planner(module, target)
                    make_plan = partial(planner, module, attempts)
                is_named = any(step is each for each in self.passes)
                plan, run = _run_step(step, module, make_plan, requested=is_named)
                runs.append(run)
                acts = not (run.empty or self.prepares(step, target.platform))
                changed |= acts
                rewritten |= acts and run.rewrites
                _observe(step, [partial(o.after, index, step, plan, module) for o in observers])
        return PipelineResult(tuple(runs), time.perf_counter() - start_s, changed, rewritten)


def _given(plan: Plan) -> Plan:
    return plan


def _require(step: Pass, steps: list[Pass]) -> None:
    """Adds the passes that `step` requires, directly or not, where they are not in `steps` yet."""
    for required in step.requires:
        if not any(type(done) is required for done in steps):
            first = required()
            _require(first, steps)
            steps.append(first)


@dataclasses.dataclass(frozen=True)
class _ReadPlan:
    """The statements of a plan, read before the plan changed the module."""

    empty: bool
    rewrites: bool
    effect: str
    _summary: str
    _decisions: dict[str, object]
    record: PlanRecord | None
    refusal: str
    warning: str

    def summary(self) -> str:
        return self._summary

    def to_json(self) -> dict[str, object]:
        return self._decisions


def _run_step(
    step: Pass, module: ir.Module, make_plan: Callable[[], Plan], *, requested: bool
) -> tuple[Plan, PassRun]:
    plan, plan_s = _timed(step, "plan", make_plan)
    # A plan's own methods are the pass's code as well, and may fail like the rest of it.
    read, _ = _timed(step, "plan", lambda: _read(step, plan))
    apply_s = verify_s = 0.0
    held = 0
    if not read.empty:
        places = _places(module) if read.rewrites and not step.preparation else None
        _, apply_s = _timed(step, "apply", lambda: step.apply(plan))
        if places is not None:
            held, held_s = _timed(step, "apply", lambda: places.hold(module))
            apply_s += held_s
        _, verify_s = _timed(step, "verify", lambda: _verify(module))
    run = PassRun(
        name=step.name,
        summary=read.summary() + (_HELD.format(pluralize(held, "result")) if held else ""),
        effect=read.effect,
        plan=read.to_json(),
        empty=read.empty,
        rewrites=read.rewrites,
        plan_s=plan_s,
        apply_s=apply_s,
        verify_s=verify_s,
        record=read.record,
        requested=requested and not step.preparation,
        refusal=read.refusal,
        warning=read.warning,
    )
    return read, run


class _Places(Protocol):
    """`analysis.shardings.results.ResultPlaces`."""

    def hold(self, module: ir.Module) -> int:
        """Constrains the results whose placement a rewrite has changed; returns their number."""


_HELD = ", {} held where the program without the pass has them"


def _places(module: ir.Module) -> _Places | None:
    """Returns the placements of a sharded program's results, to be held through every step.

    The import is by name, as in `registry`: the analyses import the framework.
    """
    if not has_several_devices(module):
        return None
    results = importlib.import_module("hloom.passes.analysis.shardings.results")
    places: _Places | None = results.ResultPlaces.of(module)
    return places


def _read(step: Pass, plan: Plan) -> _ReadPlan:
    empty = plan.empty
    rewrites = not empty and step.rewrites(plan)
    record = plan.record if isinstance(plan, MeasuredPlan) else None
    summary, effect = plan.summary(), ""
    if not (empty or step.preparation):
        effect = plan.effect() if isinstance(plan, PlanWithEffect) else summary
    refusal = plan.refusal if isinstance(plan, RefusingPlan) else ""
    warning = plan.warning if isinstance(plan, WarningPlan) else ""
    return _ReadPlan(empty, rewrites, effect, summary, plan.to_json(), record, refusal, warning)


def _observe(step: Pass, calls: Iterable[Callable[[], None]]) -> None:
    for call in calls:
        _timed(step, "observe", call)


def _verify(module: ir.Module) -> None:
    if not module.operation.verify():
        raise ValueError("the module does not verify")


def _timed(step: Pass, phase: str, work: Callable[[], _T]) -> tuple[_T, float]:
    start_s = time.perf_counter()
    try:
        # A range in JAX's profiler; without a trace it is a check of one flag.
        with TraceAnnotation(f"hloom {step.name}: {phase}"):
            return work(), time.perf_counter() - start_s
    except Exception as error:
        raise PassError(step.name, phase, reason_of(error)) from error
