"""What watches the compile of a program. Dumps do; the compile itself knows only this class."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax.extend.mlir import ir

    from hloom.passes.framework.base import Pass, Plan, Target
    from hloom.passes.framework.errors import PassError
    from hloom.passes.framework.pipeline import Pipeline
    from hloom.record import CompileRecord


class CompileObserver:
    """Watches the compile of one program; this one does nothing. It must not edit any module."""

    def before(self, index: int, step: Pass, module: ir.Module) -> None:
        """Called before the step with this index, which counts from 0, plans."""

    def after(self, index: int, step: Pass, plan: Plan, module: ir.Module) -> None:
        """Called after the step, its result verified; see `hloom.passes.framework.pipeline`."""

    def candidate(self) -> None:
        """Called where a candidate begins: what was seen before the first belongs to each."""

    def lowered(self, index: int, module: ir.Module) -> None:
        """Called where lowering replaced marks, as the step with this index."""

    def failed(self, pipeline: Pipeline, target: Target, failure: PassError) -> Path | None:
        """Called with what the user is warned of; gives the folder that shows more of it."""

    def compiled(
        self, pipeline: Pipeline, target: Target, record: CompileRecord, executable: Any
    ) -> Path | None:
        """Called at the end, also where the original was compiled; gives the dump's folder."""
