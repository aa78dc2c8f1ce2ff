"""The flag in its forms, its mistakes, who takes part, and what it costs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from support import RunPython, registering
from support import toy_passes as toy
from support.doubling import NewRecords, X, factor, fresh_jit, with_option

import hloom
from hloom import plugin

pytestmark = pytest.mark.wheel


_toys = registering(toy.ReplaceTwo, toy.Touch)


# The forms of the flag.


def test_form_ahead_of_time() -> None:
    lowered = fresh_jit().lower(X)
    assert factor(lowered.compile(**with_option("replace-two"))(X)) == 3
    assert factor(lowered.compile()(X)) == 2


SCRIPT = """
import jax, numpy as np
from support import toy_passes
from hloom.passes.framework import registry
with registry.registered(toy_passes.ReplaceTwo):
    print(jax.jit(lambda x: x * 2.0)(np.ones(3, np.float32))[0])
"""


def test_form_environment(run_python: RunPython) -> None:
    assert run_python(SCRIPT, JAX_HLOOM="replace-two{by=5}").stdout == "5.0\n"
    # JAX_HLOOM=off is that of tests/compiling/test_plugin_orders.py.
    assert run_python(SCRIPT, JAX_HLOOM="").stdout == "2.0\n"


def test_an_ahead_of_time_compile_decides_nothing_for_the_jit(new_records: NewRecords) -> None:
    f = fresh_jit()
    for _ in range(2):
        with hloom.passes("replace-two"):
            assert factor(f.lower(X).compile()(X)) == 3
        with hloom.passes("replace-two{by=4}"):
            assert factor(f.lower(X).compile()(X)) == 4
        assert factor(f(X)) == 2
    assert len(new_records()) == 2


def test_hloom_passes_is_the_package_as_well() -> None:
    import hloom.passes.framework.pipeline

    assert hloom.passes.framework.pipeline.Pipeline.parse("off").passes == ()


# Which of two wins.


def test_the_jits_own_option_wins() -> None:
    own = fresh_jit(**with_option("replace-two{by=5}"))
    with hloom.passes("replace-two"):
        assert factor(own(X)) == 5


def test_off_switches_off_one_jit() -> None:
    own = fresh_jit(**with_option("off"))
    with hloom.passes("replace-two"):
        assert factor(own(X)) == 2
        assert factor(fresh_jit()(X)) == 3


def test_off_in_an_inner_block() -> None:
    f = fresh_jit()
    with hloom.passes("replace-two"), hloom.passes("off"):
        assert factor(f(X)) == 2


def test_an_empty_option_is_no_option() -> None:
    own = fresh_jit(**with_option(""))
    assert factor(own(X)) == 2
    with hloom.passes("replace-two"):
        assert factor(own(X)) == 3


def test_options_for_xla_stay() -> None:
    options = {"hloom": "replace-two", "xla_no_such_option": "1"}
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_no_such_option"):
        fresh_jit(compiler_options=options)(X)


# Recompilation.


def test_every_change_recompiles_and_nothing_else_does(new_records: NewRecords) -> None:
    f = fresh_jit()
    assert factor(f(X)) == 2
    for _ in range(2):
        with hloom.passes("replace-two"):
            assert factor(f(X)) == 3
        with hloom.passes("replace-two{by=4}"):
            assert factor(f(X)) == 4
        assert factor(f(X)) == 2
    assert [record.spec for record in new_records()] == ["replace-two", "replace-two{by=4.0}"]


def test_a_process_wide_change_recompiles() -> None:
    f = fresh_jit()
    try:
        for spec, expected in (("replace-two", 3), (None, 2), ("replace-two{by=4}", 4), ("off", 2)):
            jax.config.update("jax_hloom", spec)
            assert factor(f(X)) == expected
    finally:
        jax.config.update("jax_hloom", None)


# Mistakes.


def test_a_mistake_in_the_config_is_an_error_at_once() -> None:
    with pytest.raises(hloom.SpecError) as caught:
        jax.config.update("jax_hloom", "replace-tow")
    assert str(caught.value) == (
        "jax_hloom='replace-tow': unknown pass 'replace-tow' (at character 1). "
        "Did you mean 'replace-two'?"
    )
    assert jax.config.jax_hloom is None


def test_a_mistake_in_the_context_manager_is_an_error_at_once() -> None:
    with (
        pytest.raises(hloom.SpecError, match=r"^hloom\.passes='replace-two{by=x}': "),
        hloom.passes("replace-two{by=x}"),
    ):
        pytest.fail("the block ran")


def test_a_mistake_in_the_option_is_an_error_of_the_compile() -> None:
    f = fresh_jit(**with_option("replace-tow"))
    for _ in range(2):
        with pytest.raises(hloom.SpecError, match=r"^compiler_options\['hloom'\]='replace-tow': "):
            f(X)


NO_STRINGS = [
    (3, ""),
    (1.5, ""),
    (b"remat", ""),
    (("remat",), ""),
    (True, ", or 'default' for the recommended passes"),
    (False, ", or 'off' for no passes"),
]


@pytest.mark.parametrize(("value", "hint"), [*NO_STRINGS, (["replace-two"], "")])
def test_a_spec_is_a_string(value: object, hint: str) -> None:
    with pytest.raises(hloom.SpecError) as caught:
        jax.config.update("jax_hloom", value)
    assert str(caught.value) == f"jax_hloom={value!r}: a spec is a string such as 'fit'{hint}."


@pytest.mark.parametrize(("value", "hint"), NO_STRINGS)
def test_a_jits_own_option_is_a_string(value: Any, hint: str) -> None:
    said = f"compiler_options['hloom']={value!r}: a spec is a string such as 'fit'{hint}."
    with pytest.raises(hloom.SpecError) as caught:
        fresh_jit(**with_option(value))(X)
    assert str(caught.value) == said
    with pytest.raises(hloom.SpecError) as caught:
        fresh_jit().lower(X).compile(**with_option(value))
    assert str(caught.value) == said


@pytest.mark.parametrize("value", [["remat"], {"remat": 1}, {"remat"}])
def test_an_option_of_an_ahead_of_time_compile_need_not_be_hashable(value: Any) -> None:
    with pytest.raises(hloom.SpecError, match="a spec is a string such as 'fit'"):
        fresh_jit().lower(X).compile(**with_option(value))


def test_a_long_value_is_not_echoed_whole() -> None:
    with pytest.raises(hloom.SpecError) as caught:
        jax.config.update("jax_hloom", ["x" * 100_000])
    assert len(str(caught.value)) < 250


def test_none_is_off() -> None:
    with hloom.passes("replace-two"):
        none: Any = None
        assert factor(fresh_jit(**with_option(none))(X)) == 2
        assert factor(fresh_jit().lower(X).compile(**with_option(none))(X)) == 2
        assert factor(fresh_jit()(X)) == 3


def test_a_mistake_in_the_environment_is_an_error_of_the_first_compile(
    run_python: RunPython,
) -> None:
    script = """
import jax, numpy as np
print("before")
jax.jit(lambda x: x * 2.0)(np.ones(3, np.float32))
print("after")
"""
    result = run_python(script, check=False, JAX_HLOOM="remta")
    assert result.returncode == 1
    assert result.stdout == "before\n"
    assert (
        "hloom.SpecError: JAX_HLOOM='remta': unknown pass 'remta' "
        "(at character 1). Did you mean 'remat'?\n"
    ) in result.stderr
    assert "During handling" not in result.stderr
    # The traceback's head, the user's line, the error, and JAX's note that frames are left out.
    assert len(result.stderr.splitlines()) <= 7


# Who takes no part.


def fake_call(
    processes: list[int], *, platform: str = "cpu"
) -> tuple[Any, Any, Any, Any, list[Any]]:
    """What JAX hands to the hook in process 0, for devices of these processes."""
    backend = SimpleNamespace(platform=platform, platform_version="", process_index=lambda: 0)
    devices = [fake_device(process, platform=platform) for process in processes]
    module = fresh_jit().lower(X).compiler_ir()
    options = SimpleNamespace(env_option_overrides=[("hloom", "replace-two"), ("xla_a", "b")])
    return backend, module, np.array(devices, dtype=object), options, []


def fake_device(process_index: int, *, platform: str) -> Any:
    return SimpleNamespace(
        id=process_index,
        local_hardware_id=0,
        platform=platform,
        process_index=process_index,
        device_kind="a device",
        memory_stats=lambda: None,
    )


def fake_executable() -> Any:
    def no_figures() -> None:
        raise NotImplementedError

    return SimpleNamespace(get_compiled_memory_stats=no_figures)


@pytest.mark.parametrize("processes", [[], [1], [1, 2, 3]])
def test_a_process_that_takes_no_part_passes_the_module_through(
    processes: list[int], new_records: NewRecords
) -> None:
    backend, module, devices, options, compiled = fake_call(processes)

    def compile_(*call: Any) -> str:
        compiled.append(call)
        return "executable"

    assert plugin._compile(backend, module, devices, options, compile_) == "executable"
    [(compiled_module, compiled_options)] = compiled
    assert compiled_module is module
    assert compiled_options.env_option_overrides == [("xla_a", "b")]
    assert options.env_option_overrides == [("hloom", "replace-two"), ("xla_a", "b")]
    assert new_records() == ()


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu", "metal"])
def test_every_platform_gets_the_passes(platform: str, new_records: NewRecords) -> None:
    backend, module, devices, options, compiled = fake_call([1, 0], platform=platform)
    executable = fake_executable()

    def compile_(*call: Any) -> Any:
        compiled.append(call)
        return executable

    assert plugin._compile(backend, module, devices, options, compile_) is executable
    [(compiled_module, _)] = compiled
    assert "dense<3.0" in str(compiled_module)
    assert "dense<2.0" in str(module)
    [record] = new_records()
    assert record.platform == {"gpu": "cuda"}.get(platform, platform)
    assert record.temp_bytes is None


# What it costs.


def test_nothing_set_hands_on_the_very_objects() -> None:
    backend, module, devices, options, _ = fake_call([0])
    options.env_option_overrides = []
    calls: list[Any] = []
    plugin._compile(backend, module, devices, options, lambda *call: calls.append(call))
    [(compiled_module, compiled_options)] = calls
    assert compiled_module is module
    assert compiled_options is options
