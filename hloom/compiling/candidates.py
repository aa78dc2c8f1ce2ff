"""The candidates of one module: one, or one for each plan of a measured pass."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jax.extend.mlir import ir

from hloom._jax.devices import ffi_targets
from hloom.compiling.kept import KeptPlan
from hloom.compiling.modelled import ChangeObserver, ModelledChange
from hloom.compiling.request import CompileRequest
from hloom.lowering import capture, copies
from hloom.lowering.lower import Lowered, lower
from hloom.lowering.placement import Placement
from hloom.passes.framework.errors import PassError, reason_of
from hloom.passes.framework.feedback import Attempt, MeasuredPass, Planner, temp_limit
from hloom.passes.framework.options import Budget
from hloom.passes.framework.pipeline import PassRun, Pipeline, PipelineResult
from hloom.passes.ir.clone import bytecode_of, clone_module
from hloom.runtime import register


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


class Candidates:
    """Makes the candidates of one module.

    The steps before the measured pass run once; what follows runs on a clone of their result.

    Attributes:
      seconds: the time that making the candidates took.
    """

    def __init__(
        self, request: CompileRequest, *, seconds: float = 0.0, are_kept: bool = False
    ) -> None:
        """``seconds``: time spent before; ``are_kept``: whether each candidate stores its
        ``code``."""
        self.seconds, self._are_kept = seconds, are_kept
        self._request = request
        self._driver = request.pipeline.driver(request.target.platform)
        self._prepared: ir.Module | None = None
        self._planner: Planner[Any] | None = None
        measured = [
            index
            for index, step in enumerate(request.pipeline.steps())
            if isinstance(step, MeasuredPass)
        ]
        driver = -1 if self._driver is None else self._driver[0]
        self._modelled = ChangeObserver(driver, max(measured, default=-1), request.target)
        self._preparation = PipelineResult((), 0.0, changed=False, rewritten=False)

    def make(self, attempts: Sequence[Attempt[Any]] = ()) -> ModuleCandidate:
        """The candidate that follows these attempts. Raises PassError where a step fails."""
        start_s = time.perf_counter()
        try:
            return self._make(attempts)
        finally:
            self.seconds += time.perf_counter() - start_s

    def readable(self, candidate: ModuleCandidate) -> ir.Module:
        """Returns a candidate's module with its calls inlined, as the memory model reads it."""
        if candidate.module is not self._request.module or self._driver is None:
            return candidate.module
        return self._as_it_is(self._driver[0])

    def _make(self, attempts: Sequence[Attempt[Any]]) -> ModuleCandidate:
        origin, start = self._request.module, 0
        if self._driver is not None:
            start, driver = self._driver
            if self._prepared is None:
                self._prepared = clone_module(origin)
                self._preparation = self._run(self._prepared, 0, start, ())
                self._planner = driver.planner(self._prepared, self._request.target)
                self._modelled.set_origin(
                    partial(self._as_it_is, start), is_given=self._is_given(start)
                )
            origin = self._prepared
        self._request.observer.candidate()
        return self._finish(clone_module(origin), start, attempts)

    def _finish(
        self, module: ir.Module, start: int, attempts: Sequence[Attempt[Any]]
    ) -> ModuleCandidate:
        result = self._run(module, start, None, attempts)
        runs = (*self._preparation.runs, *result.runs)
        changed = self._preparation.changed or result.changed
        rewritten = self._preparation.rewritten or result.rewritten
        # The options are read before lowering, which removes the marks.
        platform = self._request.target.platform
        options: dict[str, str | int] = {}
        if changed:
            options = capture.compile_options(module, platform)
            options |= copies.compile_options(module, platform)
        code = bytecode_of(module) if rewritten and self._are_kept else b""
        if rewritten and _lower(module, self._request.placement).marks:
            self._request.observer.lowered(len(runs), module)
        return ModuleCandidate(
            module=module if rewritten else self._request.module,
            changed=changed,
            runs=runs,
            driven=None if self._driver is None else runs[start],
            options=options,
            modelled=self._modelled.change,
            limit_bytes=self._limit_bytes(attempts),
            code=code,
        )

    def of_kept(self, plan: KeptPlan) -> ModuleCandidate:
        """Returns the candidate of a kept plan. Raises PassError where lowering fails."""
        module = self._request.module if plan.module is None else plan.module
        if plan.module is not None:
            _lower(module, self._request.placement)
        return ModuleCandidate(module, plan.told.changed, plan.told.runs, None, plan.options, None)

    def _limit_bytes(self, attempts: Sequence[Attempt[Any]]) -> int | None:
        budget = None if self._driver is None else getattr(self._driver[1], "budget", None)
        if not attempts or not isinstance(budget, Budget) or budget.least:
            return None
        return temp_limit(budget, attempts, self._request.target)

    def _is_given(self, stop: int) -> bool:
        """Whether the measured pass starts from the original program, apart from its form."""
        steps = self._request.pipeline.steps()[:stop]
        made = zip(steps, self._preparation.runs, strict=True)
        return all(run.empty or step.preparation for step, run in made)

    def _as_it_is(self, stop: int) -> ir.Module:
        """Returns the original program with its calls inlined, as the memory model reads it."""
        assert self._prepared is not None
        if self._is_given(stop):
            return self._prepared
        steps = self._request.pipeline.steps()[:stop]
        module = clone_module(self._request.module)
        preparation = Pipeline(tuple(step for step in steps if step.preparation))
        preparation.run(module, target=self._request.target)
        return module

    def _run(
        self, module: ir.Module, start: int, stop: int | None, attempts: Sequence[Attempt[Any]]
    ) -> PipelineResult:
        return self._request.pipeline.run(
            module,
            target=self._request.target,
            observers=(self._request.observer, self._modelled),
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
