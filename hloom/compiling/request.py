"""The request of a compile, and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jax.extend.mlir import ir

from hloom._jax.executables import MemoryFigures
from hloom.compiling.cross_process import Agreement
from hloom.compiling.kept import Entry
from hloom.compiling.observer import CompileObserver
from hloom.compiling.origin import module_name
from hloom.compiling.xla_options import CompileFunction, XlaOptions
from hloom.lowering.placement import Placement
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.record import CompileRecord


@dataclass(frozen=True)
class CompileRequest:
    """One program to be compiled under a pipeline.

    Attributes:
      module: the program, which is never edited.
      pipeline: the passes, which run on clones of it.
      target: the device that the passes plan for.
      placement: where the lowered program runs.
      compile: JAX's own compile of a module: its cache, then XLA.
      agreement: the processes that compile the program and must take the same decisions.
      xla_options: options of XLA that the program has set for itself.
      observer: the observer of the compile.
      kept: finds the cache entry that keeps the plan for later processes; None where plans are not
        kept.
      falls_back: if True, a step that fails outside strict mode gives one warning, and the original
        is compiled. If False, every failure is raised, and a complaint is only recorded.
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
    """An executable of JAX, XLA's figures of its memory, and the record of its compile."""

    executable: Any
    figures: MemoryFigures
    record: CompileRecord


class RefusedError(Exception):
    """XLA refuses a module, for the reason in the cause; raised where `falls_back` is off.

    Attributes:
      changed: whether the module is the passes' result; False for the original.
    """

    def __init__(self, *, changed: bool) -> None:
        super().__init__("XLA refuses the module")
        self.changed = changed
