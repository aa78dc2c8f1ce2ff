"""What hloom/_jax/executables.py takes for granted of JAX.

`get_compiled_memory_stats`, `get_parameter_layouts`, `get_output_layouts` and `hlo_modules`.

What hloom/_jax/cache.py takes for granted of JAX.

The event /jax/compilation_cache/cache_hits.

What hloom/_jax/execution.py takes for granted of JAX.

`execute_sharded`, the shardings of parameters and outputs, `GSPMDSharding`.

What is read from the errors with which XLA refuses a program that does not fit.
"""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hloom._jax.cache import watch_cache
from hloom._jax.executables import (
    MemoryFigures,
    generated_code_bytes,
    memory_figures,
    optimized_text,
    xla_version,
)
from hloom._jax.execution import argument_shardings, assembled, compile_module, execute
from hloom._jax.out_of_memory import OutOfMemory, out_of_memory
from hloom.targets import deviceless


def test_an_executable_tells_its_memory() -> None:
    compiled = jax.jit(lambda x: (x @ x) * 2.0).lower(np.ones((16, 16), np.float32)).compile()
    figures = memory_figures(compiled.runtime_executable())
    analysis = compiled.memory_analysis()
    assert figures == MemoryFigures(
        temp_bytes=analysis.temp_size_in_bytes,
        argument_bytes=1024,
        output_bytes=1024,
        alias_bytes=0,
    )


def test_an_executable_holds_its_optimised_module() -> None:
    compiled = jax.jit(lambda x: (x @ x) * 2.0).lower(np.ones((16, 16), np.float32)).compile()
    text = optimized_text(compiled.runtime_executable())
    assert text.startswith("HloModule jit_")
    assert "is_scheduled=true" in text


def test_an_executable_tells_its_code_and_version() -> None:
    compiled = jax.jit(lambda x: (x @ x) @ x).lower(np.ones((16, 16), np.float32)).compile()
    size_bytes = generated_code_bytes(compiled.runtime_executable())
    assert size_bytes >= 0
    assert xla_version(compiled.runtime_executable())


@pytest.mark.tpu
def test_temporaries_on_a_tpu_are_the_peak_beside_arguments_and_results() -> None:
    sharding = deviceless.placement("v5p")
    weights = jax.ShapeDtypeStruct((4096, 16384), "float32", sharding=sharding)

    def step(x: jax.Array, donated: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.tanh(x @ donated.T) @ donated, donated + x

    lowered = jax.jit(step, donate_argnums=1).lower(weights, weights)
    compiled = lowered.compile()
    figures = memory_figures(compiled.runtime_executable())
    peak_bytes = compiled.runtime_executable().get_compiled_memory_stats().peak_memory_in_bytes
    assert figures.alias_bytes == 4096 * 16384 * 4
    given = (figures.argument_bytes or 0) + (figures.output_bytes or 0) - figures.alias_bytes
    assert given + (figures.temp_bytes or 0) == peak_bytes


def test_a_backend_that_tells_no_memory_is_no_error() -> None:
    class Executable:
        def get_compiled_memory_stats(self) -> None:
            raise NotImplementedError

    assert generated_code_bytes(Executable()) is None
    assert memory_figures(Executable()) == MemoryFigures()


def test_a_cache_hit_is_seen_in_its_own_thread_only() -> None:
    def hit() -> None:
        jax.monitoring.record_event("/jax/compilation_cache/cache_hits")

    was_on = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", "/nonexistent")
    try:
        with watch_cache() as outcome:
            thread = threading.Thread(target=hit)
            thread.start()
            thread.join()
            assert outcome.hit is False
            hit()
            assert outcome.hit is True
        with watch_cache() as outcome:
            pass
        hit()
        assert outcome.hit is False
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
        jax.config.update("jax_enable_compilation_cache", was_on)


def test_no_cache_is_neither_hit_nor_miss() -> None:
    with watch_cache() as outcome:
        pass
    assert outcome.hit is None


def test_an_executable_runs_by_itself_on_several_devices() -> None:
    devices = jax.devices()[:4]
    mesh = jax.sharding.Mesh(np.array(devices), ("a",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a"))
    x = jax.ShapeDtypeStruct((8, 2), "float32", sharding=sharding)
    lowered = jax.jit(lambda x, n: (x + 1, x.sum() * n), donate_argnums=0).lower(x, 2.0)
    executable = compile_module(lowered.compiler_ir(), devices, {})
    wanted = argument_shardings(executable, devices, [None, None])
    given = [
        jax.device_put(value, place)
        for value, place in zip(
            (np.arange(16, dtype=np.float32).reshape(8, 2), np.float32(2)), wanted, strict=True
        )
    ]
    assert {shard.data.shape for shard in given[0].addressable_shards} == {(2, 2)}
    shards = execute(executable, given)
    assert [len(each) for each in shards] == [4, 4]
    results = [(0, (8, 2), shards[0]), (1, (), shards[1])]
    more, total = assembled(executable, devices, results)
    np.testing.assert_array_equal(more, np.arange(16).reshape(8, 2) + 1)
    assert total == 240
    assert given[0].is_deleted()


def test_an_executable_runs_by_itself_on_one_device() -> None:
    module = jax.jit(jnp.sin).lower(np.float32(0)).compiler_ir()
    executable = compile_module(module, jax.devices()[:1], {})
    [place] = argument_shardings(executable, jax.devices()[:1], [None])
    shards = execute(executable, [jax.device_put(np.float32(0), place)])
    [result] = assembled(executable, jax.devices()[:1], [(0, (), shards[0])])
    assert result == 0


GIB = 2**30

OF_JAX_0_10 = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries "
    "(16.26G) exceeds available HBM (15.75G)."
)
OF_JAX_0_12 = (
    "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory "
    "required for HLO temporaries (15.76G) exceeds available HBM (15.75G). HLO module: jit_loss.\n"
    "See https://openxla.org/xla/errors/error_1000 for more details."
)
OF_BUFFERS = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
    "Used 20.15G of 15.48G hbm. Exceeded hbm capacity by 4.67G.\n\nTotal hbm usage >= 20.67G:\n"
    "    reserved        530.00M\n    program          19.50G\n    arguments       662.81M\n"
)


@pytest.mark.parametrize(
    ("text", "used", "limit"),
    [
        (OF_JAX_0_10, 16.26 * GIB, 15.75 * GIB),
        (OF_JAX_0_12, 15.76 * GIB, 15.75 * GIB),
        (OF_BUFFERS, 20.15 * GIB, 15.48 * GIB),
        ("RESOURCE_EXHAUSTED: Used 900.0M of 512.50M hbm.", 900 * 2**20, 512.5 * 2**20),
        ("RESOURCE_EXHAUSTED: Used 1.50TiB of 95.74GiB hbm.", 1.5 * 2**40, 95.74 * GIB),
        ("RESOURCE_EXHAUSTED: Used 4096K of 1000B hbm.", 4096 * 2**10, 1000),
    ],
)
def test_every_wording_and_unit_is_read(text: str, used: float, limit: float) -> None:
    assert out_of_memory(jax.errors.JaxRuntimeError(text)) == OutOfMemory(round(used), round(limit))


def test_rounded_to_the_limit_it_is_above_it_still() -> None:
    text = OF_JAX_0_10.replace("16.26G", "15.75G")
    found = out_of_memory(jax.errors.JaxRuntimeError(text))
    assert found.used_bytes == found.limit_bytes + 1


@pytest.mark.parametrize(
    "text",
    [
        "INVALID_ARGUMENT: Used 20.15G of 15.48G hbm.",
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 20.0M of 16.0M vmem.",
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 21474836480 bytes.",
        "RESOURCE_EXHAUSTED: Used all of it hbm.",
        "",
    ],
)
def test_of_any_other_error_nothing_is_read(text: str) -> None:
    assert out_of_memory(jax.errors.JaxRuntimeError(text)) is None


def test_errors_that_are_not_xlas_tell_nothing() -> None:
    assert out_of_memory(ValueError(OF_JAX_0_10)) is None
