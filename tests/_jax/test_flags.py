"""What hloom/_jax/{flags,version}.py take for granted of JAX.

The flag, `jax._src.config.string_or_object_state`, how JAX finds plugins, and the versions tested.
"""

from __future__ import annotations

import threading
from importlib.metadata import requires

import jax
from support import RunPython

from hloom._jax.version import FIRST_UNTESTED, OLDEST_TESTED, is_tested_version


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


def test_this_jax_is_in_the_tested_range() -> None:
    assert is_tested_version()


def test_the_tested_range_is_the_one_that_is_installed_with() -> None:
    oldest, untested = (".".join(map(str, version)) for version in (OLDEST_TESTED, FIRST_UNTESTED))
    [requirement] = [line for line in requires("hloom") or [] if line.startswith("jax<")]
    assert requirement == f"jax<{untested},>={oldest}"
