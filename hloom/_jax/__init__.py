"""Everything of JAX that hloom uses and that JAX does not promise to keep.

Nothing else may import `jax._src` or jaxlib's internals. tests/compiling/test_jax_contract.py
holds JAX to each thing used here, on the oldest and the newest supported version. The private
modules are imported inside the functions: on a JAX outside the tested range this package still
imports, and none of them is touched.
"""

from __future__ import annotations

import copy
import functools
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import jax

if TYPE_CHECKING:
    # Importing it loads much of JAX that a process without a spec has no use for.
    from jax.extend.mlir import ir

OLDEST_TESTED = (0, 10, 2)
FIRST_UNTESTED = (0, 13)

FLAG = "jax_hloom"
STEP_FLAG = "jax_hloom_step"
OPTION = "hloom"
"""The key in a jit's `compiler_options`."""

_MARK = "__hloom__"
"""An attribute of the functions that hloom puts into JAX: none is wrapped twice."""

_CACHE_HIT = "/jax/compilation_cache/cache_hits"


class Flag(Protocol):
    """JAX's state of one configuration option."""

    @property
    def value(self) -> Any:
        """The value in this thread."""

    def __call__(self, value: Any) -> AbstractContextManager[None]:
        """Sets the value in this thread inside a `with` block."""


@dataclass(frozen=True)
class DeviceFacts:
    """What JAX tells of one device.

    Attributes:
      kind: the product, e.g. "NVIDIA H100 80GB HBM3".
      compute_capability: of a CUDA device, e.g. (9, 0); None elsewhere.
      core_count: the GPU's multiprocessors; None elsewhere.
      limit_bytes: what the allocator gives out in all; None where there is no allocator of JAX,
        and where the device is another process's, or not here at all.
    """

    kind: str
    compute_capability: tuple[int, int] | None = None
    core_count: int | None = None
    limit_bytes: int | None = None


@dataclass(frozen=True)
class DevicePlace:
    """Which device of which process.

    Attributes:
      ordinal: the number that XLA tells a custom call that runs there.
      process: the index of the process.
    """

    ordinal: int
    process: int


CompileFunction = Callable[["ir.Module", Any], Any]
"""JAX's own compile of (module, compile options): its cache, then XLA."""

Hook = Callable[[Any, "ir.Module", Any, Any, CompileFunction], Any]
"""Called as (backend, module, devices, compile options, JAX's compile); gives the executable."""


@dataclass(frozen=True)
class MemoryFigures:
    """What XLA's buffer assignment says of an executable, on one device; None where nothing."""

    temp_bytes: int | None = None
    argument_bytes: int | None = None
    output_bytes: int | None = None
    alias_bytes: int | None = None


@dataclass
class CacheOutcome:
    """Whether a compile was served by the persistent cache; None where the cache is off."""

    hit: bool | None


def is_tested_version() -> bool:
    """Whether this JAX is one that hloom is tested with."""
    version: tuple[int, ...] = jax.__version_info__
    return OLDEST_TESTED <= version < FIRST_UNTESTED


def declare_flag(doc: str, validate: Callable[[Any], None]) -> Flag:
    """Declares `jax_hloom`: `JAX_HLOOM`, `jax.config.update` and a context manager at once.

    A change of its value recompiles. `validate` may raise to refuse a new value; the value from
    the environment is not validated here, since JAX would swallow the error at this point.
    """
    from jax._src import config

    declared = False

    def validator(value: Any) -> None:
        if declared:
            validate(value)

    flag: Flag = config.string_or_object_state(
        name=FLAG,
        default=None,
        help=doc,
        validator=validator,
        # The jit key alone is not enough: tracing and lowering are cached by trace context.
        include_in_jit_key=True,
        include_in_trace_context=True,
    )
    declared = True
    return flag


_STEP_DOC = "hloom's own: whether it watches this thread. Never set it."
_step_flag_lock = threading.Lock()


def step_flag() -> Flag:
    """`jax_hloom_step`: while it has a value, each call in this thread goes through Python.

    JAX calls an executable from C++ as soon as it knows it for the arguments and the values of
    such flags. Nothing is traced or compiled for another value; with the old one it is back in C++.
    The value is to be the same each time: JAX keeps an entry for each, and finds none of a
    function's entries quickly where there are many (5 ms a call after 5000 values).
    """
    with _step_flag_lock:
        return _declare_step_flag()


@functools.cache
def _declare_step_flag() -> Flag:
    from jax._src import config

    flag: Flag = config.string_or_object_state(
        name=STEP_FLAG,
        default=None,
        help=_STEP_DOC,
        include_in_jit_key=True,
        include_in_trace_context=False,
    )
    return flag


class Program(Protocol):
    """JAX's `ExecuteReplicated`: what runs an executable from Python."""

    name: str
    xla_executable: Any
    kept_var_idx: set[int]
    mut: Any


def watch_programs(
    made: Callable[[Program], None],
    run: Callable[[Program, Sequence[Any], Callable[[], Any]], Any],
) -> None:
    """Has hloom see each program that JAX makes, and each run of one that goes through Python.

    Every run does in a thread where `step_flag` has a value. The second and later calls do nothing.

    Args:
      made: called with each new program, at the latest when it first runs.
      run: called as (program, arguments, JAX's own run) in the place of JAX's own run.
    """
    from jax._src.interpreters import pxla

    init, call = pxla.ExecuteReplicated.__init__, pxla.ExecuteReplicated.__call__
    if getattr(call, _MARK, False):
        return

    @functools.wraps(init)
    def watched_init(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        made(self)

    @functools.wraps(call)
    def watched_call(self: Any, *args: Any) -> Any:
        return run(self, args, lambda: call(self, *args))

    setattr(watched_call, _MARK, True)
    pxla.ExecuteReplicated.__init__ = watched_init  # type: ignore[method-assign]
    pxla.ExecuteReplicated.__call__ = watched_call  # type: ignore[method-assign]
    _keep_in_python(step_flag())


def _keep_in_python(flag: Flag) -> None:
    """Gives JAX nothing to call an executable from C++ with while `flag` has a value."""
    from jax._src.interpreters import pxla

    fastpath_data: Any = pxla.MeshExecutableFastpathData

    class FastpathData(fastpath_data):  # type: ignore[misc]
        __slots__ = ()

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            # JAX itself has None for what is to stay in Python.
            return None if flag.value is not None else fastpath_data(*args, **kwargs)

    pxla.MeshExecutableFastpathData = FastpathData  # type: ignore[misc]


def module_name_of(program: Program) -> str:
    """The name of a program's module: JAX makes "jit_step" of "jit(step)"."""
    return re.sub(r"[^\w.-]", "_", program.name).rstrip("_")


def arguments_of(program: Program, args: Sequence[Any]) -> list[Any]:
    """Those of the arguments that the module takes, in its order; tokens of effects left out."""
    kept = [each for index, each in enumerate(args) if index in program.kept_var_idx]
    return [*kept, *program.mut.in_mut] if program.mut else kept


def fingerprint(executable: Any) -> bytes | None:
    """What XLA identifies an executable by; None where its backend does not."""
    try:
        found: bytes | None = executable.fingerprint
    except (jax.errors.JaxRuntimeError, NotImplementedError, AttributeError):
        return None
    return found


def install_hook(hook: Hook) -> bool:
    """Puts `hook` around every compile that JAX makes.

    The second and later calls do nothing, and say so by False.
    """
    from jax._src import compiler

    compile_or_get_cached = compiler.compile_or_get_cached
    if getattr(compile_or_get_cached, _MARK, False):
        return False

    @functools.wraps(compile_or_get_cached)
    def hooked(
        backend: Any,
        computation: ir.Module,
        devices: Any,
        compile_options: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        def compile_(module: ir.Module, options: Any) -> Any:
            return compile_or_get_cached(backend, module, devices, options, *args, **kwargs)

        return hook(backend, computation, devices, compile_options, compile_)

    setattr(hooked, _MARK, True)
    compiler.compile_or_get_cached = hooked
    return True


def compiled_programs() -> int:
    """How many programs JAX has compiled in this process since its caches were cleared last."""
    from jax._src.interpreters import pxla

    cached: Any = pxla._cached_compilation
    misses: int = cached.cache_info().misses
    return misses


def check_option(check: Callable[[Any], str]) -> None:
    """Has each value of a compile's "hloom" option go through `check`, which may raise.

    Without it, values that XLA's options cannot hold, as None and bytes, never come to the hook.
    The second and later calls do nothing.
    """
    from jax._src import compiler

    get_compile_options: Any = compiler.get_compile_options
    if getattr(get_compile_options, _MARK, False):
        return

    @functools.wraps(get_compile_options)
    def checked(*args: Any, env_options_overrides: Any = None, **kwargs: Any) -> Any:
        overrides = _with_checked(env_options_overrides, check)
        return get_compile_options(*args, env_options_overrides=overrides, **kwargs)

    setattr(checked, _MARK, True)
    compiler.get_compile_options = checked


def _with_checked(options: Any, check: Callable[[Any], str]) -> Any:
    return {**options, OPTION: check(options[OPTION])} if options and OPTION in options else options


def keep_executables_apart(flag: Flag, check: Callable[[Any], str]) -> None:
    """Gives each lowered computation one executable for each value of `flag`.

    JAX keeps the first executable in the computation, whatever the flag was. Without this, a
    `lowered.compile()` inside `hloom.passes(...)` would decide what the jit runs outside it.
    The options of such a compile go through `check`, before JAX wants them to be hashable. The
    second and later calls do nothing.
    """
    from jax._src.interpreters import pxla

    compile_method = pxla.MeshComputation.compile
    if getattr(compile_method, _MARK, False):
        return

    @functools.wraps(compile_method)
    def compile_for_flag(self: Any, compiler_options: Any = None, **kwargs: Any) -> Any:
        compiler_options = _with_checked(compiler_options, check)
        if not flag.value or compiler_options is not None or any(kwargs.values()):
            return compile_method(self, compiler_options, **kwargs)
        executables = self.__dict__.setdefault("_hloom_executables", {})
        executable = executables.get(flag.value)
        if executable is None:
            # No options and empty options mean the same, but with the latter JAX leaves its own
            # slot alone, which holds what was compiled with the flag unset.
            executable = executables[flag.value] = compile_method(self, {}, **kwargs)
        return executable

    setattr(compile_for_flag, _MARK, True)
    pxla.MeshComputation.compile = compile_for_flag  # type: ignore[method-assign]


def take_option(compile_options: Any) -> tuple[Any, Any]:
    """The jit's own "hloom" option (None where it has none), and options that XLA accepts.

    XLA rejects options that it does not know, so ours is taken out, of a copy: the caller may
    compile with the same object again.
    """
    overrides: list[tuple[str, Any]] = compile_options.env_option_overrides
    given = [value for name, value in overrides if name == OPTION]
    if not given:
        return None, compile_options
    cleaned = copy.copy(compile_options)
    cleaned.env_option_overrides = [pair for pair in overrides if pair[0] != OPTION]
    return given[-1], cleaned


def with_options(compile_options: Any, options: Mapping[str, str | int | bool]) -> Any:
    """The compile options with some of XLA's set beside, or in the place of, those they have."""
    if not options:
        return compile_options
    extended = copy.copy(compile_options)
    kept = [pair for pair in compile_options.env_option_overrides if pair[0] not in options]
    extended.env_option_overrides = [*kept, *options.items()]
    return extended


def given_options(compile_options: Any) -> dict[str, str]:
    """The options of XLA that the program has set, by name: for this compile, or in XLA_FLAGS."""
    flags = re.findall(r"--(\w+)(?:=(\S*))?", os.environ.get("XLA_FLAGS", ""))
    given = {name: value or "true" for name, value in flags}
    given.update((name, str(value)) for name, value in compile_options.env_option_overrides)
    return given


def own_options(compile_options: Any) -> dict[str, str]:
    """The options of XLA that the program has set for this compile, by name; not hloom's."""
    overrides: list[tuple[str, Any]] = compile_options.env_option_overrides
    return {name: str(value) for name, value in overrides if name != OPTION}


def partitions_and_replicas(compile_options: Any) -> tuple[int, int]:
    """How many partitions and replicas a program is compiled for."""
    build = compile_options.executable_build_options
    return int(build.num_partitions), int(build.num_replicas)


def profiled(compile_options: Any) -> str | None:
    """What profiles the program, so that XLA uses no CUDA graphs for now; None where nothing does.

    AutoPGLE compiles twice: JAX has XLA form no graphs the first time. While a trace is taken, XLA
    runs what it captured kernel by kernel.
    """
    from jax._src import config, profiler

    is_auto_pgle = config.enable_pgle.value and config.pgle_profiling_runs.value > 0
    if is_auto_pgle and not compile_options.executable_build_options.fdo_profile:
        return "AutoPGLE profiles this executable: JAX switches CUDA graphs off until it recompiles"
    state: Any = profiler._profile_state
    # jax 0.12 has it under the second name.
    if getattr(state, "profile_session", None) or getattr(state, "session", None):
        return "a profiler is running: XLA launches captured work kernel by kernel until it stops"
    return None


def takes_part(backend: Any, devices: Any) -> bool:
    """Whether a device of this process is among the devices that the executable is for.

    A compile-only backend, which stands for devices that are not here, takes part as long as
    it has any device.
    """
    return bool(devices.size) and backend.process_index() in processes_of(backend, devices)


def processes_of(backend: Any, devices: Any) -> tuple[int, ...]:
    """The processes that compile a program for these devices, by index, sorted.

    A compile-only backend compiles for all of them in this one.
    """
    from jaxlib import _jax

    if isinstance(backend, _jax.CompileOnlyPyClient):
        return (backend.process_index(),)
    return tuple(sorted({device.process_index for device in devices.flat}))


def platform_of(backend: Any) -> str:
    """The backend's platform by one name everywhere: "cpu", "cuda", "rocm", "tpu", …"""
    if backend.platform != "gpu":
        return str(backend.platform)
    return "rocm" if backend.platform_version.startswith("rocm") else "cuda"


def device_facts(backend: Any, devices: Any) -> tuple[DeviceFacts, ...]:
    """Facts of those of the devices that are this process's, or of all where none of them is."""
    here = [device for device in devices.flat if device.process_index == backend.process_index()]
    return tuple(_facts(device) for device in here or devices.flat)


def _facts(device: Any) -> DeviceFacts:
    # CUDA says "9.0", ROCm "gfx942", other platforms nothing.
    major, _, minor = str(getattr(device, "compute_capability", "")).partition(".")
    capability = (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None
    try:
        limit_bytes = (device.memory_stats() or {}).get("bytes_limit")
    except (jax.errors.JaxRuntimeError, NotImplementedError):
        limit_bytes = None
    return DeviceFacts(
        kind=device.device_kind,
        compute_capability=capability,
        core_count=getattr(device, "core_count", None),
        limit_bytes=limit_bytes,
    )


def device_places(devices: Any) -> tuple[DevicePlace, ...]:
    """Where the partitions of a program for these devices run, by partition."""
    counts: Counter[int] = Counter()
    in_order: dict[int, int] = {}
    for device in sorted(devices.flat, key=lambda device: int(device.id)):
        in_order[device.id] = counts[device.process_index]
        counts[device.process_index] += 1
    return tuple(
        DevicePlace(_ordinal(device, in_order[device.id]), device.process_index)
        for device in devices.flat
    )


def _ordinal(device: Any, number_in_process: int) -> int:
    # XLA:CPU tells a custom call the device's id, which is another in each process; XLA:GPU its
    # number in the process (0.10.2 and 0.12.0.1).
    if device.platform == "cpu":
        return int(device.id)
    # A device that is only described has no number: they are taken to be in order.
    return number_in_process if device.local_hardware_id is None else device.local_hardware_id


class ProcessStore:
    """The key-value store of `jax.distributed`: what one process puts there all can read."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    def find(cls) -> ProcessStore | None:
        """The store; None where `jax.distributed.initialize` was not called."""
        from jax._src import distributed

        client = distributed.global_state.client
        return None if client is None else cls(client)

    def put(self, key: str, value: str) -> None:
        """Stores a value."""
        self._client.key_value_set(key, value)

    def get(self, key: str, timeout_s: float) -> str | None:
        """The value, as soon as there is one; None where there was none in time."""
        try:
            value: str = self._client.blocking_key_value_get(key, int(timeout_s * 1000))
        except jax.errors.JaxRuntimeError:
            return None
        return value

    def delete(self, key: str) -> None:
        """Forgets a value."""
        self._client.key_value_delete(key)


def ffi_targets(platform: str) -> frozenset[str] | None:
    """The FFI targets that XLA has for a platform; None for one that lives in a plugin.

    A plugin ("cuda") has a registry of its own, which nobody can ask.
    """
    from jaxlib import xla_client

    return frozenset(xla_client.custom_call_targets("Host")) if platform == "cpu" else None


def keeps_barriers(platform: str) -> bool:
    """Whether XLA merges equal operations before it drops the optimization barriers.

    XLA:CPU of jaxlib 0.10.2 expands them first, so that a recomputation merges back into the first
    computation; that of 0.11.2 and 0.12.0.1 keeps them (measured 2026-11-21 on an unrolled GPT:
    temp bytes 51.1 -> 51.1 MiB and 51.1 -> 23.3 MiB).
    """
    return platform != "cpu" or jax.__version_info__ >= (0, 11, 2)


def memory_figures(executable: Any) -> MemoryFigures:
    """XLA's memory figures of an executable; empty where its backend gives none."""
    try:
        stats = executable.get_compiled_memory_stats()
    except (jax.errors.JaxRuntimeError, NotImplementedError):
        return MemoryFigures()
    return MemoryFigures(
        temp_bytes=stats.temp_size_in_bytes,
        argument_bytes=stats.argument_size_in_bytes,
        output_bytes=stats.output_size_in_bytes,
        alias_bytes=stats.alias_size_in_bytes,
    )


_watched = threading.local()


@contextmanager
def watch_cache() -> Iterator[CacheOutcome]:
    """Sees whether the compile inside the block, in this thread, hits the persistent cache."""
    _listen_to_cache()
    config: Any = jax.config
    is_on = bool(config.jax_compilation_cache_dir and config.jax_enable_compilation_cache)
    _watched.outcome = outcome = CacheOutcome(False if is_on else None)
    try:
        yield outcome
    finally:
        _watched.outcome = None


@functools.cache
def _listen_to_cache() -> None:
    jax.monitoring.register_event_listener(_on_event)


def _on_event(event: str, **_: Any) -> None:
    outcome: CacheOutcome | None = getattr(_watched, "outcome", None)
    if outcome is not None and event == _CACHE_HIT:
        outcome.hit = True


def compile_options_for(devices: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """JAX's compile options for a module with one partition on each of these devices.

    Args:
      devices: of one backend.
      options: by name, XLA's and "hloom".
    """
    import numpy as np
    from jax._src import compiler

    return compiler.get_compile_options(
        num_replicas=1,
        num_partitions=len(devices),
        device_assignment=np.array([[device.id for device in devices]]),
        env_options_overrides=dict(options),
        backend=devices[0].client,
    )


def compile_module(module: ir.Module, devices: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Compiles a module for these devices as JAX would, through its hook and its cache.

    Args:
      module: for as many partitions as there are devices.
      devices: of one backend; it may be one that only compiles.
      options: compile options, "hloom" among them or not.
    """
    import numpy as np
    from jax._src import compiler
    from jaxlib import _jax

    backend = devices[0].client
    compile_options = compile_options_for(devices, options)
    return compiler.compile_or_get_cached(
        backend,
        module,
        np.array(devices),
        compile_options,
        host_callbacks=[],
        executable_devices=_jax.DeviceList(tuple(devices)),
    )


def make_context() -> ir.Context:
    """A fresh MLIR context with every dialect of the modules that JAX makes.

    hloom-opt (hloom/tools/opt/job.py) reads modules in it. The public dialect modules register only
    their own dialect: a module also needs func, arith, mhlo and what native passes need of them.
    """
    from jax._src.interpreters import mlir

    # jax 0.10.2 has no _create_ir_context; later ones hand one context of make_ir_context out
    # several times.
    create = getattr(mlir, "_create_ir_context", mlir.make_ir_context)
    context: ir.Context = create()
    return context


@dataclass(frozen=True)
class OptimizedModule:
    """What an executable holds of the module that XLA made of the program.

    Attributes:
      name: the module's, e.g. "jit_step".
      text: XLA's text of it, in the order of the schedule.
      proto: the same as a serialized HloModuleProto, with the ids of the instructions.
    """

    name: str
    text: str
    proto: bytes


def optimized_module(executable: Any) -> OptimizedModule:
    """XLA's optimised module, also of an executable that came from the cache.

    Raises what the backend raises where it does not tell.
    """
    [module, *_] = executable.hlo_modules()
    return OptimizedModule(
        module.name, module.to_string(), bytes(module.as_serialized_hlo_module_proto())
    )


@dataclass(frozen=True)
class BufferAssignment:
    """What XLA keeps of the buffers of an executable.

    Attributes:
      proto: a serialized BufferAssignmentProto; empty where the backend has none.
      generated_code_bytes: of the code itself, on one device.
    """

    proto: bytes
    generated_code_bytes: int


def buffer_assignment(executable: Any) -> BufferAssignment | None:
    """XLA's buffer assignment of an executable; None where its backend does not tell."""
    try:
        stats = executable.get_compiled_memory_stats()
    except (jax.errors.JaxRuntimeError, NotImplementedError):
        return None
    proto = bytes(stats.serialized_buffer_assignment_proto or b"")
    return BufferAssignment(proto, stats.generated_code_size_in_bytes)


def xla_version(executable: Any) -> str | None:
    """What the executable's backend says of its version; None for devices that are not here."""
    client = getattr(executable, "client", None)
    return None if client is None else str(client.platform_version)


def argument_shardings(
    executable: Any, devices: Sequence[Any], memory_kinds: Sequence[str | None]
) -> tuple[jax.sharding.Sharding, ...]:
    """How an executable wants its arguments spread over its devices.

    Args:
      executable: of `compile_module`.
      devices: what it was compiled for, in order.
      memory_kinds: for each argument, the memory that it lies in; None for the device's own.
    """
    shardings = executable.get_parameter_shardings() or [None] * len(memory_kinds)
    return tuple(
        _sharding(devices, sharding, kind)
        for sharding, kind in zip(shardings, memory_kinds, strict=True)
    )


def execute(executable: Any, arguments: Sequence[jax.Array]) -> list[list[jax.Array]]:
    """Runs an executable; gives each result's shards, by device.

    Arguments that it was compiled to write over are gone afterwards.
    """
    results = executable.execute_sharded(list(arguments))
    shards: list[list[jax.Array]] = results.disassemble_into_single_device_arrays()
    return shards


def assembled(
    executable: Any,
    devices: Sequence[Any],
    results: Sequence[tuple[int, tuple[int, ...], Sequence[jax.Array]]],
) -> list[jax.Array]:
    """Whole arrays of the shards that `execute` gave.

    Args:
      executable: what gave them.
      devices: what it was compiled for, in order.
      results: of each, the number of the result, its whole shape, and its shards.
    """
    shardings = executable.get_output_shardings()
    return [
        jax.make_array_from_single_device_arrays(
            shape,
            _sharding(devices, shardings and shardings[index], shards[0].sharding.memory_kind),
            list(shards),
        )
        for index, shape, shards in results
    ]


def _sharding(devices: Sequence[Any], sharding: Any, kind: str | None) -> jax.sharding.Sharding:
    from jax._src import sharding_impls

    if sharding is None:
        return jax.sharding.SingleDeviceSharding(devices[0], memory_kind=kind)
    gspmd: jax.sharding.Sharding = sharding_impls.GSPMDSharding(
        tuple(devices), sharding, memory_kind=kind
    )
    return gspmd


def through_hlo(module_text: str) -> str:
    """A module as XLA reads it: StableHLO without CHLO, calls and shardings of JAX as they are."""
    from jaxlib import _jax

    computation = _jax.mlir.mlir_module_to_xla_computation(
        module_text, use_tuple_args=False, return_tuple=False
    )
    return str(_jax.mlir.xla_computation_to_mlir_module(computation))
