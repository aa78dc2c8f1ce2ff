"""What capture regions ask XLA for, and what happens where XLA or the program says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir

from hloom import targets
from hloom._jax.options import given_options, profiled, with_options
from hloom.compiling.graphs import XlaOptions, compile_captured
from hloom.lowering.capture import compile_options
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir.clone import clone_module
from hloom.record import Captured

X = jnp.ones((4, 4))
PLAIN_TYPES = "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,DYNAMIC_SLICE_FUSION"
VERSIONS = pytest.mark.parametrize(
    ("version", "types"),
    [((0, 10, 2), PLAIN_TYPES), ((0, 12, 0), PLAIN_TYPES + ",COLLECTIVES_KERNEL")],
)
WANTED = {
    "xla_gpu_enable_command_buffer": "FUSION,WHILE",
    "xla_gpu_graph_min_graph_size": 5,
    "xla_disable_hlo_passes": "dynamic-slice-annotator",
}


def straight(x: jax.Array) -> jax.Array:
    for _ in range(6):
        x = jnp.tanh(x @ x) + x
    return x


def looping(x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda x, w: (jnp.tanh(x * w), None), x, X)[0]


def options_of(
    function: Callable[..., Any], x: jax.Array, spec: str = "capture", **given: Any
) -> Mapping[str, Any]:
    module = clone_module(jax.jit(function).lower(x).compiler_ir())
    Pipeline.parse(spec).run(module, target=targets.load("h100_sxm"))
    return compile_options(module, given.pop("platform", "cuda"), **given)


@VERSIONS
def test_a_module_asks_for_what_its_regions_need(version: tuple[int, ...], types: str) -> None:
    assert options_of(straight, X, version=version) == {
        "xla_gpu_enable_command_buffer": types + ",WHILE,CONDITIONAL",
        "xla_gpu_graph_min_graph_size": 5,
        "xla_disable_hlo_passes": "dynamic-slice-annotator",
    }


@VERSIONS
def test_options_of_the_pass_reach_xla(version: tuple[int, ...], types: str) -> None:
    spec = "capture{min_ops=7 loops=off collectives=on}"
    options = options_of(straight, X, spec, version=version)
    assert options["xla_gpu_enable_command_buffer"] == types + ",COLLECTIVES"
    assert options["xla_gpu_graph_min_graph_size"] == 7


def test_no_region_asks_for_nothing() -> None:
    assert options_of(lambda x: x + 1, X) == {}
    assert options_of(straight, X, platform="cpu") == {}


@pytest.mark.parametrize(
    ("version", "size"), [((0, 10, 2), 1), ((0, 11, 0), 1), ((0, 12, 0), 5), ((0, 12, 1), 5)]
)
def test_a_loop_is_big_enough(version: tuple[int, ...], size: int) -> None:
    """jaxlib before 0.12 counts the loop as one thunk, however much is in it."""
    options = options_of(looping, X[0], "capture{loops=on}", version=version)
    assert options["xla_gpu_graph_min_graph_size"] == size


def test_counted_loops_alone_are_not_captured() -> None:
    """They need no host between iterations, and a conditional node takes time in each."""

    def unbounded(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: x.sum() < 9, straight, looping(x[0]) + x)

    def types(function: Callable[..., Any], x: jax.Array) -> str:
        return str(options_of(function, x)["xla_gpu_enable_command_buffer"])

    def looping_long(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, _: (straight(x), None), x, length=9)[0]

    assert "WHILE" not in types(looping_long, X)
    assert "WHILE" in types(unbounded, X)


def compiled(
    settings: XlaOptions, refuses: str = "", wanted: Mapping[str, Any] = WANTED
) -> tuple[list[dict[str, Any]], Captured]:
    """What a compile is asked for, time by time, where XLA does not know one of the options."""
    asked: list[dict[str, Any]] = []

    def compile_(_: ir.Module, options: Mapping[str, Any]) -> str:
        asked.append({name: value for name, value in options.items() if "dump" not in name})
        if refuses in options:
            raise RuntimeError(f"INVALID_ARGUMENT: No such compile option: '{refuses}'")
        return "executable"

    executable, captured = compile_captured(compile_, SimpleNamespace(), wanted, settings)  # type: ignore[arg-type]
    assert executable == "executable"
    assert captured is not None
    return asked, captured


def test_an_option_that_xla_does_not_know_is_left_out_and_told() -> None:
    asked, captured = compiled(XlaOptions(), refuses="xla_gpu_graph_min_graph_size")
    rest = {name: value for name, value in WANTED.items() if "size" not in name}
    assert asked == [WANTED, rest]
    assert captured.options == rest
    assert captured.notes[0].startswith("this XLA refuses xla_gpu_graph_min_graph_size: ")


def test_another_error_is_the_program_s_own() -> None:
    def compile_(*_: Any) -> None:
        raise RuntimeError("No such compile option: 'xla_of_someone_else'")

    with pytest.raises(RuntimeError, match="someone_else"):
        compile_captured(compile_, SimpleNamespace(), WANTED, XlaOptions())  # type: ignore[arg-type]


def test_what_the_program_sets_stays() -> None:
    given = {"xla_gpu_enable_command_buffer": "", "xla_disable_hlo_passes": "cse"}
    asked, captured = compiled(XlaOptions(given))
    assert asked == [
        {
            "xla_gpu_graph_min_graph_size": 5,
            "xla_disable_hlo_passes": "cse,dynamic-slice-annotator",
        }
    ]
    assert captured.notes[0] == (
        "the program sets xla_gpu_enable_command_buffer=: it is left so, not FUSION,WHILE"
    )


def test_a_profiler_is_noted() -> None:
    _, captured = compiled(XlaOptions(profiled="a profiler is running"))
    assert "a profiler is running" in captured.notes


def test_an_executable_from_a_cache_is_not_known() -> None:
    _, captured = compiled(XlaOptions())
    assert captured.coverage is None
    assert captured.notes == (
        "not known: the executable was compiled before, and came from a cache",
    )


def test_without_regions_nothing_is_asked() -> None:
    seen = []
    executable, captured = compile_captured(
        lambda _, options: seen.append(options) or "executable",  # type: ignore[func-returns-value]
        SimpleNamespace(),  # type: ignore[arg-type]
        {},
        XlaOptions(),
    )
    assert (executable, captured, seen) == ("executable", None, [{}])


class Options:
    """Like XLA's compile options, of which a copy has its own list."""

    def __init__(self, *overrides: tuple[str, Any], fdo_profile: bytes = b"") -> None:
        self.env_option_overrides = list(overrides)
        self.executable_build_options = SimpleNamespace(fdo_profile=fdo_profile)


def test_given_options_are_those_of_the_compile_and_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1 --xla_b --xla_c=x,y")
    options = Options(("xla_a", 2), ("xla_d", True))
    assert given_options(options) == {
        "xla_a": "2",
        "xla_b": "true",
        "xla_c": "x,y",
        "xla_d": "True",
    }


def test_options_are_added_to_a_copy() -> None:
    options = Options(("xla_a", 1), ("xla_b", 2))
    extended = with_options(options, {"xla_b": 3, "xla_c": 4})
    assert extended.env_option_overrides == [("xla_a", 1), ("xla_b", 3), ("xla_c", 4)]
    assert options.env_option_overrides == [("xla_a", 1), ("xla_b", 2)]
    assert with_options(options, {}) is options


def test_a_trace_is_seen(tmp_path: Any) -> None:
    assert profiled(Options()) is None
    with jax.profiler.trace(str(tmp_path)):
        assert "a profiler is running" in (profiled(Options()) or "")
    assert profiled(Options()) is None


def test_the_first_compile_of_auto_pgle_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    jax.config.update("jax_enable_pgle", True)
    try:
        assert "AutoPGLE" in (profiled(Options()) or "")
        assert profiled(Options(fdo_profile=b"profile")) is None
    finally:
        jax.config.update("jax_enable_pgle", False)
