"""The request of a compile, and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jax.extend.mlir import ir

from hloom._jax.executables import MemoryFigures
from hloom.compiling.cross_process import Agreement
from hloom.compiling.graphs import CompileFunction, XlaOptions
from hloom.compiling.kept import Entry
from hloom.compiling.observer import CompileObserver
from hloom.compiling.origin import module_name
from hloom.lowering.placement import Placement
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.record import CompileRecord


@dataclass(frozen=True)
class CompileRequest:
    """One program to be compiled under a pipeline.

    Attributes:
      module: the program, which is never edited.
      pipeline: what is done to clones of it.
      target: what the passes plan for.
      placement: where the lowered program runs.
      compile: JAX's own compile of a module: its cache, then XLA.
      agreement: the processes that compile the program and have to decide alike.
      xla_options: options of XLA that the program has set for itself.
      observer: what watches.
      kept: finds where the plan is kept for later processes; None where it is not.
      falls_back: where a step fails outside strict mode, there is one warning and the original is
        compiled. If False, whatever fails is raised, and a complaint is in the record alone.
    """

    module: ir.Module
    pipeline: Pipeline
    target: Target
    placement: Placement
    compile: CompileFunction
    agreement: Agreement
    xla_options: XlaOptions = field(default_factory=XlaOptions)
    observer: CompileObserver = field(default_factory=CompileObserver)
    kept: Callable[[], Entry | None] = field(default=lambda: None)
    falls_back: bool = True

    @property
    def name(self) -> str:
        """The program's name."""
        return module_name(self.module)


@dataclass(frozen=True)
class CompileResult:
    """An executable of JAX, XLA's figures of its memory, and how it came to be."""

    executable: Any
    figures: MemoryFigures
    record: CompileRecord


class RefusedError(Exception):
    """XLA refuses a module, and says why in the cause; raised where nothing falls back.

    Attributes:
      changed: it is what the passes made; False for the program itself.
    """

    def __init__(self, *, changed: bool) -> None:
        super().__init__("XLA refuses the module")
        self.changed = changed
