"""What hloom/_jax/executables.py takes for granted of JAX.

`get_compiled_memory_stats`, `hlo_modules` and the buffer assignment.
"""

from __future__ import annotations

import jax
import numpy as np

from hloom._jax.executables import (
    MemoryFigures,
    buffer_assignment,
    memory_figures,
    optimized_module,
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
    module = optimized_module(compiled.runtime_executable())
    assert module.name.startswith("jit_")
    assert "is_scheduled=true" in module.text
    assert module.name.encode() in module.proto


def test_an_executable_holds_its_buffer_assignment() -> None:
    compiled = jax.jit(lambda x: (x @ x) @ x).lower(np.ones((16, 16), np.float32)).compile()
    assignment = buffer_assignment(compiled.runtime_executable())
    assert assignment is not None
    assert len(assignment.proto) > 0
    assert assignment.generated_code_bytes >= 0
    assert xla_version(compiled.runtime_executable())


def test_a_backend_that_tells_no_buffers_is_no_error() -> None:
    class Executable:
        def get_compiled_memory_stats(self) -> None:
            raise NotImplementedError

    assert buffer_assignment(Executable()) is None
