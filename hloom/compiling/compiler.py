"""Compiles the candidates of one program by XLA, and counts compiles and seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from hloom._jax.cache import watch_cache
from hloom._jax.executables import MemoryFigures, memory_figures
from hloom._jax.out_of_memory import OutOfMemory, out_of_memory
from hloom.compiling.candidates import ModuleCandidate
from hloom.compiling.graphs import compile_captured
from hloom.compiling.request import CompileRequest
from hloom.record import Captured


@dataclass(frozen=True)
class Compiled:
    """An executable.

    Attributes:
      executable: JAX's executable.
      candidate: the candidate that it was compiled from; None where a step failed and the original
        was compiled.
      figures: XLA's figures of its memory.
      compile_s: seconds in JAX's cache and XLA.
      cache_hit: whether JAX's persistent cache served it; None where the cache is off.
      captured: the part of it that runs in CUDA graphs; None where no pass captures any.
    """

    executable: Any
    candidate: ModuleCandidate | None
    figures: MemoryFigures
    compile_s: float
    cache_hit: bool | None
    captured: Captured | None


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


class Compiler:
    """Compiles the candidates of one program.

    Attributes:
      compiles: the number of compiles, those that the cache served included.
      seconds: the time that they took.
    """

    def __init__(self, request: CompileRequest) -> None:
        self.compiles = 0
        self.seconds = 0.0
        self._request = request
        self._cache_hits: list[bool | None] = []
        driver = request.pipeline.driver(request.target.platform)
        self._most = 1 if driver is None else driver[1].compiles

    @property
    def cache_hit(self) -> bool | None:
        """Whether the persistent cache served every compile that ended without an error."""
        return None if None in self._cache_hits else all(self._cache_hits)

    def attempt(self, candidate: ModuleCandidate) -> Compiled | Refused:
        """Compiles as `compile` does, but returns `Refused` where the program does not fit the
        device."""
        before_s = self.seconds
        try:
            return self.compile(candidate)
        except Exception as error:
            memory = out_of_memory(error)
            if memory is None:
                raise
            if candidate.driven is not None:
                self._request.observer.refused(self.compiles, memory)
            return Refused(candidate, memory, error, self.seconds - before_s)

    def compile(self, candidate: ModuleCandidate | None) -> Compiled:
        """Compiles a candidate, or the original. Raises what XLA raises."""
        request = self._request
        module = request.module if candidate is None else candidate.module
        options = {} if candidate is None else candidate.options
        self.compiles += 1
        run = None if candidate is None else candidate.driven
        number = self.compiles
        if candidate is not None and run is not None:
            request.observer.attempt(number, self._most, run.record, candidate.limit_bytes)
        start_s = time.perf_counter()
        try:
            with watch_cache() as cache:
                executable, captured = compile_captured(
                    request.compile, module, options, request.xla_options
                )
        finally:
            compile_s = time.perf_counter() - start_s
            self.seconds += compile_s
        self._cache_hits.append(cache.hit)
        figures = memory_figures(executable)
        if run is not None:
            request.observer.attempted(number, figures, compile_s)
        return Compiled(executable, candidate, figures, compile_s, cache.hit, captured)
