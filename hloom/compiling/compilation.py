"""One program on its way through hloom: its compiles, and what happens when a step fails."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax.extend.mlir import ir

from hloom import _jax
from hloom._jax import MemoryFigures
from hloom.compiling.candidates import Variant, Variants
from hloom.compiling.graphs import Captured, CompileFunction, Settings, compile_captured
from hloom.dumps.collect.observer import module_name
from hloom.dumps.collect.program import ProgramDump
from hloom.passes.framework.errors import PassError
from hloom.passes.framework.pipeline import Pipeline
from hloom.policy import first_time, is_strict, warn


@dataclass(frozen=True)
class Compiled:
    """An executable.

    Attributes:
      executable: JAX's.
      variant: what it was made of; None where a step failed and it is the original's.
      figures: XLA's, of its memory.
      compile_s: seconds in JAX's cache and XLA.
      cache_hit: whether JAX's persistent cache served it; None where the cache is off.
      captured: what of it runs in CUDA graphs; None where no pass cares.
    """

    executable: Any
    variant: Variant | None
    figures: MemoryFigures
    compile_s: float
    cache_hit: bool | None
    captured: Captured | None


class Compilation:
    """Compiles the variants of one program.

    Attributes:
      original: the program.
      pipeline: what is done to it.
      variants: what the pipeline makes of it.
      dump: what is dumped of it.
      compiles: how often XLA, or the cache, was asked.
      compile_s: how long that took.
      fell_back: why the original was compiled in spite of the pipeline.
      complaint: what the spec asks for and the program does not have.
      dump_dir: where the program was written.
    """

    def __init__(
        self,
        original: ir.Module,
        pipeline: Pipeline,
        variants: Variants,
        compile_: CompileFunction,
        settings: Settings,
        dump: ProgramDump,
    ) -> None:
        self.original = original
        self.pipeline = pipeline
        self.variants = variants
        self.dump = dump
        self.compiles = 0
        self.compile_s = 0.0
        self._cache_hits: list[bool | None] = []
        self.fell_back: str | None = None
        self.complaint: str | None = None
        self.dump_dir: Path | None = None
        self._compile = compile_
        self._settings = settings

    @property
    def name(self) -> str:
        """The program's name."""
        return module_name(self.original)

    @property
    def cache_hit(self) -> bool | None:
        """Whether the persistent cache served every compile that came to its end."""
        return None if None in self._cache_hits else all(self._cache_hits)

    def compile(self, variant: Variant | None) -> Compiled:
        """Compiles a variant, or the original. Raises what XLA raises."""
        module = self.original if variant is None else variant.module
        options = {} if variant is None else variant.options
        self.compiles += 1
        start_s = time.perf_counter()
        try:
            with _jax.watch_cache() as cache:
                executable, captured = compile_captured(
                    self._compile, module, options, self._settings
                )
        finally:
            compile_s = time.perf_counter() - start_s
            self.compile_s += compile_s
        self._cache_hits.append(cache.hit)
        figures = _jax.memory_figures(executable)
        return Compiled(executable, variant, figures, compile_s, cache.hit, captured)

    def fall_back(self, failure: PassError) -> None:
        """In strict mode raises `failure`; else warns, once, that the original is compiled."""
        self.fell_back = str(failure)
        repeat = f"`hloom-opt 00-input.mlir -p '{self.pipeline}'` repeats it."
        self._tell_failure(failure, "compiled as it was", repeat)

    def stop_trying(self, failure: PassError) -> None:
        """In strict mode raises `failure`; else warns, once, that an attempt before it is used."""
        self.complaint = str(failure)
        self._tell_failure(failure, "compiled as the best plan before has it", "")

    def complain(self, complaint: PassError, topic: str) -> None:
        """In strict mode raises `complaint`; else warns of it, once.

        Args:
          complaint: what is not as asked.
          topic: what is told of one program alone; empty where it is told of each.
        """
        if is_strict():
            raise PassError(
                complaint.pass_name, complaint.phase, f"'{self.name}': {complaint.reason}"
            )
        self.complaint = complaint.reason
        if first_time(f"{self.pipeline}: {topic}" if topic else f"{self.name}: {complaint}"):
            others = " Others like it are told of in hloom.records() alone." if topic else ""
            warn(
                f"hloom: pass '{complaint.pass_name}': '{self.name}': {complaint.reason} "
                f"It is compiled all the same.{others}"
            )

    def _tell_failure(self, failure: PassError, outcome: str, repeat: str) -> None:
        if is_strict():
            raise failure
        if not first_time(f"{self.name}: {failure}"):
            return
        self.dump_dir = self.dump.write_failure(
            self.variants.observer, self.pipeline, self.variants.target, failure
        )
        text = f"hloom: {failure}. '{self.name}' is {outcome}."
        if self.dump_dir is not None:
            text += f" See {self.dump_dir}: {repeat}" if repeat else f" See {self.dump_dir}."
        warn(text)
