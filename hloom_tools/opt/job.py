"""Processes one module in `hloom-opt`: parse, run the passes, print."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jax.extend.mlir import ir

from hloom._jax.modules import make_context
from hloom.lowering.lower import lower
from hloom.lowering.placement import Placement
from hloom.passes.framework.errors import PassError, reason_of
from hloom.passes.framework.feedback import Attempt, MeasuredPass, Progress, attempts
from hloom.passes.framework.pipeline import Observer, Pipeline, PipelineResult, gc_paused
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import bytecode_of, clone_module
from hloom.passes.ir.mesh import partition_count
from hloom_tools.opt import printing, source
from hloom_tools.opt.arguments import Arguments
from hloom_tools.opt.diagnostics import (
    Diagnostic,
    InputError,
    Position,
    Severity,
    collect,
    convert,
    render,
)

_NO_LOCATIONS = (
    "the module has no locations, so that no line of a program is named: "
    "as_text(debug_info=True) keeps them"
)


@dataclass(frozen=True)
class Outcome:
    """The outcome for one module.

    Attributes:
      ok: whether nothing failed.
      output: the module to write; None where a pass failed.
    """

    ok: bool
    output: bytes | None


@dataclass(frozen=True)
class OptJob:
    """One command line, which can process any number of modules."""

    arguments: Arguments
    pipeline: Pipeline
    target: Target

    def work(self, chunk: source.SourceChunk) -> Outcome:
        """Processes one module and prints its diagnostics on stderr."""
        # Every module has a context of its own, as in mlir-opt. Without threads diagnostics are in
        # order, and no thread of MLIR waits for Python's lock to emit one.
        context = make_context()
        context.enable_multithreading(False)
        with collect(context, file=chunk.source.name) as said:
            output = self._transform(chunk, context, said)
        show(said, chunk.source)
        failed = any(each.severity is Severity.ERROR for each in said)
        return Outcome(not failed, None if failed else output)

    def _transform(
        self, chunk: source.SourceChunk, context: ir.Context, said: list[Diagnostic]
    ) -> bytes | None:
        """Returns the module after the passes; None where something failed, which is added to
        `said`."""
        start_s = time.perf_counter()
        try:
            module = source.parse(chunk, context)
            parse_s = time.perf_counter() - start_s
            dry = dry_run(self.pipeline, module, self.target)
            result = self.pipeline.run(
                module,
                target=self.target,
                observers=self._observers(),
                attempts=dry.attempts,
            )
            choices = lower_for(self.target, module) if self.arguments.lower else ()
        except InputError as error:
            said += error.diagnostics
            return None
        except PassError as error:
            self._tell_failure(error, chunk, said)
            return None
        said += self._predictions(result, dry, Position(chunk.source.name))
        said += (Diagnostic(Severity.REMARK, Position(chunk.source.name), each) for each in choices)
        if any(run.refusal for run in result.runs) and not chunk.has_locations:
            said.append(Diagnostic(Severity.NOTE, Position(chunk.source.name), _NO_LOCATIONS))
        start_s = time.perf_counter()
        output = self._print(module)
        if self.arguments.timing:
            print_s = time.perf_counter() - start_s
            sys.stderr.write(printing.timing_table(parse_s, result, print_s))
        return output

    def _predictions(
        self, result: PipelineResult, dry: DryRun, position: Position
    ) -> Iterator[Diagnostic]:
        for run in result.runs:
            if run.record is not None and run.record.prediction is not None:
                yield Diagnostic(Severity.REMARK, position, f"{run.name}: {run.summary}")
            for text in filter(None, (run.refusal, run.warning)):
                yield Diagnostic(Severity.WARNING, position, f"{run.name}: {text}")
        for step in self.pipeline.passes:
            if (nothing := step.nothing_on(self.target.platform)) is not None:
                yield Diagnostic(Severity.REMARK, position, f"{step.name}: {nothing.summary()}")
        if dry.complaint is not None:
            yield Diagnostic(Severity.WARNING, position, dry.complaint)

    def _observers(self) -> list[Observer]:
        arguments = self.arguments
        every = [step.name for step in self.pipeline.steps()]
        observers: list[Observer] = [
            printing.IrPrinter(
                sys.stderr,
                before_passes=every if arguments.print_ir_before_all else arguments.print_ir_before,
                after_passes=every if arguments.print_ir_after_all else arguments.print_ir_after,
                debug_info=arguments.debug_info,
            )
        ]
        if arguments.print_plan is not None:
            fits = "table" if sys.stderr.isatty() else "json"
            wanted = fits if arguments.print_plan == "auto" else arguments.print_plan
            observers.append(printing.PlanPrinter(sys.stderr, as_tables=wanted == "table"))
        return observers

    def _tell_failure(
        self, error: PassError, chunk: source.SourceChunk, said: list[Diagnostic]
    ) -> None:
        if self.arguments.traceback:
            traceback.print_exception(error.__cause__ or error)
        name = chunk.source.name
        what = str(error)
        if isinstance(error.__cause__, ir.MLIRError):
            said += (convert(each, file=name) for each in error.__cause__.error_diagnostics)
            what = f"pass '{error.pass_name}' failed in {error.phase}"
        said.append(Diagnostic(Severity.ERROR, Position(name), what))

    def _print(self, module: ir.Module) -> bytes:
        if not self.arguments.emit_bytecode:
            return printing.assembly(module, debug_info=self.arguments.debug_info)
        return bytecode_of(module)


def show(diagnostics: list[Diagnostic] | tuple[Diagnostic, ...], given: source.Source) -> None:
    """Prints diagnostics about a source on stderr."""
    text = b"" if given.is_bytecode else given.data
    for each in diagnostics:
        print(render(each, file=given.name, text=text), file=sys.stderr)


def lower_for(target: Target, module: ir.Module) -> tuple[str, ...]:
    """Lowers the module's marks in place; returns the choice for each, in a line.

    The module is assumed to run on as many devices of one process as it has partitions. Kernels are
    not registered, since the module does not run here. Raises PassError.
    """
    partitions = partition_count(module)
    placement = Placement.of_one_process(target.platform, partitions, target.compute_capability)
    try:
        lowered = lower(module, placement)
        module.operation.verify()
    except Exception as error:
        raise PassError("lowering", "apply", reason_of(error)) from error
    return tuple(f"lowering: {count} x {each}" for each, count in lowered.decisions.items())


@dataclass(frozen=True)
class DryRun:
    """The attempts before the plan that is shown.

    Attributes:
      attempts: the attempts before it, with their predictions.
      complaint: the complaint that is predicted for the plan; None without one.
    """

    attempts: tuple[Attempt[Any], ...] = ()
    complaint: str | None = None


def dry_run(pipeline: Pipeline, module: ir.Module, target: Target) -> DryRun:
    """Simulates the pipeline's attempts; returns none where no pass measures or predicts.

    Raises PassError where a step fails.
    """
    found = pipeline.driver(target.platform)
    if found is None:
        return DryRun()
    index, driver = found
    prepared = clone_module(module)
    pipeline.run(prepared, target=target, stop=index)
    with prepared.context, ir.Location.unknown(), gc_paused():
        try:
            return _go_through(driver, prepared, target)
        except Exception as error:
            raise PassError(driver.name, "plan", reason_of(error)) from error


def _go_through(driver: MeasuredPass[Any], module: ir.Module, target: Target) -> DryRun:
    planner = driver.planner(module, target)
    unplanned: str | None = None

    def predicted(earlier: tuple[Attempt[Any], ...]) -> Attempt[Any] | None:
        nonlocal unplanned
        record = planner(module, earlier).record
        unplanned, prediction = record.unplanned, record.prediction
        if unplanned is not None or prediction is None:
            return None
        return Attempt(record, prediction.step_bytes, prediction.temp_bytes)

    last: Progress[Any] = Progress()
    for progress in attempts(driver, target, predicted):
        last = progress
    if unplanned is not None:
        return DryRun(complaint=unplanned)
    if not last.attempts:
        return DryRun()
    earlier = last.attempts[: last.best]

    def module_of_best() -> ir.Module:
        rewritten = clone_module(module)
        plan = planner(rewritten, earlier)
        if not plan.empty:
            driver.apply(plan)
        return rewritten

    complaint = driver.complaint(last.attempts, last.best, target, module_of_best, lambda: module)
    return DryRun(earlier, complaint.text if complaint else None)
