"""What hloom/_jax/{flags,version}.py take for granted of JAX.

The flag, `jax._src.config.string_or_object_state`, how JAX finds plugins, and the versions tested.
"""

from __future__ import annotations

import threading
from importlib.metadata import requires

import jax
import pytest
from support import RunPython

from hloom._jax.version import FIRST_UNTESTED, OLDEST_TESTED, is_tested_version


def test_the_flag_is_read_from_config_and_set_by_call() -> None:
    from hloom import plugin

    flags = plugin._flags
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


def test_flags_are_listed_only_where_they_have_been_set() -> None:
    import hloom  # noqa: F401  # it declares them

    everything = jax.config.values
    assert not [name for name in everything if name.startswith("jax_hloom")]
    assert "jax_enable_x64" in everything
    jax.config.update("jax_hloom", "off")
    try:
        assert jax.config.values == everything | {"jax_hloom": "off"}
    finally:
        jax.config.update("jax_hloom", None)
    assert jax.config.values == everything


@pytest.mark.parametrize("spec", ["", "cse"])
def test_the_first_test_of_a_process_passes_in_the_harness_of_jax(
    run_python: RunPython, spec: str
) -> None:
    script = """
import sys
import jax, jax.numpy as jnp
from absl.testing import absltest
from jax._src import test_util

class Tests(test_util.JaxTestCase):
    def test_backends_start_inside_of_it(self):
        assert "hloom" not in sys.modules
        assert float(jax.jit(lambda x: x + 1)(jnp.zeros(()))) == 1.0
        assert "hloom" in sys.modules
        before = jax.config.jax_hloom  # it is there, where nobody has imported hloom
        jax.config.update("jax_hloom", "off")
        jax.config.update("jax_hloom", before)

absltest.main()
"""
    assert "OK" in run_python(script, JAX_HLOOM=spec).stderr
