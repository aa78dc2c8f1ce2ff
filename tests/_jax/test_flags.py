"""What hloom/_jax/flags.py takes for granted of JAX.

The flag, `jax._src.config.string_or_object_state`, and how JAX finds plugins.
"""

from __future__ import annotations

import threading

import jax
from support import RunPython


def test_the_flag_is_read_from_config_and_set_by_call() -> None:
    from hloom import plugin

    flags = plugin._flags
    assert flags is not None
    flag = flags.spec
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
