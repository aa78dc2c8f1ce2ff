"""One compile of one program: its state, and what each phase does with a candidate module."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jax.extend.mlir import ir
from jax.profiler import TraceAnnotation

from hloom._jax import splash_attention
from hloom._jax.cache import watch_cache
from hloom._jax.devices import ffi_targets
from hloom._jax.executables import MemoryFigures, memory_figures, optimized_text
from hloom._jax.out_of_memory import OutOfMemory, out_of_memory
from hloom.compiling.cross_process import AgreementError
from hloom.compiling.kept import KeptPlan
from hloom.compiling.modelled import ModelledChange, ModelledProgram
from hloom.compiling.request import CompileRequest
from hloom.compiling.xla_options import PassCompile, compile_of, compile_plainly, options_of
from hloom.lowering import copies
from hloom.lowering.lower import Lowered, lower
from hloom.lowering.placement import Placement
from hloom.passes.analysis.shardings.overview import LEAST_BYTES
from hloom.passes.framework.errors import PassError, reason_of
from hloom.passes.framework.feedback import Attempt, Complaint, MeasuredPass, Planner, temp_limit
from hloom.passes.framework.options import Budget
from hloom.passes.framework.pipeline import PassRun, Pipeline, PipelineResult
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import bytecode_of, clone_module
from hloom.policy import first_time, is_strict, warn
from hloom.record import Captured, CompileAttempt
from hloom.runtime import register
from hloom.xla.rematerialization import rematerialized
from hloom.xla.step_time import is_timed, step_time

_log = logging.getLogger("hloom.time")


@dataclass(frozen=True)
class ModuleCandidate:
    """One module to compile.

    Attributes:
      module: the module that XLA compiles; the original itself where no step rewrote it.
      changed: whether a step that does more than prepare changed the module.
      runs: the result of each step, in order.
      driven: the measured pass's entry in `runs`; None where the pipeline has none.
      options: options of XLA, by name, that its capture regions need.
      modelled: the change in memory and work by hloom's models; None where no measured pass changed
        anything.
      limit_bytes: the temporary memory that the budget leaves, by earlier attempts; None without
        earlier attempts, and without a budget in bytes.
      code: the module before its marks are lowered, as bytecode, where its plan may be kept; empty
        where that is the original.
    """

    module: ir.Module
    changed: bool
    runs: tuple[PassRun, ...]
    driven: PassRun | None
    options: Mapping[str, str | int]
    modelled: ModelledChange | None
    limit_bytes: int | None = None
    code: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Compiled:
    """An executable.

    Attributes:
      executable: JAX's executable.
      candidate: the candidate that it was compiled from; None where a step failed and the original
        was compiled.
      figures: XLA's figures of its memory.
      step_s: seconds of a step on one device, foreseen from XLA's text; None where unknown.
      compile_s: seconds in JAX's cache and XLA.
      cache_hit: whether JAX's persistent cache served it; None where the cache is off.
      captured: the part of it that runs in CUDA graphs; None where no pass captures any.
      xla_recomputed: the instructions that XLA's own rematerialization added; None where unknown.
    """

    executable: Any
    candidate: ModuleCandidate | None
    figures: MemoryFigures
    step_s: float | None
    compile_s: float
    cache_hit: bool | None
    captured: Captured | None
    xla_recomputed: int | None = None


@dataclass(frozen=True)
class Refused:
    """A candidate that XLA refuses because it takes too much device memory.

    Attributes:
      candidate: the candidate that XLA refused.
      memory: the bytes that it would take, and the limit.
      error: XLA's error.
      compile_s: seconds until it was raised.
    """

    candidate: ModuleCandidate
    memory: OutOfMemory
    error: Exception
    compile_s: float


class Compilation:
    """One compile of one program. `compile_program` has its phases in order.

    The steps before the measured pass run once; what follows runs on a clone of their result.

    Attributes:
      request: the program, with the target that all processes plan for.
      driver: the measured pass that decides on attempts; None where the pipeline has none.
      pass_s: seconds in hloom.
      compile_s: seconds in JAX's cache and XLA.
      compiles: the number of compiles, those that the cache served included.
      attempts: the attempts of the measured pass, in order, for the record.
      best_attempt: the index of the attempt that is used; None as long as XLA refused all.
      fell_back: why the original was compiled in spite of the pipeline; None where it was not.
      complaint: the part of the spec that the program does not meet.
      complaints: all complaints, each with the pass that has it.
      stopped: whether a step failed after an attempt that is used instead.
      dump_dir: the folder that the failing program was written to.
    """

    def __init__(
        self, request: CompileRequest, *, pass_s: float = 0.0, keeps: bool = False
    ) -> None:
        """``pass_s``: seconds spent before; ``keeps``: whether candidates store their ``code``."""
        self.request, self.pass_s, self._keeps = request, pass_s, keeps
        self.driver: MeasuredPass[Any] | None
        found = request.pipeline.driver(request.target.platform)
        self._start, self.driver = (0, None) if found is None else found
        self._prepared = request.module
        self._preparation: tuple[PipelineResult, ...] = ()
        self._planner: Planner[Any] | None = None
        self._before: ModelledProgram | None = None
        self._compiled_by: PassCompile = compile_plainly
        self.compile_s, self.compiles = 0.0, 0
        self._cache_hits: list[bool | None] = []
        self.attempts: list[CompileAttempt] = []
        self.best_attempt: int | None = None
        self.fell_back: str | None = None
        self.complaint: str | None = None
        self.complaints: list[tuple[str, Complaint]] = []
        self.stopped = False
        self.dump_dir: Path | None = None

    @property
    def budget(self) -> Budget | None:
        """The bound of the measured pass; None without one, and for the least memory."""
        budget = getattr(self.driver, "budget", None)
        return budget if isinstance(budget, Budget) and not budget.least else None

    @property
    def cache_hit(self) -> bool | None:
        """Whether the persistent cache served every compile that ended without an error."""
        return None if None in self._cache_hits else all(self._cache_hits)

    # Plan and lower.

    def agree(self) -> None:
        """Plans for the target with the least memory of all processes, so that all plan alike.
        Raises PassError where another process is missing."""
        target = self.request.target
        if self.driver is None or target.memory_bytes is None or target.usable_bytes is None:
            return
        least = (-target.memory_bytes, -target.usable_bytes)
        try:
            negative = self.request.agreement.largest(least)
        except AgreementError as error:
            raise PassError("hloom", "measure", reason_of(error)) from error
        memory_bytes, usable_bytes = (-each for each in negative)
        target = dataclasses.replace(target, memory_bytes=memory_bytes, usable_bytes=usable_bytes)
        self.request = dataclasses.replace(self.request, target=target)

    def candidate(self, attempts: Sequence[Attempt[Any]] = ()) -> ModuleCandidate:
        """The candidate that follows these attempts. Raises PassError where a step fails."""
        start_s = time.perf_counter()
        try:
            with TraceAnnotation(f"hloom: passes {len(attempts) + 1}"):
                if self.driver is not None and self._planner is None:
                    self._prepared = clone_module(self.request.module)
                    self._preparation = (self._run(self._prepared, 0, self._start),)
                    self._planner = self.driver.planner(self._prepared, self.request.target)
                self.request.observer.candidate()
                return self._finish(clone_module(self._prepared), attempts)
        finally:
            self.pass_s += time.perf_counter() - start_s

    def of_kept(self, plan: KeptPlan) -> ModuleCandidate:
        """Returns the candidate of a kept plan. Raises PassError where lowering fails."""
        self._compiled_by = compile_of(self.request.pipeline)
        module = self.request.module if plan.module is None else plan.module
        if plan.module is not None:
            _lower(module, self.request.placement)
        return ModuleCandidate(module, plan.told.changed, plan.told.runs, None, plan.options, None)

    def readable(self, candidate: ModuleCandidate) -> ir.Module:
        """Returns a candidate's module with its calls inlined, as the memory model reads it."""
        is_original = candidate.module is self.request.module and self.driver is not None
        return self.as_it_is() if is_original else candidate.module

    def _finish(self, module: ir.Module, attempts: Sequence[Attempt[Any]]) -> ModuleCandidate:
        request, results = self.request, [*self._preparation]
        last, modelled = -1, None
        if self.driver is not None:
            steps = enumerate(request.pipeline.steps())
            measured = [index for index, step in steps if isinstance(step, MeasuredPass)]
            last = measured[-1]
            results.append(self._run(module, self._start, last + 1, attempts))
            runs = tuple(_runs(results))
            if not all(runs[index].empty for index in measured):
                modelled = self._modelled(module, runs, last)
        results.append(self._run(module, last + 1, None))
        runs = tuple(_runs(results))
        changed = any(result.changed for result in results)
        rewritten = any(result.rewritten for result in results)
        # The options are read before lowering, which removes the marks.
        platform = request.target.platform
        options: dict[str, str | int] = {}
        self._compiled_by = compile_of(request.pipeline)
        if changed:
            options = options_of(request.pipeline, module, platform)
            options |= copies.compile_options(module, platform)
        code = bytecode_of(module) if rewritten and self._keeps else b""
        if rewritten:
            lowered = _lower(module, request.placement)
            if lowered.marks:
                request.observer.lowered(len(runs), module)
            self._warn_of_lowering(lowered)
        bound = self.budget if attempts else None
        return ModuleCandidate(
            module=module if rewritten else request.module,
            changed=changed,
            runs=runs,
            driven=None if self.driver is None else runs[self._start],
            options=options,
            modelled=modelled,
            limit_bytes=None if bound is None else temp_limit(bound, attempts, request.target),
            code=code,
        )

    def _warn_of_lowering(self, lowered: Lowered) -> None:
        """Warns, once, of marks that lose something by their lowering."""
        request = self.request
        for warning in lowered.warnings:
            text = f"hloom: '{request.name}': {warning}"
            if request.falls_back and first_time(text):
                warn(text)

    def _modelled(
        self, module: ir.Module, runs: Sequence[PassRun], last: int
    ) -> ModelledChange | None:
        """Models the original program and the result of the last measured pass, with the figures
        that the plan of a single measured pass has already."""
        record = runs[last].record if last == self._start else None
        was, is_ = (record and record.modelled_temp_bytes) or (None, None)
        target = self.request.target
        try:
            with module.context, ir.Location.unknown():
                if self._before is None:
                    was = was if self._is_given() else None
                    self._before = ModelledProgram.of(self.as_it_is(), target, was)
                if self._before is None:
                    return None
                after = ModelledProgram.of(module, target, is_)
        except Exception as error:
            raise PassError(runs[last].name, "observe", reason_of(error)) from error
        return None if after is None else ModelledChange(self._before, after)

    def _is_given(self) -> bool:
        """Whether the measured pass starts from the original program, apart from its form."""
        made = zip(self.request.pipeline.steps(), _runs(self._preparation), strict=False)
        return all(run.empty or step.preparation for step, run in made)

    def as_it_is(self) -> ir.Module:
        """Returns the original program with its calls inlined, as the memory model reads it."""
        if self._is_given():
            return self._prepared
        steps = self.request.pipeline.steps()[: self._start]
        module = clone_module(self.request.module)
        preparation = Pipeline(tuple(step for step in steps if step.preparation))
        preparation.run(module, target=self.request.target)
        return module

    def _run(
        self, module: ir.Module, start: int, stop: int | None, attempts: Sequence[Attempt[Any]] = ()
    ) -> PipelineResult:
        return self.request.pipeline.run(
            module,
            target=self.request.target,
            observers=(self.request.observer,),
            start=start,
            stop=stop,
            attempts=attempts,
            planner=self._planner,
        )

    # Compile.

    def attempt(self, candidate: ModuleCandidate) -> Compiled | Refused:
        """Compiles as `compile` does, but returns `Refused` where it does not fit the device."""
        before_s = self.compile_s
        try:
            return self.compile(candidate)
        except Exception as error:
            memory = out_of_memory(error)
            if memory is None:
                raise
            if candidate.driven is not None:
                self.request.observer.refused(self.compiles, memory)
            return Refused(candidate, memory, error, self.compile_s - before_s)

    def compile(self, candidate: ModuleCandidate | None) -> Compiled:
        """Compiles a candidate, or the original. Raises what XLA raises."""
        request, observer = self.request, self.request.observer
        module = request.module if candidate is None else candidate.module
        options = {} if candidate is None else candidate.options
        self.compiles += 1
        number = self.compiles
        run = None if candidate is None else candidate.driven
        if candidate is not None and run is not None and self.driver is not None:
            observer.attempt(number, self.driver.compiles, run.record, candidate.limit_bytes)
        start_s = time.perf_counter()
        try:
            with watch_cache() as cache, TraceAnnotation(f"hloom: compile {number}"):
                compiled_by = compile_plainly if candidate is None else self._compiled_by
                executable, captured = compiled_by(
                    request.compile, module, options, request.xla_options
                )
        finally:
            compile_s = time.perf_counter() - start_s
            self.compile_s += compile_s
        self._cache_hits.append(cache.hit)
        figures = memory_figures(executable)
        if run is not None:
            observer.attempted(number, figures, compile_s)
        start_s = time.perf_counter()
        # Processes may have other kernels, and choose alike only by figures that all have.
        is_alone = not request.agreement.are_several
        is_small = (figures.step_bytes or 0) < LEAST_BYTES  # JAX compiles hundreds of such programs
        text = _text(executable, request.target) if is_alone and not is_small else ""
        step_s = _step_s(text, request.target)
        recomputed = rematerialized(text) if text else None
        self.pass_s += time.perf_counter() - start_s
        return Compiled(
            executable, candidate, figures, step_s, compile_s, cache.hit, captured, recomputed
        )

    # Report failures: raised in strict mode, otherwise the user is warned once.

    def fall_back(self, failure: PassError) -> None:
        """Raises `failure` or warns, once, that the original is compiled."""
        self.fell_back = str(failure)
        self._raise_where_strict(failure)
        repeat = f"`hloom-opt 00-input.mlir -p '{self.request.pipeline}'` repeats it."
        self._warn_of(failure, f"'{self.request.name}' is compiled as it was.", repeat)

    def stop_trying(self, failure: PassError) -> None:
        """Raises `failure` or warns, once, that an earlier attempt is used."""
        self.complaint, self.stopped = str(failure), True
        self._raise_where_strict(failure)
        outcome = f"'{self.request.name}' is compiled as the best plan before has it."
        self._warn_of(failure, outcome)

    def give_up(self, failure: PassError) -> None:
        """Warns, once, which attempts were made for a program that XLA refuses in any form."""
        self._warn_of(failure, f"XLA refuses '{self.request.name}' as it was, too.")

    def complain(self, pass_name: str, complaint: Complaint) -> None:
        """Raises the complaint of a pass in strict mode; otherwise warns of it, once."""
        request, name, text = self.request, self.request.name, complaint.text
        if is_strict() and request.falls_back:
            raise PassError(pass_name, "hold", f"'{name}': {text}")
        self.complaints.append((pass_name, complaint))
        self.complaint = " ".join(filter(None, (self.complaint, text)))
        topic = complaint.topic
        # Another spec gets its own warning.
        if request.falls_back and first_time(
            f"{request.pipeline}: {topic or f'{name}: {pass_name}: {text}'}"
        ):
            what, *more = text.splitlines()
            # With its options: Python itself shows one text of one line once.
            named = (str(step) for step in request.pipeline.steps() if step.name == pass_name)
            step = next(named, pass_name)
            what = f"hloom: pass '{step}': '{name}': {what} The program is compiled anyway."
            others = (
                " Further programs with this problem are only in hloom.records()." if topic else ""
            )
            warn("\n".join((f"{what}{others}", *more)))

    def advise(self, run: PassRun) -> None:
        """Warns, once, of a drawback of a pass's result, if it has one; never raises."""
        request = self.request
        text = f"hloom: pass '{run.name}': '{request.name}': {run.warning}"
        if run.warning and request.falls_back and first_time(f"{request.pipeline}: {text}"):
            warn(text)

    def _raise_where_strict(self, failure: PassError) -> None:
        if is_strict() or not self.request.falls_back:
            raise failure

    def _warn_of(self, failure: PassError, outcome: str, repeat: str = "") -> None:
        request = self.request
        if not first_time(f"{request.name}: {failure}"):
            return
        self.dump_dir = request.observer.failed(request.pipeline, request.target, failure)
        text = f"hloom: {failure}. {outcome}"
        if self.dump_dir is not None:
            text += f" See {self.dump_dir}: {repeat}" if repeat else f" See {self.dump_dir}."
        warn(text)


def caused(cause: Exception | None, step: str, phase: str, reason: str) -> PassError:
    """Returns the failure of a step with its cause, to be raised or warned of."""
    failure = PassError(step, phase, reason)
    failure.__cause__ = cause
    return failure


def _text(executable: Any, target: Target) -> str:
    """Returns XLA's text; empty on a CPU, whose figures need none, and where there is none."""
    if target.platform == "cpu":
        return ""
    try:
        return optimized_text(executable)
    except Exception as error:
        # A figure must not fail a compile.
        _log.debug("XLA's text is unknown: %s", reason_of(error))
    return ""


def _step_s(text: str, target: Target) -> float | None:
    if not (text and is_timed(target)):
        return None
    try:
        return step_time(text, target).seconds
    except Exception as error:
        # The text may have another form.
        _log.debug("the seconds of a step are unknown: %s", reason_of(error))
    return None


def _runs(results: Sequence[PipelineResult]) -> Iterator[PassRun]:
    return (run for result in results for run in result.runs)


def _lower(module: ir.Module, placement: Placement) -> Lowered:
    """Lowers the module's marks and registers the kernels that it calls then."""
    try:
        lowered = lower(module, placement, splash_attention.lowered)
        if lowered.marks:
            module.operation.verify()
        if lowered.targets:
            register(lowered.targets, placement.platform, known=ffi_targets)
    except Exception as error:
        raise PassError("lowering", "apply", reason_of(error)) from error
    return lowered
