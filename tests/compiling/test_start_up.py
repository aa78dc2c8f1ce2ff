"""What hloom costs a process that sets no flag, and which names it shows."""

from __future__ import annotations

import sys

import jax
from support import RunPython

import hloom

WITHOUT_A_SPEC = """
hloom hloom._jax hloom._jax.cache hloom._jax.devices hloom._jax.distributed
hloom._jax.executables hloom._jax.flags hloom._jax.hook hloom._jax.options
hloom._jax.tracebacks hloom._jax.version hloom.dumps hloom.dumps.collect
hloom.dumps.collect.step hloom.dumps.select hloom.dumps.select.control_file
hloom.dumps.select.settings hloom.dumps.select.steps hloom.passes hloom.passes.framework
hloom.passes.framework.errors hloom.passes.framework.text hloom.plugin hloom.policy
hloom.record hloom.settings hloom.settings.environment hloom.settings.patterns hloom.show
hloom.show.units
"""


def test_nothing_set_imports_no_passes(run_python: RunPython) -> None:
    script = """
import sys
import jax, numpy as np
jax.jit(lambda x: x * 2.0)(np.ones(3))
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("hloom", "scipy")))
from jax._src import compiler
print(hasattr(compiler.compile_or_get_cached, "__wrapped__"))
"""
    result = run_python(script)
    assert result.stderr == ""
    modules, hook = result.stdout.splitlines()
    assert eval(modules) == WITHOUT_A_SPEC.split()
    assert hook == "True"


def test_hloom_shows_its_public_names_and_loads_some_of_them_late(run_python: RunPython) -> None:
    script = """
import sys
import hloom
print(dir(hloom) == sorted(hloom.__all__))
print("hloom.passes.ir.collectives" in sys.modules)
hloom.declare_collective("write", hloom.SyncRequirement(entry=True, exit="after"))
from hloom import declare_collective
try:
    declare_collective("write", hloom.SyncRequirement())
except ValueError as error:
    print(error)
hloom.declare_kernel("mine", pure=True, flops=3e9)
try:
    hloom.declare_kernel("mine", pure=True)
except ValueError as error:
    print(error)
print(all(getattr(hloom, name) is not None for name in hloom.__all__))
try:
    hloom.declare
except AttributeError as error:
    print(error)
"""
    assert run_python(script).stdout.splitlines() == [
        "True",
        "False",
        "@write is declared already, with SyncRequirement(entry=True, exit='after', groups=None)",
        "@mine is declared already, with DeclaredKernel(pure=True, flops=3000000000.0, bytes=None)",
        "True",
        "module 'hloom' has no attribute 'declare'",
    ]


def test_importing_hloom_adds_little_to_jax(run_python: RunPython) -> None:
    script = """
import sys
import jax
before = set(sys.modules)
import hloom
print(sorted(name for name in set(sys.modules) - before if not name.startswith("hloom")))
"""
    assert run_python(script).stdout == "[]\n"


def test_a_jax_outside_the_tested_range(run_python: RunPython) -> None:
    script = """
import jax, numpy as np
jax.__version__, jax.__version_info__ = "0.13.0", (0, 13, 0)
f = jax.jit(lambda x: x * 2.0)
print(f(np.ones(3, np.float32))[0], f(np.ones(4, np.float32))[0])
import hloom
with hloom.passes("remta"):
    print(f(np.ones(5, np.float32))[0])
hloom.initialize()
from jax._src import compiler
print(hasattr(compiler.compile_or_get_cached, "__wrapped__"))
"""
    result = run_python(script, JAX_HLOOM="remta")
    assert result.stdout.splitlines() == ["2.0 2.0", "2.0", "False"]
    assert result.stderr.count("HloomWarning") == 1
    assert (
        "HloomWarning: hloom is off: it is tested with jax >=0.10.2,<0.13, and this is jax "
        "0.13.0. Install a jax of that range, or a newer hloom."
    ) in result.stderr


def test_the_suite_sees_eight_cpu_devices_and_runs_strict() -> None:
    assert [device.platform for device in jax.devices()] == ["cpu"] * 8
    assert hloom.policy.is_strict()
    assert "support.toy_passes" in sys.modules


def test_a_second_initialize_does_nothing() -> None:
    from jax._src import compiler
    from jax._src.interpreters import pxla

    before = compiler.compile_or_get_cached, pxla.MeshComputation.compile
    hloom.initialize()
    assert (compiler.compile_or_get_cached, pxla.MeshComputation.compile) == before
