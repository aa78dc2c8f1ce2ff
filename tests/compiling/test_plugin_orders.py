"""The plugin is there in every order of calls, and where it cannot have been it says so."""

from __future__ import annotations

import ast
import inspect
import json
import re
import warnings
from typing import Any

import jax
import pytest
from jax._src import compiler, xla_bridge
from support import ROOT, RunPython

import hloom
from hloom import plugin, policy
from hloom.settings import environment
from hloom.targets import deviceless

ORDERS = """
import json, sys, warnings
order, form = ORDER
def at(moment):
    if order == moment:
        import hloom
warnings.simplefilter("always")
at("before jax")
import jax
at("after jax")
{devices}
at("before lowering")
x = jax.ShapeDtypeStruct((8, 8), "float32", sharding=jax.sharding.SingleDeviceSharding(device))
options = dict(compiler_options={{"hloom": "inline"}}) if form == "jit" else {{}}
lowered = jax.jit(jax.grad(lambda x: (x @ x).sum()), **options).lower(x)
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
at("before compiling")
lowered.compile(**(dict(compiler_options={{"hloom": "inline"}}) if form == "ahead" else {{}}))
at("after compiling")
hloom = sys.modules.get("hloom")
print(json.dumps([each.spec for each in hloom.records()] if hloom else None))
"""

NOT_A_BACKEND = """
from jaxlib import xla_client
device = xla_client.make_cpu_client().devices()[0]
"""
"""As a topology of TPUs: devices that JAX compiles for without ever looking for its plugins."""

H100 = """
from jax.experimental import topologies
{text}
device = topologies.get_topology_desc(
    platform="cuda", target_config=text, topology="1x1x1"
).devices[0]
"""

IMPORTED_BEFORE = ("before jax", "after jax", "before lowering", "before compiling")


def run_order(
    run_python: RunPython, devices: str, order: str, form: str, **environment: str
) -> tuple[Any, str]:
    script = f"ORDER = {order!r}, {form!r}\n" + ORDERS.format(devices=devices)
    if form == "flag":
        environment["JAX_HLOOM"] = "inline"
    result = run_python(script, check=False, **environment)
    found = json.loads(result.stdout) if result.returncode == 0 else None
    return found, result.stderr


@pytest.mark.parametrize("form", ["flag", "jit", "ahead"])
@pytest.mark.parametrize("order", IMPORTED_BEFORE)
def test_imported_before_the_compile_it_is_there(
    order: str, form: str, run_python: RunPython
) -> None:
    specs, errors = run_order(run_python, NOT_A_BACKEND, order, form)
    assert specs == ["inline"], errors
    assert "HloomWarning" not in errors


def test_imported_too_late_it_says_so(run_python: RunPython) -> None:
    specs, errors = run_order(run_python, NOT_A_BACKEND, "after compiling", "flag")
    assert specs == []
    assert (
        "HloomWarning: hloom: 1 program of this process compiled before hloom was there went "
        "without JAX_HLOOM='inline': JAX loads plugins when a backend starts, and none had. Put "
        "`import hloom` before the first compile."
    ) in errors


@pytest.mark.parametrize("spec", ["", "off"])
def test_too_late_for_nothing_is_not_told(spec: str, run_python: RunPython) -> None:
    specs, errors = run_order(run_python, NOT_A_BACKEND, "after compiling", "none", JAX_HLOOM=spec)
    assert specs == []
    assert "HloomWarning" not in errors


@pytest.mark.h100
@pytest.mark.parametrize(
    ("order", "form"),
    [
        # How a form is read does not depend on the platform: the CPU has every pair, above.
        ("never", "flag"),
        ("before jax", "flag"),
        ("before compiling", "flag"),
        ("never", "jit"),
        ("never", "ahead"),
    ],
)
def test_a_topology_of_gpus_finds_it_in_every_order(
    order: str, form: str, run_python: RunPython
) -> None:
    devices = H100.format(text=f"text = {deviceless.text('h100_sxm')!r}")
    specs, errors = run_order(run_python, devices, order, form)
    assert specs == ["inline"], errors
    assert "HloomWarning" not in errors


def callers(name: str) -> set[str]:
    """The functions of xla_bridge that call this one."""
    tree = ast.parse(inspect.getsource(xla_bridge))
    return {
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    }


def test_jax_looks_for_plugins_in_two_places_only() -> None:
    # So a program that comes by neither has to import hloom: a topology of TPUs is one.
    assert callers("discover_pjrt_plugins") == {"_discover_and_register_pjrt_plugins"}
    assert callers("_discover_and_register_pjrt_plugins") == {"backends", "make_pjrt_topology"}


def test_a_second_start_does_nothing() -> None:
    before = compiler.compile_or_get_cached
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plugin.initialize()
    assert compiler.compile_or_get_cached is before


# Variables of the environment.


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["HLOOM_DUMP_TOO"], ["HLOOM_DUMP_TOO"]),
        (["HLOOM", "HLOOM_X", "JAX_HLOOM_SPEC"], ["HLOOM", "HLOOM_X", "JAX_HLOOM_SPEC"]),
        (["HLOM_LOG", "JAX_HLOM", "JAX_HLLOOM"], ["HLOM_LOG", "JAX_HLLOOM", "JAX_HLOM"]),
        ([*map(str.upper, jax.config.values), "HLO_PATH", "HLM"], []),
        ([*environment.VARIABLES, "HLOOMING", "MY_HLOOM_X", "JAX_PLATFORMS", "hloom_x"], []),
    ],
)
def test_unknown_variables(names: list[str], found: list[str]) -> None:
    assert environment.unknown(names) == found


def test_an_unknown_variable_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_warned", set())
    monkeypatch.setenv("HLOOM_DUMP_TOO", "dumps")
    monkeypatch.setenv("HLOOM", "remat")
    with pytest.warns(hloom.HloomWarning) as caught:
        environment.check()
    environment.check()
    [warning] = caught
    assert str(warning.message) == (
        "hloom: There is no variable 'HLOOM'. Did you mean 'JAX_HLOOM'? There is no variable "
        "'HLOOM_DUMP_TOO'. Did you mean 'HLOOM_DUMP_TO'?"
    )


def test_an_unknown_variable_is_told_at_the_start(run_python: RunPython) -> None:
    script = "import jax\njax.devices()\nprint('done')"
    result = run_python(script, HLOOM_DUMP_TOO="dumps")
    assert result.stdout == "done\n"
    assert result.stderr.count("There is no variable 'HLOOM_DUMP_TOO'") == 1
    assert "HloomWarning" not in run_python(script, HLOOM_DUMP_TO="dumps").stderr


def test_every_variable_that_hloom_reads_is_known() -> None:
    root = ROOT
    read = {
        name
        for folder in ("hloom", "passes", "lowering", "runtime")
        for pattern in ("*.py", "*.cc", "*.h")
        for file in (root / folder).rglob(pattern)
        for name in re.findall(r'"((?:JAX_)?HLOOM_[A-Z0-9_]*[A-Z0-9])"', file.read_text())
    }
    assert read >= {"HLOOM_DUMP_TO", "HLOOM_TRACE", "HLOOM_CACHE_DIR", "HLOOM_STRICT"}
    assert environment.unknown(read) == []
