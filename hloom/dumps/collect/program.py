"""The dump of one program during its compile: written at once, or kept for later steps."""

from __future__ import annotations

import dataclasses
import functools
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax.extend.mlir import ir

from hloom._jax.cache import watch_cache
from hloom._jax.devices import device_facts, platform_of
from hloom._jax.executables import MemoryFigures, memory_figures
from hloom._jax.options import given_options, own_options, partitions_and_replicas
from hloom.compiling.observer import CompileObserver
from hloom.compiling.origin import Origin
from hloom.dumps.collect import tracer as watch
from hloom.dumps.collect.divided import DividedStep
from hloom.dumps.collect.reminder import note_waiting, note_written
from hloom.dumps.collect.store import LiveModule, ModuleFacts, keep, on_disk
from hloom.dumps.collect.xla_files import Compile, XlaFiles
from hloom.dumps.entry import entry_values, main_of
from hloom.dumps.format import INPUT, json_text
from hloom.dumps.select.settings import Settings
from hloom.passes.framework.errors import PassError
from hloom.passes.framework.structure import written
from hloom.passes.ir.clone import bytecode_of
from hloom.policy import guarded
from hloom.record import CompileRecord

if TYPE_CHECKING:
    from hloom.passes.framework.base import Pass, Plan
    from hloom.passes.framework.pipeline import Pipeline
    from hloom.passes.framework.target import Target


class ProgramDump(CompileObserver):
    """The dump of one program.

    A program that a pass fails on is always written, a program that passes change where dumps are
    on.

    Attributes:
      given: the program's own options of XLA, and those that make XLA write the kept files.
    """

    def __init__(self, origin: Origin, settings: Settings | None) -> None:
        self._root = None if settings is None else settings.to
        self.given = given_options(origin.options)
        wanted = settings is not None and settings.wants_module(origin.name)
        self._settings = settings if wanted else None
        self._origin = origin
        self._xla: XlaFiles | None = None
        self._of_attempts: dict[int, list[Path]] = {}  # XLA's files, by the attempt's number
        parts = None if self._settings is None else self._settings.parts
        self._shared = DumpObserver(self._settings, {**(parts or {})})
        self._candidates: list[DumpObserver] = []
        if self._for_steps:
            watch.install()
            note_waiting()
        if self._settings is not None:
            with guarded("having XLA write its files for dumps"):
                self._xla = XlaFiles(self.given, origin.xla_name)
                self.given = self._xla.given

    @property
    def _for_steps(self) -> bool:
        """Whether the program is kept for later steps."""
        return self._settings is not None and self._settings.steps is not None

    @property
    def _newest(self) -> DumpObserver:
        return self._candidates[-1] if self._candidates else self._shared

    def watch(self, compile_: Compile) -> Compile:
        """Returns the compile with XLA writing the files to keep."""
        return compile_ if self._xla is None else self._xla.watch(compile_)

    def before(self, index: int, step: Pass, module: ir.Module) -> None:
        self._newest.before(index, step, module)

    def after(self, index: int, step: Pass, plan: Plan, module: ir.Module) -> None:
        self._newest.after(index, step, plan, module)

    def candidate(self) -> None:
        self._candidates.append(self._shared.fork())

    def lowered(self, index: int, module: ir.Module) -> None:
        self._newest.lowered(index, module)

    def attempted(self, number: int, figures: MemoryFigures, seconds: float) -> None:
        if self._xla is not None:
            self._of_attempts[number] = self._xla.newest

    def failed(self, pipeline: Pipeline, target: Target, failure: PassError) -> Path | None:
        """Writes the program; returns the folder, None where it cannot be written."""
        files = self._newest
        files.files["failure.txt"] = "".join(traceback.format_exception(failure))
        with guarded("writing the dump of a module"):
            files.add_input(self._origin.module)
            entry: dict[str, object] = {"fell_back": str(failure)}
            facts = facts_of(self._origin, pipeline, target, {}, entry)
            return self._write(LiveModule(facts, files.files), None)
        return None

    def compiled(
        self,
        pipeline: Pipeline | None,
        target: Target | None,
        record: CompileRecord,
        executable: Any,
    ) -> Path | None:
        """Writes the program, or keeps it for later steps, as the settings say.

        `pipeline` and `target` are None where no pass ran.
        """
        if self._settings is None:
            return None
        wanted = record.changed or len(record.attempts) > 1 or self._settings.wants_unchanged
        # A failure was written already, with the states before it.
        if not (self._for_steps or (wanted and record.dump_dir is None)):
            return None
        keeps = "keeping a module for dumps of later steps"
        with guarded(keeps if self._for_steps else "writing the dump of a module"):
            live = self._live(pipeline, target, record, executable)
            if not self._for_steps:
                return self._write(live, executable)
            keep(executable, live)
        return None

    def divided(self, pipeline: Pipeline, target: Target, record: CompileRecord) -> DividedStep:
        """Returns the dump of a step that is not compiled itself but becomes several programs."""
        if not self._for_steps:
            return DividedStep(record.module, self.compiled(pipeline, target, record, None), None)
        with guarded("keeping a step for dumps of later ones"):
            live = on_disk(self._live(pipeline, target, record, None))[0]
            return DividedStep(record.module, None, live)
        return DividedStep(record.module, None, None)

    def _used(self, record: CompileRecord) -> DumpObserver:
        """Returns the observer of the candidate that is used, with the other attempts."""
        attempts = self._candidates[: len(record.attempts)]
        best = record.best_attempt
        used = self._newest if best is None else attempts[best]
        if len(attempts) > 1:
            for number, other in enumerate(attempts, start=1):
                if other is not used:
                    used.include(other, folder=f"attempt-{number}")
                    if record.attempts[number - 1].unmodified:
                        self._add_live_ranges(used, number)
            used.files["attempts.json"] = _attempts_text(record)
        if record.captured is not None:
            used.files["captured.json"] = json_text(written(record.captured))
        if record.sent is not None:
            used.files["sent.json"] = json_text(written(record.sent))
        return used

    def _add_live_ranges(self, used: DumpObserver, number: int) -> None:
        """Adds the live ranges of the original program, which an attempt compiled."""
        with guarded("reading the live ranges of the program as it was"):
            if self._xla is not None and (files := self._of_attempts.get(number)):
                found = self._xla.live_ranges_in(files)
                if found is not None:
                    used.files[f"attempt-{number}/xla/live_ranges.json"] = json_text(found)

    def _live(
        self,
        pipeline: Pipeline | None,
        target: Target | None,
        record: CompileRecord,
        executable: Any,
    ) -> LiveModule:
        """Returns the facts about the program, with XLA's files."""
        files = self._used(record)
        files.add_input(self._origin.module)
        found = {} if self._xla is None else self._xla.of(executable)
        added = {} if record.captured is None else record.captured.options
        target = target or _target(self._origin)
        facts = facts_of(self._origin, pipeline, target, added, compile_entry(record))
        passes = None if self._settings is None else self._settings.passes
        return LiveModule(facts, {**files.files, **found}, passes=passes)

    def _write(self, live: LiveModule, executable: Any | None) -> Path | None:
        # Imported where something is written: most programs write no dump.
        from hloom.dumps.write.module import write_module

        written = write_module(live, executable, self._root)
        if self._root is not None:
            note_written(self._root)
        return written

    def close(self) -> None:
        """Frees the resources of the compile."""
        if self._xla is not None:
            self._xla.close()


def compile_kept(
    origin: Origin, settings: Settings, compile_: Callable[[Any, Mapping[str, Any]], Any]
) -> Any:
    """Compiles a program that no pass runs on, and keeps the facts for later steps.

    Raises what `compile_` raises.
    """
    dump = ProgramDump(origin, settings)
    try:
        start_s = time.perf_counter()
        with watch_cache() as cache:
            executable = dump.watch(compile_)(origin.module, {})
        record = CompileRecord(
            module=origin.name,
            spec="",
            platform=platform_of(origin.backend),
            changed=False,
            runs=(),
            pass_s=0.0,
            compile_s=time.perf_counter() - start_s,
            cache_hit=cache.hit,
            **dataclasses.asdict(memory_figures(executable)),
            fell_back=None,
            dump_dir=None,
        )
        dump.compiled(None, None, record, executable)
        return executable
    finally:
        dump.close()


def _attempts_text(record: CompileRecord) -> str:
    names = ("predicted_step_bytes", "step_bytes", "temp_bytes", "added_flops", "step_s")
    return json_text(
        [
            {"used": index == record.best_attempt}
            | {name: getattr(attempt, name) for name in names}
            | ({"limit_bytes": attempt.limit_bytes} if attempt.refusal else {})
            for index, attempt in enumerate(record.attempts)
        ]
    )


def _target(origin: Origin) -> Target | None:
    from hloom.targets.devices import target_of

    with guarded("describing the devices of a dump"):
        platform = platform_of(origin.backend)
        return target_of(platform, device_facts(origin.backend, origin.devices))
    return None


def facts_of(
    origin: Origin,
    pipeline: Pipeline | None,
    target: Target | None,
    added: Mapping[str, str | int | bool],
    compile_: Mapping[str, object],
) -> ModuleFacts:
    """Returns the entries of the manifest about a program.

    `added` are compile options that hloom added, `compile_` is the manifest's "compile".
    """
    arguments, results = signature_names(origin.module)
    partitions, replicas = partitions_and_replicas(origin.options)
    devices = tuple(origin.devices.flat)
    return ModuleFacts(
        name=origin.name,
        platform=platform_of(origin.backend),
        processes=frozenset(device.process_index for device in devices),
        arguments=arguments,
        results=results,
        manifest={
            "spec": "" if pipeline is None else str(pipeline),
            "passes": [] if pipeline is None else list(map(str, pipeline.steps())),
            "target": None if target is None else asdict(target),
            "devices": _dumped(devices),
            "partitions": partitions,
            "replicas": replicas,
            "compile_options": own_options(origin.options),
            "options": dict(added),
            "compile": dict(compile_),
        },
    )


@functools.lru_cache(maxsize=64)
def _dumped(devices: tuple[Any, ...]) -> list[dict[str, object]]:
    # Cached, so that a list of thousands of devices is in memory once, not once for each module.
    return [{"id": d.id, "process": d.process_index, "kind": d.device_kind} for d in devices]


def compile_entry(record: CompileRecord) -> dict[str, object]:
    """The manifest's "compile"."""
    names = (
        "cache_hit", "pass_s", "compile_s", "compiles", "fell_back", "complaint", "changed",
        "temp_bytes_before", "before_is_measured", "step_s", "step_s_before", "added_work",
        "xla_recomputed",
    )  # fmt: skip
    entry = {name: getattr(record, name) for name in (*names, "best_attempt")}
    if not record.compiles:
        entry["compile_s"] = None  # no compile by XLA, e.g. for a step that `hloom.split` divides
    left_out = {"plan", "rewrites", "record"}
    runs = [asdict(run) for run in record.runs]
    return entry | {"runs": [{k: run[k] for k in run.keys() - left_out} for run in runs]}


def signature_names(module: ir.Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns JAX's names of the module's arguments and results, in order."""
    main = main_of(module)
    arguments, results = ([], []) if main is None else entry_values(main)
    return tuple(each.name for each in arguments), tuple(each.name for each in results)


class DumpObserver:
    """Collects a module's states before and after the passes that the settings choose.

    States are text; where dumps wait for steps they are bytecode, which is smaller and faster to
    write. Without settings it keeps only states added by name.

    Nothing is written to disk here: most modules of a process are small functions of JAX that no
    pass changes, and their folders would bury the others.

    Attributes:
      files: the collected files, by file name in the module's folder.
    """

    def __init__(
        self, settings: Settings | None, files: dict[str, str | bytes] | None = None
    ) -> None:
        self._settings = settings
        self.files = dict(files or {})
        self._changed_since = False

    def fork(self) -> DumpObserver:
        """Returns an observer of another module that shares the states so far."""
        fork = DumpObserver(self._settings, self.files)
        fork._changed_since = self._changed_since
        return fork

    def include(self, other: DumpObserver, folder: str) -> None:
        """Adds the files of another observer that are new or differ here, in a folder."""
        for file_name, content in other.files.items():
            if self.files.get(file_name) != content:
                self.files[f"{folder}/{file_name}"] = content

    def before(self, index: int, step: Pass, module: ir.Module) -> None:
        """Keeps the module where the pass is chosen and no file has this state yet."""
        passes = None if self._settings is None else self._settings.passes
        if self._changed_since and step.name in (passes or ()):
            self.add_state(f"{index + 1:02d}-before-{step.name}.mlir", module)

    def after(self, index: int, step: Pass, plan: Plan, module: ir.Module) -> None:
        """Keeps the plan, and the module where the plan was not empty and the pass is chosen."""
        if self._settings is None:
            return
        number = f"{index + 1:02d}"
        self.files[f"plan-{number}-{step.name}.json"] = json_text(plan.to_json())
        if plan.empty:
            return
        if self._settings.wants_pass(step.name):
            self.add_state(f"{number}-after-{step.name}.mlir", module)
        else:
            self._changed_since = True

    def lowered(self, index: int, module: ir.Module) -> None:
        """Keeps the module where lowering replaced marks."""
        if self._settings is not None:
            self.add_state(f"{index + 1:02d}-after-lowering.mlir", module)

    def add_input(self, module: ir.Module) -> None:
        """Adds the module as JAX passed it to the compile."""
        self.add_state(INPUT, module)

    def add_state(self, file_name: str, module: ir.Module) -> None:
        """Adds the current state of the module."""
        self._changed_since = False
        with guarded("keeping a state of a module for a dump"):
            as_text = self._settings is None or self._settings.steps is None
            self.files[file_name] = module_text(module) if as_text else bytecode_of(module)


def module_text(module: ir.Module) -> str:
    """Returns the module as text that parses back to it, locations included."""
    return str(module.operation.get_asm(enable_debug_info=True)) + "\n"
