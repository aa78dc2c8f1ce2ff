"""What hloom/_jax/hook.py takes for granted of JAX.

`jax._src.compiler.compile_or_get_cached` and `pxla.MeshComputation`.

A mistake in a spec is shown at the user's line, without the frames of JAX and hloom.
"""

from __future__ import annotations

import inspect
import sys
import traceback

import jax
import numpy as np
import pytest
from jax.extend.mlir import ir

import hloom
from hloom._jax.hook import compiled_programs, install_hook

X = np.ones(4, np.float32)


def test_the_wrapped_function_has_the_parameters_that_the_hook_names() -> None:
    from jax._src import compiler

    assert list(inspect.signature(compiler.compile_or_get_cached).parameters) == [
        "backend",
        "computation",
        "devices",
        "compile_options",
        "host_callbacks",
        "executable_devices",
        "pgle_profiler",
    ]


def test_jax_calls_it_through_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src import compiler

    calls: list[tuple[object, ...]] = []
    compile_ = compiler.compile_or_get_cached

    def spy(*args: object, **kwargs: object) -> object:
        calls.append((*args, *kwargs.values()))
        return compile_(*args, **kwargs)

    monkeypatch.setattr(compiler, "compile_or_get_cached", spy)
    jax.jit(lambda x: x + 3)(X)
    [(backend, module, devices, *_)] = calls
    assert isinstance(module, ir.Module)
    assert isinstance(devices, np.ndarray)
    assert backend is jax.devices()[0].client


def test_extra_arguments_reach_jax_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src import compiler

    seen: list[object] = []

    def stand_in(*args: object, **kwargs: object) -> str:
        seen.append((args, kwargs))
        return "executable"

    monkeypatch.setattr(compiler, "compile_or_get_cached", stand_in)
    install_hook(lambda backend, module, devices, options, compile_: compile_(module, options))
    callbacks, profiler = [object()], object()
    call = compiler.compile_or_get_cached
    given = ("backend", "module", "devices", "options", callbacks, "list")
    assert call(*given, profiler) == "executable"
    assert call(*given, pgle_profiler=profiler, later_argument=1) == "executable"
    assert seen == [
        ((*given, profiler), {}),
        (given, {"pgle_profiler": profiler, "later_argument": 1}),
    ]


def test_the_option_arrives_in_the_overrides_and_xla_refuses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jax._src import compiler

    from hloom import plugin

    # JAX's own function, without the hook.
    monkeypatch.setattr(
        compiler, "compile_or_get_cached", compiler.compile_or_get_cached.__wrapped__
    )
    assert plugin._flags is not None
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option: 'hloom'"):
        jax.jit(lambda x: x + 4, compiler_options={"hloom": "off"})(X)


def test_jax_counts_the_programs_that_it_compiles() -> None:
    jax.clear_caches()
    assert compiled_programs() == 0
    lowered = jax.jit(lambda x: x + 1).lower(np.ones(3, np.float32))
    lowered.compile()
    lowered.compile()
    assert compiled_programs() == 1


def test_a_lowered_computation_keeps_its_first_executable() -> None:
    from jax._src.interpreters import pxla

    # This is why `keep_executables_apart` exists; see there.
    lowered = jax.jit(lambda x: x + 5).lower(X)
    assert isinstance(lowered._lowering, pxla.MeshComputation)
    assert lowered._lowering.compile() is lowered._lowering.compile()
    # With empty options JAX compiles as without, and leaves the one it keeps alone.
    assert lowered._lowering.compile({}) is not lowered._lowering.compile()
    parameters = inspect.signature(pxla.MeshComputation.compile).parameters
    assert list(parameters) == ["self", "compiler_options", "device_assignment"]


def test_executables_are_kept_by_flag() -> None:
    lowered = jax.jit(lambda x: x + 6).lower(X)
    without = lowered._lowering.compile()
    import hloom

    with hloom.passes("off"):
        within = lowered._lowering.compile()
        assert lowered._lowering.compile() is within
    assert within is not without
    assert lowered._lowering.compile() is without


def mistaken(x: int) -> None:
    jax.jit(lambda x: x + 1, compiler_options={"hloom": "fti"})(x)


def test_what_a_jit_raises_has_the_users_frames_alone() -> None:
    with pytest.raises(hloom.SpecError) as caught:
        mistaken(1)
    assert {frame.filename for frame in traceback.extract_tb(caught.tb)} == {__file__}


@pytest.mark.parametrize(("filtering", "hidden"), [("auto", True), ("off", False)])
def test_what_ends_a_program_has_the_users_frames_alone(
    filtering: str, hidden: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", filtering)
    try:
        with pytest.raises(hloom.SpecError) as caught, hloom.passes("fti"):
            pass
        sys.excepthook(caught.type, caught.value, caught.tb)
    finally:
        jax.config.update("jax_traceback_filtering", before)
    printed = capsys.readouterr().err
    assert __file__ in printed
    assert ("hloom/passes/framework" not in printed) == hidden
    assert "Did you mean 'fit'?" in printed


def test_a_name_near_that_of_the_option_is_told() -> None:
    with pytest.raises(hloom.SpecError, match=r"has 'hlooom'\. Did you mean 'hloom'\?"):
        jax.jit(lambda x: x + 1, compiler_options={"hlooom": "fit"})(1)
