"""The dump of one program on its way through its compile: written now, or kept for later steps."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hloom import _jax
from hloom.dumps.collect import tracer as watch
from hloom.dumps.collect.keeping import keep
from hloom.dumps.collect.metadata import Origin, compile_entry
from hloom.dumps.collect.observer import DumpObserver, module_name
from hloom.dumps.collect.reminder import note_waiting, note_written
from hloom.dumps.collect.store import Content, LiveModule
from hloom.dumps.collect.xla_dump import Compile, XlaFiles
from hloom.dumps.errors import guarded
from hloom.dumps.read.module import Missing
from hloom.dumps.select.settings import Settings
from hloom.passes.framework.errors import PassError
from hloom.record import CompileRecord

if TYPE_CHECKING:
    from hloom.passes.framework.base import Target
    from hloom.passes.framework.pipeline import Pipeline

Added = Mapping[str, str | int | bool]
"""Compile options that hloom added."""


class ProgramDump:
    """What is dumped of one program.

    Attributes:
      root: the folder that dumps go to; None where none was asked for.
      given: the program's own options of XLA, and those that have XLA write what is kept.
    """

    def __init__(self, origin: Origin, settings: Settings | None) -> None:
        self.root = None if settings is None else settings.to
        self.given = _jax.given_options(origin.options)
        wanted = settings is not None and settings.wants_module(module_name(origin.module))
        self._settings = settings if wanted else None
        self._origin = origin
        self._xla: XlaFiles | None = None
        if self.for_steps:
            watch.install()
            note_waiting()
        if self.observed:
            with guarded("having XLA write its files for dumps"):
                self._xla = XlaFiles(self.given, module_name(origin.module))
                self.given = self._xla.given

    @property
    def for_steps(self) -> bool:
        """Whether the program is kept for steps to come."""
        return self._settings is not None and self._settings.steps is not None

    @property
    def observed(self) -> bool:
        """Whether the states between the passes are wanted."""
        return self._settings is not None

    @property
    def at_compile(self) -> bool:
        """Whether the program is written when it is compiled, if the passes change it."""
        return self._settings is not None and self._settings.steps is None

    def watch(self, compile_: Compile) -> Compile:
        """The same compile, which has XLA write what is kept."""
        return compile_ if self._xla is None else self._xla.watch(compile_)

    def observer(self) -> DumpObserver:
        """An observer of the passes, at their start."""
        return DumpObserver(self._settings)

    def write_failure(
        self, observer: DumpObserver, pipeline: Pipeline, target: Target, failure: PassError
    ) -> Path | None:
        """Writes a program that a pass fails on; gives the folder, None where it cannot."""
        observer.add("failure.txt", "".join(traceback.format_exception(failure)))
        return self._write(observer, pipeline, target, {}, {"fell_back": str(failure)}, None)

    def write(
        self,
        observer: DumpObserver,
        pipeline: Pipeline,
        target: Target,
        added: Added,
        record: CompileRecord,
        executable: Any,
    ) -> Path | None:
        """Writes a program that was compiled; gives the folder, None where it cannot."""
        entry = compile_entry(record)
        found, missing = self._of_xla(record, executable)
        return self._write(observer, pipeline, target, added, entry, executable, found, missing)

    def keep(
        self,
        observer: DumpObserver,
        pipeline: Pipeline | None,
        target: Target | None,
        added: Added,
        record: CompileRecord,
        executable: Any,
    ) -> None:
        """Keeps what steps to come want of the program; nothing where dumps wait for none."""
        if not self.for_steps:
            return
        with guarded("keeping a module for dumps of later steps"):
            observer.add_input(self._origin.module)
            files: dict[str, Content] = dict(observer.files)
            found, missing = self._of_xla(record, executable)
            facts = self._origin.facts(pipeline, target, added, compile_entry(record))
            passes = None if self._settings is None else self._settings.passes
            keep(executable, facts, files | found, missing, passes)

    def _of_xla(
        self, record: CompileRecord, executable: Any
    ) -> tuple[dict[str, Content], tuple[Missing, ...]]:
        """The files that XLA wrote of an executable, and what of them is missing."""
        if self._xla is None:
            return {}, ()
        found = self._xla.of(executable)
        return found, self._xla.missing(record.platform, cache_hit=record.cache_hit, found=found)

    def close(self) -> None:
        """Frees what the compile needed."""
        if self._xla is not None:
            self._xla.close()

    def _write(
        self,
        observer: DumpObserver,
        pipeline: Pipeline,
        target: Target,
        added: Added,
        compile_: Mapping[str, object],
        executable: Any | None,
        found: Mapping[str, Content] | None = None,
        missing: tuple[Missing, ...] = (),
    ) -> Path | None:
        # Imported where something is written: most programs write nothing.
        from hloom.dumps.write.module import write_module

        with guarded("writing the dump of a module"):
            observer.add_input(self._origin.module)
            facts = self._origin.facts(pipeline, target, added, compile_)
            live = LiveModule(facts, {**observer.files, **(found or {})}, missing)
            written = write_module(live, executable, self.root)
            if self.root is not None:
                note_written(self.root)
            return written
        return None


def compile_kept(
    origin: Origin, settings: Settings, compile_: Callable[[Any, Mapping[str, Any]], Any]
) -> Any:
    """Compiles a program that no pass runs on, and keeps what steps to come want of it.

    Raises what `compile_` raises.
    """
    dump = ProgramDump(origin, settings)
    try:
        start_s = time.perf_counter()
        with _jax.watch_cache() as cache:
            executable = dump.watch(compile_)(origin.module, {})
        compile_s = time.perf_counter() - start_s
        record = _record(origin, executable, compile_s, cache_hit=cache.hit)
        dump.keep(dump.observer(), None, _target(origin), {}, record, executable)
        return executable
    finally:
        dump.close()


def _record(
    origin: Origin, executable: Any, compile_s: float, *, cache_hit: bool | None
) -> CompileRecord:
    figures = dataclasses.asdict(_jax.memory_figures(executable))
    return CompileRecord(
        module=module_name(origin.module),
        spec="",
        platform=_jax.platform_of(origin.backend),
        changed=False,
        runs=(),
        pass_s=0.0,
        compile_s=compile_s,
        cache_hit=cache_hit,
        fell_back=None,
        dump_dir=None,
        **figures,
    )


def _target(origin: Origin) -> Target | None:
    from hloom.targets.devices import target_of

    with guarded("describing the devices of a dump"):
        platform = _jax.platform_of(origin.backend)
        return target_of(platform, _jax.device_facts(origin.backend, origin.devices))
    return None
