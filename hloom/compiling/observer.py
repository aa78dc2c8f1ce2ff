"""The observer of a compile: dumps and the log. The compile knows only this class."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax.extend.mlir import ir

    from hloom._jax.executables import MemoryFigures
    from hloom._jax.out_of_memory import OutOfMemory
    from hloom.passes.framework.base import Pass, Plan
    from hloom.passes.framework.errors import PassError
    from hloom.passes.framework.feedback import PlanRecord
    from hloom.passes.framework.pipeline import Pipeline
    from hloom.passes.framework.target import Target
    from hloom.record import CompileRecord


class CompileObserver:
    """Watches one program's compile. The base class does nothing; no observer may edit a module."""

    def before(self, index: int, step: Pass, module: ir.Module) -> None:
        """Called before the step with this index, which counts from 0, plans."""

    def after(self, index: int, step: Pass, plan: Plan, module: ir.Module) -> None:
        """Called after the step, its result verified; see `hloom.passes.framework.pipeline`."""

    def candidate(self) -> None:
        """Called where a candidate begins: events before the first candidate belong to each."""

    def lowered(self, index: int, module: ir.Module) -> None:
        """Called where lowering replaced marks, as the step with this index."""

    def attempt(
        self, number: int, most: int, record: PlanRecord | None, limit_bytes: int | None = None
    ) -> None:
        """Called before a plan of a measured pass is compiled.

        Args:
          number: the number of the attempt; the first is 1.
          most: the largest number of attempts.
          record: the record of the plan, with its prediction.
          limit_bytes: the temporary memory that the budget leaves, by earlier attempts; None before
            the first, and without a budget in bytes.
        """

    def attempted(self, number: int, figures: MemoryFigures, seconds: float) -> None:
        """Called with XLA's figures of an attempt in this process, unless XLA refused it."""

    def refused(self, number: int, memory: OutOfMemory) -> None:
        """Called in place of `attempted` where XLA refused an attempt for its device memory."""

    def settled(self) -> None:
        """Called when no attempt follows, before any warning about the best one."""

    def failed(self, pipeline: Pipeline, target: Target, failure: PassError) -> Path | None:
        """Called with the failure that the user is warned of; returns the folder of its details."""

    def compiled(
        self, pipeline: Pipeline, target: Target, record: CompileRecord, executable: Any
    ) -> Path | None:
        """Called at the end, also where the original was compiled; returns the dump's folder."""

    def close(self) -> None:
        """Called at the very end, also where the compile raised."""


class Observers(CompileObserver):
    """Several observers as one: each is called in turn."""

    def __init__(self, *observers: CompileObserver) -> None:
        self._all = observers

    def before(self, index: int, step: Pass, module: ir.Module) -> None:
        for each in self._all:
            each.before(index, step, module)

    def after(self, index: int, step: Pass, plan: Plan, module: ir.Module) -> None:
        for each in self._all:
            each.after(index, step, plan, module)

    def candidate(self) -> None:
        for each in self._all:
            each.candidate()

    def lowered(self, index: int, module: ir.Module) -> None:
        for each in self._all:
            each.lowered(index, module)

    def attempt(
        self, number: int, most: int, record: PlanRecord | None, limit_bytes: int | None = None
    ) -> None:
        for each in self._all:
            each.attempt(number, most, record, limit_bytes)

    def attempted(self, number: int, figures: MemoryFigures, seconds: float) -> None:
        for each in self._all:
            each.attempted(number, figures, seconds)

    def refused(self, number: int, memory: OutOfMemory) -> None:
        for each in self._all:
            each.refused(number, memory)

    def settled(self) -> None:
        for each in self._all:
            each.settled()

    def failed(self, pipeline: Pipeline, target: Target, failure: PassError) -> Path | None:
        """Calls `failed` of each; returns the first folder that one of them returns."""
        return next(filter(None, [o.failed(pipeline, target, failure) for o in self._all]), None)

    def compiled(
        self, pipeline: Pipeline, target: Target, record: CompileRecord, executable: Any
    ) -> Path | None:
        """Calls `compiled` of each; later observers find an earlier one's folder in the record."""
        for each in self._all:
            folder = each.compiled(pipeline, target, record, executable)
            record = dataclasses.replace(record, dump_dir=record.dump_dir or folder)
        return record.dump_dir

    def close(self) -> None:
        for each in self._all:
            each.close()
