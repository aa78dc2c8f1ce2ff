"""The plugin: the flag, and the hook around JAX's compile.

JAX finds this module through the entry-point group `jax_plugins` and calls `initialize` when its
backends start, or when it makes a topology of a platform that a plugin provides. A program that
does neither before it compiles, e.g. for TPUs that are only described, has to import hloom: JAX
runs no plugin code before. A compile without a spec costs two look-ups here; everything heavier is
in hloom/compiling/compile.py, imported at the first spec.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from hloom._jax.cache import cache_entry, is_persistent_cache_on
from hloom._jax.devices import device_facts, platform_of, processes_of, takes_part
from hloom._jax.distributed import ProcessStore, process_number
from hloom._jax.flags import FLAG, MIN_SIZE_FLAG, MODULES_FLAG, Flag, declare_flag
from hloom._jax.hook import (
    CompileFunction,
    Options,
    check_options,
    compiled_programs,
    install_hook,
    keep_executables_apart,
)
from hloom._jax.options import OPTION, profiled, take_option, with_options
from hloom._jax.tracebacks import hide_frames, shorten
from hloom._jax.version import FIRST_UNTESTED, OLDEST_TESTED, is_tested_version
from hloom.dumps.select import settings as dump_settings
from hloom.passes.framework.errors import SpecError, did_you_mean, echo
from hloom.passes.framework.text import pluralize
from hloom.policy import warn
from hloom.settings import environment

if TYPE_CHECKING:
    # Importing it loads much of JAX that a process without a spec has no use for.
    from jax.extend.mlir import ir

    from hloom._jax.cache import CacheEntry
    from hloom.compiling.observer import CompileObserver
    from hloom.compiling.origin import Origin
    from hloom.dumps.collect.xla_files import Compile
    from hloom.passes.framework.pipeline import Pipeline
    from hloom.passes.framework.target import Target

_FLAG_DOC = (
    "Passes that hloom runs on every module before XLA, e.g. 'fit'; 'off' for none, 'default' "
    "for the recommended ones. `hloom passes` lists them."
)
_MODULES_DOC = (
    "Patterns of names, e.g. 'jit_train*,jit_loss': the passes of jax_hloom run on modules with "
    "such names alone. Without them on all."
)
_MIN_SIZE_DOC = (
    "A size, by default 1MiB: passes of jax_hloom that only save memory do not run on a program "
    "whose values all together take less. 0 for every program."
)


def initialize() -> None:
    """Puts hloom's hook around JAX's compile; the second and later calls do nothing.

    JAX calls it, and so does `import hloom`: no program needs to. Warns if programs were compiled
    before it although the flag is set, and of unknown variables that look like `HLOOM_*`. Under a
    JAX version that hloom is not tested with it warns and does nothing.
    """
    if _flags is None:
        return
    earlier = compiled_programs()
    is_first = install_hook(_compile)
    check_options(_checked_options)
    keep_executables_apart(_flags.spec, (_flags.modules, _flags.min_size), _checked_options)
    hide_frames(*_SPEC_READERS)
    if is_first:
        environment.check()
    spec = _flags.spec.value
    if is_first and earlier and not (_is_unset(spec) or spec == "off"):
        warn(
            f"hloom: {pluralize(earlier, 'program')} of this process compiled before hloom was "
            f"there went without JAX_HLOOM={echo(str(spec))}: JAX loads plugins when a "
            "backend starts, and none had. Put `import hloom` before the first compile."
        )


@contextmanager
def scope(spec: str) -> Iterator[None]:
    """Sets the passes of jit inside the block, in this thread: `hloom.passes(spec)`.

    A jit's own `compiler_options={"hloom": …}` wins over it. "off" and the empty string switch
    hloom off inside the block. Raises SpecError at once where the spec is mistaken.
    """
    if _flags is None:
        yield
        return
    _check(spec, source="hloom.passes")
    with _flags.spec(spec):
        yield


@dataclass(frozen=True)
class _Flags:
    """hloom's flags among JAX's."""

    spec: Flag
    modules: Flag
    min_size: Flag


def _declare_flags() -> _Flags | None:
    if is_tested_version():
        return _Flags(
            declare_flag(FLAG, _FLAG_DOC, lambda spec: _check(spec, source=FLAG)),
            declare_flag(MODULES_FLAG, _MODULES_DOC, _check_modules),
            declare_flag(MIN_SIZE_FLAG, _MIN_SIZE_DOC, _check_min_size),
        )
    oldest, untested = (".".join(map(str, version)) for version in (OLDEST_TESTED, FIRST_UNTESTED))
    warn(
        f"hloom is off: it is tested with jax >={oldest},<{untested}, and this is jax "
        f"{jax.__version__}. Install a jax of that range, or a newer hloom."
    )
    return None


def _check(spec: Any, *, source: str) -> None:
    """Raises SpecError where the spec is mistaken; None and the empty string mean no spec."""
    if not _is_unset(spec):
        _parse(spec, source=source)


def _check_modules(value: Any) -> None:
    from hloom.settings.programs import parse_modules

    parse_modules(value, source=MODULES_FLAG)


def _check_min_size(value: Any) -> None:
    from hloom.settings.programs import parse_min_size

    parse_min_size(value, source=MIN_SIZE_FLAG)


def _is_unset(spec: Any) -> bool:
    return spec is None or spec == ""


def _checked_options(options: Options) -> Options:
    """Returns a compile's options with hloom's own as a string; None is off.

    Raises SpecError for a value of any other type, and for another name that is close to hloom's.
    """
    for name in options:
        is_xlas = not isinstance(name, str) or name.startswith("xla_")
        if not is_xlas and name != OPTION and did_you_mean(name, [OPTION]):
            shorten(SpecError)
            raise SpecError(f"compiler_options has {echo(name)}. Did you mean {OPTION!r}?")
    if OPTION not in options:
        return options
    shorten(SpecError)
    spec = options[OPTION]
    if spec is not None:
        _check_type(spec, source=_OPTION_SOURCE)
    return {**options, OPTION: "off" if spec is None else str(spec)}


_FOLDER = Path(__file__).parent
_SPEC_READERS = (
    __file__,
    *(str(_FOLDER / each) for each in ("_jax", "settings", "passes/framework")),
)
"""Code that a spec comes through: a traceback of a mistake leaves out its frames."""

_OPTION_SOURCE = "compiler_options['hloom']"


def _check_type(spec: Any, *, source: str) -> None:
    if isinstance(spec, str):
        return
    hint = ""
    if isinstance(spec, bool):
        hint = ", or 'default' for the recommended passes" if spec else ", or 'off' for no passes"
    text = repr(spec)
    raise SpecError(
        f"{source}={text if len(text) <= 120 else f'{text[:120]}...'}: a spec is a string such as "
        f"'fit'{hint}."
    )


def _parse(spec: Any, *, source: str) -> Pipeline:
    shorten(SpecError)
    _check_type(spec, source=source)
    # Imported at the first spec: it brings in the passes, numpy and scipy.
    from hloom.passes.framework.pipeline import Pipeline

    return Pipeline.parse(spec, source=source)


def _compile(
    backend: Any, module: ir.Module, devices: Any, compile_options: Any, compile_: CompileFunction
) -> Any:
    dumped = dump_settings.current()
    spec, options = take_option(compile_options)
    is_own, source = not _is_unset(spec), _OPTION_SOURCE
    if not is_own:
        # Every other way to set the flag checks the spec, so that a mistake comes from the
        # environment.
        spec, source = flag_value(), "JAX_HLOOM"
    pipeline = None if _is_unset(spec) else _parse(spec, source=source)
    waits_for_steps = dumped is not None and dumped.steps is not None
    is_wanted = dumped is not None and dumped.wants_unchanged
    is_on = _acts(pipeline)
    if not (is_on or dumped is not None) or not takes_part(backend, devices):
        return compile_(module, options)
    from hloom.compiling.origin import Origin

    origin = Origin(module, backend, devices, options)
    if _flags is not None and pipeline is not None and not is_own:
        from hloom.settings.programs import chosen

        pipeline = chosen(pipeline, origin, _flags.modules.value, _flags.min_size.value)
    was_on, is_on = is_on, _acts(pipeline)
    if dumped is not None and not waits_for_steps:
        from hloom.dumps.collect.reminder import note_program

        is_left_out = was_on and not is_on
        note_program(dumped, origin.name, has_passes=is_on, is_left_out=is_left_out)
    if not (is_on or is_wanted):
        return compile_(module, options)
    # Imported where a pass runs, or a dump needs the program in any case.
    from hloom.dumps.collect.program import ProgramDump, compile_kept

    def compile_with(chosen: ir.Module, more: Mapping[str, str | int | bool]) -> Any:
        return compile_(chosen, with_options(options, more))

    if pipeline is None or not pipeline.passes:
        assert dumped is not None
        return compile_kept(origin, dumped, compile_with)
    from hloom.compiling.observer import Observers

    dump = ProgramDump(origin, dumped)
    observers = Observers(dump, *_log_of(origin, asked=is_own))
    try:
        watched = dump.watch(compile_with)
        # A dump needs every state of the module, so that the passes have to run.
        keeps = dumped is None
        return _transform(origin, pipeline, watched, dump.given, observers, keeps=keeps)
    finally:
        observers.close()


def _log_of(origin: Origin, *, asked: bool = False) -> Iterator[CompileObserver]:
    """Opens the log of a program, in one of the processes that compile it."""
    from hloom.log.settings import LogLevel, log_level

    level, process = log_level(), origin.backend.process_index()
    if level is LogLevel.OFF or process != min(processes_of(origin.backend, origin.devices)):
        return
    from hloom.log.observer import ProgramLog

    if level is LogLevel.SUMMARY and not process:
        from hloom.log.summary import print_at_exit

        print_at_exit()
    yield ProgramLog(origin.name, process or process_number(), asked=asked)


def _acts(pipeline: Pipeline | None) -> bool:
    return pipeline is not None and bool(pipeline.passes)


def _transform(
    origin: Origin,
    pipeline: Pipeline,
    compile_: Compile,
    given: Mapping[str, str],
    observer: CompileObserver,
    *,
    keeps: bool,
) -> Any:
    from hloom.compiling.compile import compile_program
    from hloom.compiling.cross_process import Agreement
    from hloom.compiling.request import CompileRequest
    from hloom.compiling.xla_options import XlaOptions
    from hloom.record import add_record
    from hloom.targets.devices import placement_of, target_of, with_options

    backend, devices = origin.backend, origin.devices
    process = backend.process_index()
    target = with_options(target_of(platform_of(backend), device_facts(backend, devices)), given)
    request = CompileRequest(
        module=origin.module,
        pipeline=pipeline,
        target=target,
        placement=placement_of(target, devices, process=process),
        compile=compile_,
        agreement=Agreement(
            origin.module, processes_of(backend, devices), me=process, store=ProcessStore.find()
        ),
        xla_options=XlaOptions(given, profiled(origin.options)),
        observer=observer,
        kept=lambda: _kept_entry(origin, pipeline, target) if keeps else None,
    )
    with jax.profiler.TraceAnnotation(f"hloom {origin.name}"):
        result = compile_program(request)
    add_record(result.record)
    return result.executable


def _kept_entry(origin: Origin, pipeline: Pipeline, target: Target) -> CacheEntry | None:
    """Returns the cache entry of the program's plan; None where JAX's cache is off, or changes of a
    pass cannot be detected."""
    if not is_persistent_cache_on():
        return None
    from hloom.compiling.kept import inputs_of

    inputs = inputs_of(pipeline, target)
    if inputs is None:
        return None
    backend, devices = origin.backend, origin.devices
    return cache_entry(
        origin.module,
        devices,
        origin.options,
        backend,
        more=inputs,
        is_writer=backend.process_index() == min(processes_of(backend, devices)),
    )


def flag_value() -> Any:
    """The spec of `jax_hloom` in this thread; None or empty where it is not set."""
    return None if _flags is None else _flags.spec.value


_flags = _declare_flags()
