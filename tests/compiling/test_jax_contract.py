"""What hloom/_jax/__init__.py takes for granted about JAX, one test for each thing.

A failure here on a new JAX says what to look at; widen `FIRST_UNTESTED` when all pass.
"""

from __future__ import annotations

import copy
import gc
import inspect
import json
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import requires

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import RunPython
from jax.extend.mlir import ir
from support import ROOT

from hloom import _jax

X = np.ones(4, np.float32)


def compile_options(**overrides: str) -> object:
    from jax._src import compiler

    return compiler.get_compile_options(1, 1, env_options_overrides=overrides)


def test_this_jax_is_in_the_tested_range() -> None:
    assert _jax.is_tested_version()


def test_the_tested_range_is_the_one_that_is_installed_with() -> None:
    oldest, untested = (
        ".".join(map(str, version)) for version in (_jax.OLDEST_TESTED, _jax.FIRST_UNTESTED)
    )
    [requirement] = [line for line in requires("hloom") or [] if line.startswith("jax<")]
    assert requirement == f"jax<{untested},>={oldest}"


# The flag: jax._src.config.string_or_object_state.


def test_the_flag_is_read_from_config_and_set_by_call() -> None:
    from hloom import plugin

    flag = plugin._flag
    assert flag is not None
    assert flag.value is None
    with flag("off"):
        assert flag.value == jax.config.jax_hloom == "off"
        others: list[object] = []
        thread = threading.Thread(target=lambda: others.append(flag.value))
        thread.start()
        thread.join()
        assert others == [None]
    assert flag.value is None


def test_the_flag_is_part_of_the_trace_context() -> None:
    from jax._src import config

    before = config.trace_context()
    jax.config.update("jax_hloom", "off")
    try:
        assert config.trace_context() != before
    finally:
        jax.config.update("jax_hloom", None)
    assert config.trace_context() == before


def test_jax_finds_the_plugin_and_swallows_its_exceptions(run_python: RunPython) -> None:
    script = """
import jax, numpy as np
import hloom.plugin
def initialize(): raise RuntimeError("seen and swallowed")
hloom.plugin.initialize = initialize
print(jax.jit(lambda x: x * 2.0)(np.ones(3, np.float32))[0])
"""
    result = run_python(script)
    assert result.stdout == "2.0\n"
    assert "seen and swallowed" in result.stderr


# The hook: jax._src.compiler.compile_or_get_cached.


def test_the_wrapped_function_has_the_parameters_that_the_hook_names() -> None:
    from jax._src import compiler

    assert list(inspect.signature(compiler.compile_or_get_cached).parameters) == [
        "backend",
        "computation",
        "devices",
        "compile_options",
        "host_callbacks",
        "executable_devices",
        "pgle_profiler",
    ]


def test_jax_calls_it_through_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src import compiler

    calls: list[tuple[object, ...]] = []
    compile_ = compiler.compile_or_get_cached

    def spy(*args: object, **kwargs: object) -> object:
        calls.append((*args, *kwargs.values()))
        return compile_(*args, **kwargs)

    monkeypatch.setattr(compiler, "compile_or_get_cached", spy)
    jax.jit(lambda x: x + 3)(X)
    [(backend, module, devices, *_)] = calls
    assert isinstance(module, ir.Module)
    assert isinstance(devices, np.ndarray)
    assert backend is jax.devices()[0].client


def test_extra_arguments_reach_jax_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src import compiler

    seen: list[object] = []

    def stand_in(*args: object, **kwargs: object) -> str:
        seen.append((args, kwargs))
        return "executable"

    monkeypatch.setattr(compiler, "compile_or_get_cached", stand_in)
    _jax.install_hook(lambda backend, module, devices, options, compile_: compile_(module, options))
    callbacks, profiler = [object()], object()
    call = compiler.compile_or_get_cached
    given = ("backend", "module", "devices", "options", callbacks, "list")
    assert call(*given, profiler) == "executable"
    assert call(*given, pgle_profiler=profiler, later_argument=1) == "executable"
    assert seen == [
        ((*given, profiler), {}),
        (given, {"pgle_profiler": profiler, "later_argument": 1}),
    ]


# The option: CompileOptions.env_option_overrides, and its copy.


def test_the_option_arrives_in_the_overrides_and_xla_refuses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jax._src import compiler

    from hloom import plugin

    # JAX's own function, without the hook.
    monkeypatch.setattr(
        compiler, "compile_or_get_cached", compiler.compile_or_get_cached.__wrapped__
    )
    assert plugin._flag is not None
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option: 'hloom'"):
        jax.jit(lambda x: x + 4, compiler_options={"hloom": "off"})(X)


def test_jax_counts_the_programs_that_it_compiles() -> None:
    jax.clear_caches()
    assert _jax.compiled_programs() == 0
    lowered = jax.jit(lambda x: x + 1).lower(np.ones(3, np.float32))
    lowered.compile()
    lowered.compile()
    assert _jax.compiled_programs() == 1


def test_taking_the_option_leaves_the_callers_object_as_it_was() -> None:
    options = compile_options(hloom="remat", xla_cpu_enable_fast_math="1")
    before = options.SerializeAsString()
    for _ in range(2):
        spec, cleaned = _jax.take_option(options)
        assert spec == "remat"
        assert cleaned.env_option_overrides == [("xla_cpu_enable_fast_math", "1")]
    assert options.SerializeAsString() == before


def test_taking_the_option_changes_nothing_else() -> None:
    _, cleaned = _jax.take_option(compile_options(hloom="remat", xla_cpu_enable_fast_math="1"))
    expected = compile_options(xla_cpu_enable_fast_math="1")
    assert cleaned.SerializeAsString() == expected.SerializeAsString()


def test_a_copy_of_compile_options_is_whole_and_apart() -> None:
    options = compile_options(xla_cpu_enable_fast_math="1")
    options.executable_build_options.fdo_profile = b"profile"
    clone = copy.copy(options)
    assert clone.SerializeAsString() == options.SerializeAsString()
    clone.env_option_overrides = []
    assert options.env_option_overrides == [("xla_cpu_enable_fast_math", "1")]


def test_options_without_ours_are_handed_on_themselves() -> None:
    options = compile_options(xla_cpu_enable_fast_math="1")
    spec, same = _jax.take_option(options)
    assert spec is None
    assert same is options


# The executables: jax._src.interpreters.pxla.MeshComputation.


def test_a_lowered_computation_keeps_its_first_executable() -> None:
    from jax._src.interpreters import pxla

    # This is why `keep_executables_apart` exists; see there.
    lowered = jax.jit(lambda x: x + 5).lower(X)
    assert isinstance(lowered._lowering, pxla.MeshComputation)
    assert lowered._lowering.compile() is lowered._lowering.compile()
    # With empty options JAX compiles as without, and leaves the one it keeps alone.
    assert lowered._lowering.compile({}) is not lowered._lowering.compile()
    parameters = inspect.signature(pxla.MeshComputation.compile).parameters
    assert list(parameters) == ["self", "compiler_options", "device_assignment"]


def test_executables_are_kept_by_flag() -> None:
    lowered = jax.jit(lambda x: x + 6).lower(X)
    without = lowered._lowering.compile()
    import hloom

    with hloom.passes("off"):
        within = lowered._lowering.compile()
        assert lowered._lowering.compile() is within
    assert within is not without
    assert lowered._lowering.compile() is without


# Who takes part: jaxlib._jax.CompileOnlyPyClient, process indices.


def test_devices_and_clients_tell_their_process() -> None:
    [device, *_] = jax.devices()
    assert device.client.process_index() == device.process_index == 0
    assert _jax.takes_part(device.client, np.array([device], dtype=object))
    assert not _jax.takes_part(device.client, np.array([], dtype=object))
    assert _jax.platform_of(device.client) == "cpu"


TARGET = ROOT / "hloom" / "targets" / "h100_sxm.txtpb"


@pytest.mark.h100
def test_a_compile_only_client_takes_part(run_python: RunPython) -> None:
    script = f"""
import json, numpy as np
from jax.experimental import topologies
from hloom import jax_private
from pathlib import Path
topology = topologies.get_topology_desc(
    platform="cuda", target_config=Path({str(TARGET)!r}).read_text(), topology="2x1x1")
devices = np.array(topology.devices, dtype=object)
client = devices[0].client
# Its second device belongs to no process that exists.
print(json.dumps([client.platform, jax_private.platform_of(client),
    jax_private.takes_part(client, devices), jax_private.takes_part(client, devices[1:])]))
"""
    assert json.loads(run_python(script).stdout) == ["gpu", "cuda", True, True]


# Devices: device_kind, memory_stats, and of GPUs compute_capability and core_count.


def test_a_cpu_tells_its_kind_only() -> None:
    devices = np.array(jax.devices()[:2], dtype=object)
    facts = _jax.device_facts(devices[0].client, devices)
    assert facts == (_jax.DeviceFacts("cpu"),) * 2
    assert _jax.processes_of(devices[0].client, devices) == (0,)


@pytest.mark.h100
def test_a_device_that_is_only_described_tells_what_it_is(run_python: RunPython) -> None:
    script = f"""
import json, numpy as np
from jax.experimental import topologies
from hloom import jax_private
from pathlib import Path
topology = topologies.get_topology_desc(
    platform="cuda", target_config=Path({str(TARGET)!r}).read_text(), topology="2x1x1")
devices = np.array(topology.devices, dtype=object)
client = devices[0].client
print([jax_private.device_facts(client, devices[index:]) for index in range(2)])
print(jax_private.processes_of(client, devices))
"""
    fact = "DeviceFacts(kind='NVIDIA H100 80GB HBM3', compute_capability=(9, 0), core_count=132, "
    fact += "limit_bytes=None)"
    assert run_python(script).stdout.splitlines() == [f"[({fact},), ({fact},)]", "(0,)"]


@pytest.mark.gpu
def test_a_gpu_tells_what_it_is_and_its_limit(run_python: RunPython) -> None:
    script = """
import jax, numpy as np
from hloom import jax_private
devices = np.array(jax.devices(), dtype=object)
for fact in jax_private.device_facts(devices[0].client, devices):
    assert fact.compute_capability >= (7, 0)
    assert fact.core_count > 10
    assert fact.limit_bytes > 2**30
"""
    run_python(script, JAX_PLATFORMS="cuda")


# What processes tell each other: jax._src.distributed.global_state.client.


def test_a_process_alone_has_no_store() -> None:
    assert _jax.ProcessStore.find() is None


def test_processes_share_a_store(run_python: RunPython) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = f"""
import jax
jax.distributed.initialize("127.0.0.1:{port}", num_processes=1, process_id=0)
from hloom._jax import ProcessStore
store = ProcessStore.find()
store.put("hloom/a", "[1]")
print(store.get("hloom/a", 1.0))
store.delete("hloom/a")
print(store.get("hloom/a", 0.1))
store.put("hloom/a", "[2]")
print(store.get("hloom/a", 1.0))
"""
    assert run_python(script).stdout.splitlines() == ["[1]", "None", "[2]"]


# Figures: get_compiled_memory_stats.


def test_an_executable_tells_its_memory() -> None:
    compiled = jax.jit(lambda x: (x @ x) * 2.0).lower(np.ones((16, 16), np.float32)).compile()
    figures = _jax.memory_figures(compiled.runtime_executable())
    analysis = compiled.memory_analysis()
    assert figures == _jax.MemoryFigures(
        temp_bytes=analysis.temp_size_in_bytes,
        argument_bytes=1024,
        output_bytes=1024,
        alias_bytes=0,
    )


# The persistent cache: the event /jax/compilation_cache/cache_hits.


def test_a_cache_hit_is_seen_in_its_own_thread_only() -> None:
    def hit() -> None:
        jax.monitoring.record_event("/jax/compilation_cache/cache_hits")

    jax.config.update("jax_compilation_cache_dir", "/nonexistent")
    try:
        with _jax.watch_cache() as outcome:
            thread = threading.Thread(target=hit)
            thread.start()
            thread.join()
            assert outcome.hit is False
            hit()
            assert outcome.hit is True
        with _jax.watch_cache() as outcome:
            pass
        hit()
        assert outcome.hit is False
    finally:
        jax.config.update("jax_compilation_cache_dir", None)


def test_no_cache_is_neither_hit_nor_miss() -> None:
    with _jax.watch_cache() as outcome:
        pass
    assert outcome.hit is None


# What an executable holds of XLA's side: hlo_modules and the buffer assignment.


def test_an_executable_holds_its_optimised_module() -> None:
    compiled = jax.jit(lambda x: (x @ x) * 2.0).lower(np.ones((16, 16), np.float32)).compile()
    module = _jax.optimized_module(compiled.runtime_executable())
    assert module.name.startswith("jit_")
    assert "is_scheduled=true" in module.text
    assert module.name.encode() in module.proto


def test_an_executable_holds_its_buffer_assignment() -> None:
    compiled = jax.jit(lambda x: (x @ x) @ x).lower(np.ones((16, 16), np.float32)).compile()
    assignment = _jax.buffer_assignment(compiled.runtime_executable())
    assert assignment is not None
    assert len(assignment.proto) > 0
    assert assignment.generated_code_bytes >= 0
    assert _jax.xla_version(compiled.runtime_executable())


def test_a_backend_that_tells_no_buffers_is_no_error() -> None:
    class Executable:
        def get_compiled_memory_stats(self) -> None:
            raise NotImplementedError

    assert _jax.buffer_assignment(Executable()) is None


# Steps: a flag of the jit key alone, and ExecuteReplicated.


def test_with_the_step_flag_every_call_goes_through_python() -> None:
    runs: list[str] = []
    traces: list[int] = []

    def run(program: _jax.Program, _: object, call: Callable[[], object]) -> object:
        runs.append(_jax.module_name_of(program))
        return call()

    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        traces.append(1)
        return x * 2

    compiled = jax.jit(lambda x: x + 1).lower(X).compile()

    def run_both() -> None:
        step(X)
        compiled(X)

    flag = _jax.step_flag()
    run_both()
    with watched_programs(run):
        run_both()
        assert runs == []
        # The same value again and again: JAX's cache of calls must not grow with the steps.
        for _ in range(2):
            with flag("watched"):
                run_both()
                run_both()
            assert runs == ["jit_step", "jit__lambda"] * 2
            runs.clear()
            run_both()
            assert runs == []
    assert len(traces) == 1


def call_it(_: object, __: object, call: Callable[[], object]) -> object:
    return call()


@contextmanager
def watched_programs(
    run: Callable[..., object], made: Callable[[_jax.Program], None] = lambda _: None
) -> Iterator[None]:
    """Watches the programs, whoever watches them already."""
    from jax._src.interpreters import pxla

    init, call = pxla.ExecuteReplicated.__init__, pxla.ExecuteReplicated.__call__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pxla, "MeshExecutableFastpathData", pxla.MeshExecutableFastpathData)
        patch.setattr(pxla.ExecuteReplicated, "__init__", init)
        patch.setattr(pxla.ExecuteReplicated, "__call__", lambda *args: call(*args))
        _jax.watch_programs(made, run)
        yield


def test_a_program_is_made_with_the_executable_of_the_compile() -> None:
    from jax._src import compiler

    compiled: list[object] = []
    made: list[_jax.Program] = []
    compile_or_get_cached = compiler.compile_or_get_cached

    def compile_(*args: object, **kwargs: object) -> object:
        compiled.append(compile_or_get_cached(*args, **kwargs))  # type: ignore[arg-type]
        return compiled[-1]

    with pytest.MonkeyPatch.context() as patch, watched_programs(call_it, made.append):
        patch.setattr(compiler, "compile_or_get_cached", compile_)
        jax.jit(lambda x: x - 3)(X)
    # The very same object: what is kept of a compile is found by its address.
    assert made[-1].xla_executable is compiled[-1]
    assert isinstance(_jax.fingerprint(compiled[-1]), bytes)
    # It goes away with the function, and tells so.
    gone: list[int] = []
    weakref.finalize(made.pop(), gone.append, 1)
    jax.clear_caches()
    gc.collect()
    assert gone == [1]


def test_arguments_are_those_that_the_module_takes() -> None:
    seen: list[list[object]] = []

    def run(program: _jax.Program, args: Sequence[object], call: Callable[[], object]) -> object:
        seen.append(_jax.arguments_of(program, args))
        return call()

    box = jax.new_ref(jnp.ones(2))

    @jax.jit
    def step(unused: jax.Array, used: jax.Array) -> jax.Array:
        box[...] += used[:2]
        return used * 2

    step(X, X)
    with watched_programs(run), _jax.step_flag()("test 3"):
        step(X, 3 * X)
    arguments = seen[0]
    assert len(arguments) == 2
    assert np.asarray(arguments[0])[0] == 3


def test_names_of_modules_are_those_of_programs() -> None:
    def odd_name(x: jax.Array) -> jax.Array:
        return x

    for name in ("step", "odd name!", "<lambda>", "trailing_"):
        odd_name.__name__ = name
        lowered = jax.jit(odd_name).lower(X)
        program = lowered.compile()._executable.unsafe_call  # type: ignore[attr-defined]
        module = str(lowered.compiler_ir().operation.attributes["sym_name"]).strip('"')
        assert _jax.module_name_of(program) == module


def test_options_tell_partitions_and_what_the_program_set() -> None:
    options = compile_options(hloom="remat", xla_cpu_enable_fast_math="true")
    assert _jax.own_options(options) == {"xla_cpu_enable_fast_math": "true"}
    assert _jax.partitions_and_replicas(options) == (1, 1)


# Running an executable by itself: execute_sharded, the shardings of its parameters and outputs,
# GSPMDSharding; and modules through HLO.


def test_an_executable_runs_by_itself_on_several_devices() -> None:
    devices = jax.devices()[:4]
    mesh = jax.sharding.Mesh(np.array(devices), ("a",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a"))
    x = jax.ShapeDtypeStruct((8, 2), "float32", sharding=sharding)
    lowered = jax.jit(lambda x, n: (x + 1, x.sum() * n), donate_argnums=0).lower(x, 2.0)
    executable = _jax.compile_module(lowered.compiler_ir(), devices, {})
    wanted = _jax.argument_shardings(executable, devices, [None, None])
    given = [
        jax.device_put(value, place)
        for value, place in zip(
            (np.arange(16, dtype=np.float32).reshape(8, 2), np.float32(2)), wanted, strict=True
        )
    ]
    assert {shard.data.shape for shard in given[0].addressable_shards} == {(2, 2)}
    shards = _jax.execute(executable, given)
    assert [len(each) for each in shards] == [4, 4]
    results = [(0, (8, 2), shards[0]), (1, (), shards[1])]
    more, total = _jax.assembled(executable, devices, results)
    np.testing.assert_array_equal(more, np.arange(16).reshape(8, 2) + 1)
    assert total == 240
    assert given[0].is_deleted()


def test_an_executable_runs_by_itself_on_one_device() -> None:
    module = jax.jit(jnp.sin).lower(np.float32(0)).compiler_ir()
    executable = _jax.compile_module(module, jax.devices()[:1], {})
    [place] = _jax.argument_shardings(executable, jax.devices()[:1], [None])
    shards = _jax.execute(executable, [jax.device_put(np.float32(0), place)])
    [result] = _jax.assembled(executable, jax.devices()[:1], [(0, (), shards[0])])
    assert result == 0


def test_a_module_through_hlo_has_no_chlo() -> None:
    text = jax.jit(jnp.sinh).lower(np.float32(0)).as_text()
    assert "chlo.sinh" in text
    through = _jax.through_hlo(text)
    assert "chlo." not in through
    assert "@main(%arg0: tensor<f32>" in through
