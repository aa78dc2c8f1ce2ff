"""What hloom/_jax/executables.py takes for granted of JAX.

`get_compiled_memory_stats`, `get_parameter_layouts`, `get_output_layouts` and `hlo_modules`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hloom._jax.executables import (
    MemoryFigures,
    generated_code_bytes,
    memory_figures,
    optimized_text,
    xla_version,
)
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
    assert size_bytes is not None
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
