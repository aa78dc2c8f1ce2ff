"""What a pipeline makes of one module: once, or once more for each plan of a measured pass."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom._jax import ffi_targets
from hloom.dumps.collect.observer import DumpObserver
from hloom.dumps.collect.program import ProgramDump
from hloom.lowering.capture import compile_options
from hloom.lowering.lower import Lowered, lower
from hloom.lowering.placement import Placement
from hloom.passes.framework.base import Attempt, Planner, Target
from hloom.passes.framework.errors import PassError, reason_of
from hloom.passes.framework.pipeline import PassRun, Pipeline, PipelineResult
from hloom.passes.ir.clone import clone_module
from hloom.runtime import register


@dataclass(frozen=True)
class Variant:
    """One module to compile.

    Attributes:
      module: what goes to XLA; the original itself where no step rewrote it.
      changed: a step that is no mere preparation had something to do.
      runs: what each step did, in order.
      plan: what the measured pass decided; empty where the pipeline has none.
      observer: what there is to dump.
      options: options of XLA, by name, that its capture regions ask for.
    """

    module: ir.Module
    changed: bool
    runs: tuple[PassRun, ...]
    plan: dict[str, object]
    observer: DumpObserver
    options: Mapping[str, str | int]


class Variants:
    """Makes the variants of one module.

    The steps before the measured pass run once; what follows runs on a clone of their result.

    Attributes:
      target: what the variants are for.
      observer: the dump of the variant that was made last, or failed to be made.
      seconds: what all of it took.
    """

    def __init__(
        self,
        original: ir.Module,
        pipeline: Pipeline,
        target: Target,
        placement: Placement,
        dump: ProgramDump,
    ) -> None:
        self.target = target
        self.observer = dump.observer()
        self._dump = dump
        self.seconds = 0.0
        self._original = original
        self._placement = placement
        self._pipeline = pipeline
        self._driver = pipeline.driver()
        self._prepared: ir.Module | None = None
        self._planner: Planner | None = None
        self._preparation = PipelineResult((), 0.0, changed=False, rewritten=False)
        self._prepared_observer = self.observer

    def make(self, attempts: Sequence[Attempt] = ()) -> Variant:
        """The variant that follows these attempts. Raises PassError where a step fails."""
        start_s = time.perf_counter()
        try:
            return self._make(attempts)
        finally:
            self.seconds += time.perf_counter() - start_s

    def _make(self, attempts: Sequence[Attempt]) -> Variant:
        if self._driver is None:
            return self._finish(clone_module(self._original), 0, ())
        index, driver = self._driver
        if self._prepared is None:
            self._prepared = clone_module(self._original)
            self._preparation = self._run(self._prepared, 0, index, ())
            self._prepared_observer = self.observer
            self._planner = driver.planner(self._prepared, self.target)
        self.observer = self._prepared_observer.fork()
        return self._finish(clone_module(self._prepared), index, attempts)

    def _finish(self, module: ir.Module, start: int, attempts: Sequence[Attempt]) -> Variant:
        result = self._run(module, start, None, attempts)
        runs = (*self._preparation.runs, *result.runs)
        changed = self._preparation.changed or result.changed
        rewritten = self._preparation.rewritten or result.rewritten
        # Read first: lowering leaves no marks.
        options = compile_options(module, self.target.platform) if changed else {}
        if rewritten and _lower(module, self._placement).marks and self._dump.observed:
            self.observer.add_state(f"{len(runs) + 1:02d}-after-lowering.mlir", module)
        return Variant(
            module=module if rewritten else self._original,
            changed=changed,
            runs=runs,
            plan={} if self._driver is None else result.runs[0].plan,
            observer=self.observer,
            options=options,
        )

    def _run(
        self, module: ir.Module, start: int, stop: int | None, attempts: Sequence[Attempt]
    ) -> PipelineResult:
        return self._pipeline.run(
            module,
            target=self.target,
            observers=(self.observer,) if self._dump.observed else (),
            start=start,
            stop=stop,
            attempts=attempts,
            planner=self._planner,
        )


def _lower(module: ir.Module, placement: Placement) -> Lowered:
    """Lowers the module's marks and registers the kernels that it calls then."""
    try:
        lowered = lower(module, placement)
        if lowered.marks:
            module.operation.verify()
        if lowered.targets:
            register(lowered.targets, placement.platform, known=ffi_targets)
    except Exception as error:
        raise PassError("lowering", "apply", reason_of(error)) from error
    return lowered
