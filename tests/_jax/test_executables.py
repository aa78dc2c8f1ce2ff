"""What hloom/_jax/executables.py takes for granted of JAX.

`get_compiled_memory_stats` and `hlo_modules`.
"""

from __future__ import annotations

import jax
import numpy as np

from hloom._jax.executables import (
    MemoryFigures,
    generated_code_bytes,
    memory_figures,
    optimized_text,
    xla_version,
)


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


def test_a_backend_that_tells_no_memory_is_no_error() -> None:
    class Executable:
        def get_compiled_memory_stats(self) -> None:
            raise NotImplementedError

    assert generated_code_bytes(Executable()) is None
    assert memory_figures(Executable()) == MemoryFigures()
