"""`capture`: no result changes, callbacks get what they got, and elsewhere than on CUDA nothing.

What capture regions ask XLA for, and what happens where XLA or the program says otherwise.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from support import toy_passes as toy
from support.modules import module_after

import hloom
from hloom import targets
from hloom._jax.options import given_options, profiled, with_options
from hloom.compiling import xla_options
from hloom.compiling.graphs import compile_captured
from hloom.compiling.xla_options import XlaOptions, compile_plainly
from hloom.passes.capture.xla_options import compile_options
from hloom.passes.framework import registry
from hloom.passes.framework.pipeline import Pipeline, PipelineResult
from hloom.passes.framework.tables import facts_of, rows_of
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.marks import CAPTURE_REGION
from hloom.record import Captured

X = jnp.arange(16.0).reshape(4, 4) / 16
H100 = targets.load("h100_sxm")


def planned(function: Callable[..., Any], *arguments: Any, spec: str = "capture") -> PipelineResult:
    module = clone_module(jax.jit(function).lower(*arguments).compiler_ir())
    return Pipeline.parse(spec).run(module, target=H100)


def step(x: jax.Array) -> jax.Array:
    for _ in range(3):
        x = jnp.tanh(x @ x.T) * 2
    return x.sum()


@pytest.fixture
def as_if_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """The passes plan for a GPU, and the CPU runs what they make."""
    from hloom.targets import devices

    def target_of(*_: Any) -> Target:
        return dataclasses.replace(Target(), platform="cuda")

    monkeypatch.setattr(devices, "target_of", target_of)


def test_marks_alone_leave_the_program_as_it_was() -> None:
    result = planned(step, X)
    assert result.changed
    assert not result.rewritten


def test_regions_are_marked_once() -> None:
    module = clone_module(jax.jit(step).lower(X).compiler_ir())
    pipeline = Pipeline.parse("capture")
    pipeline.run(module, target=H100)
    once = str(module)
    assert once.count(f'"{CAPTURE_REGION}"') == 1
    assert not pipeline.run(module, target=H100).changed
    assert str(module) == once


def test_the_interpreter_agrees() -> None:
    from jax.extend.mlir.dialects import stablehlo

    def function(x: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x * w), None), x, X)
        return jax.lax.cond(x[0] > 0, lambda x: x @ X, lambda x: x + 1, x)

    original = jax.jit(function).lower(X[0]).compiler_ir()
    module = clone_module(original)
    with module.context:
        argument = ir.DenseElementsAttr.get(np.asarray(X[0]))
        Pipeline.parse("inline").run(module, target=H100)
        [before] = stablehlo.eval_module(module, [argument])
        assert Pipeline.parse("capture{min_ops=1}").run(module, target=H100).changed
        [after] = stablehlo.eval_module(module, [argument])
    assert str(before) == str(after)


def told_in_order(seen: list[float]) -> Callable[[jax.Array], jax.Array]:
    def function(x: jax.Array) -> jax.Array:
        y = jnp.tanh(x @ x.T)
        jax.debug.callback(lambda value: seen.append(float(value)), y.sum())
        scale = jax.pure_callback(
            lambda v: np.float32(2 * v), jax.ShapeDtypeStruct((), "float32"), y[0, 0]
        )
        return jnp.sin(y * scale) @ x

    return function


@pytest.mark.usefixtures("as_if_on_cuda")
def test_callbacks_see_the_same_and_results_are_equal_bit_for_bit(
    new_records: Callable[[], tuple[hloom.CompileRecord, ...]],
) -> None:
    seen: list[float] = []
    expected = jax.jit(told_in_order(seen))(X)
    jax.effects_barrier()
    found = jax.jit(told_in_order(seen), compiler_options={"hloom": "capture{min_ops=1}"})(X)
    jax.effects_barrier()
    np.testing.assert_array_equal(found, expected)
    assert len(seen) == 2
    assert seen[0] == seen[1]
    [record] = new_records()
    assert facts_of(record.runs[-1].plan)["of them moved"] == 1
    assert facts_of(record.runs[-1].plan)["graphs"] == 2


@pytest.mark.usefixtures("as_if_on_cuda")
@pytest.mark.parametrize("length", [3, 9])
def test_callbacks_in_loops(length: int) -> None:
    """A short loop is written out, a longer one stays; either way the host is told each step."""

    def function(seen: list[float], x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def body(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            x = jnp.tanh(x @ X)
            jax.debug.callback(lambda value: seen.append(float(value)), x[0, 0])
            return jnp.sin(x) + 1, x.sum()

        return jax.lax.scan(body, x, length=length)

    told: list[list[float]] = [[], []]
    spec = {"hloom": "capture{min_ops=1}"}
    expected = jax.jit(functools.partial(function, told[0]))(X)
    found = jax.jit(functools.partial(function, told[1]), compiler_options=spec)(X)
    jax.effects_barrier()
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-6)
    np.testing.assert_allclose(sorted(told[1]), sorted(told[0]), rtol=1e-6)
    assert len(told[0]) == length


@pytest.mark.usefixtures("as_if_on_cuda")
@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int32", "bfloat16", "float16", "float32", "complex64"]
)
def test_what_waits_keeps_its_bits(dtype: str) -> None:
    """Of any type: the operand that is made to wait, and the results that it waits for."""
    seen: list[np.ndarray[Any, Any]] = []

    def function(x: jax.Array) -> jax.Array:
        y = jnp.flip(x) if dtype == "bool" else x + x
        jax.debug.callback(lambda value: seen.append(np.asarray(value)), y)
        return jnp.concatenate([y, x])

    x = jnp.asarray([0, 1, 2, 3]).astype(dtype)
    expected = jax.jit(function)(x)
    found = jax.jit(function, compiler_options={"hloom": "capture{min_ops=1}"})(x)
    jax.effects_barrier()
    np.testing.assert_array_equal(found, expected)
    assert seen[0].tobytes() == seen[1].tobytes()


@pytest.mark.usefixtures("as_if_on_cuda")
def test_nothing_waits_where_values_are_spread_over_devices(
    new_records: Callable[[], tuple[hloom.CompileRecord, ...]],
) -> None:
    mesh = jax.make_mesh((4,), ("x",))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    seen: list[float] = []

    def function(x: jax.Array) -> jax.Array:
        y = jnp.tanh(x) * 2
        jax.debug.callback(lambda value: seen.append(float(value)), y.sum())
        return jnp.sin(y) + y

    x = jax.device_put(X, spread)
    found = jax.jit(function, compiler_options={"hloom": "capture{min_ops=1}"})(x)
    jax.effects_barrier()
    np.testing.assert_allclose(found, np.sin(np.tanh(X) * 2) + np.tanh(X) * 2, rtol=1e-6)
    assert facts_of(new_records()[-1].runs[-1].plan)["of them moved"] == 0


def test_an_operand_that_is_too_big_stays_where_it_is() -> None:
    def function(x: jax.Array) -> jax.Array:
        y = jnp.tanh(x)
        jax.debug.callback(lambda _: None, y)
        return jnp.sin(y) @ y.T + jnp.cos(y)

    def moved(rows: int) -> object:
        x = jax.ShapeDtypeStruct((rows, rows), "float32")
        return facts_of(planned(function, x, spec="capture{min_ops=1}").runs[-1].plan)[
            "of them moved"
        ]

    assert moved(512) == 1
    assert moved(513) == 0


def test_the_plan_names_what_is_left_out() -> None:
    def function(x: jax.Array) -> jax.Array:
        return jax.lax.conv(jnp.tanh(x @ x.T)[None, None], x[None, None], (1, 1), "SAME")

    plan = planned(function, X, spec="capture{min_ops=1}").runs[-1].plan
    [left_out] = rows_of(plan, "What no graph holds")
    value = left_out["value"]
    file, _, number = value.source.line.rpartition(":")
    assert (file, int(number)) == (__file__, function.__code__.co_firstlineno + 1)
    assert value.operation == "stablehlo.convolution"
    assert value.name == "jit(function)/conv_general_dilated"
    assert left_out["why"] == "a library call that XLA does not capture"


ONES = jnp.ones((4, 4))
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
    return jax.lax.scan(lambda x, w: (jnp.tanh(x * w), None), x, ONES)[0]


def options_of(
    function: Callable[..., Any], x: jax.Array, spec: str = "capture", **given: Any
) -> Mapping[str, Any]:
    module = module_after(jax.jit(function).lower(x), spec, targets.load("h100_sxm"))
    return compile_options(module, given.pop("platform", "cuda"), **given)


@VERSIONS
def test_a_module_asks_for_what_its_regions_need(version: tuple[int, ...], types: str) -> None:
    assert options_of(straight, ONES, version=version) == {
        "xla_gpu_enable_command_buffer": types + ",WHILE,CONDITIONAL",
        "xla_gpu_graph_min_graph_size": 5,
        "xla_disable_hlo_passes": "dynamic-slice-annotator",
    }


@VERSIONS
def test_options_of_the_pass_reach_xla(version: tuple[int, ...], types: str) -> None:
    spec = "capture{min_ops=7 loops=off collectives=on}"
    options = options_of(straight, ONES, spec, version=version)
    assert options["xla_gpu_enable_command_buffer"] == types + ",COLLECTIVES"
    assert options["xla_gpu_graph_min_graph_size"] == 7


def test_no_region_asks_for_nothing() -> None:
    assert options_of(lambda x: x + 1, ONES) == {}
    assert options_of(straight, ONES, platform="cpu") == {}


@pytest.mark.parametrize(
    ("version", "size"), [((0, 10, 2), 1), ((0, 11, 0), 1), ((0, 12, 0), 5), ((0, 12, 1), 5)]
)
def test_a_loop_is_big_enough(version: tuple[int, ...], size: int) -> None:
    """jaxlib before 0.12 counts the loop as one thunk, however much is in it."""
    options = options_of(looping, ONES[0], "capture{loops=on}", version=version)
    assert options["xla_gpu_graph_min_graph_size"] == size


def test_counted_loops_alone_are_not_captured() -> None:
    """They need no host between iterations, and a conditional node takes time in each."""

    def unbounded(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: x.sum() < 9, straight, looping(x[0]) + x)

    def types(function: Callable[..., Any], x: jax.Array) -> str:
        return str(options_of(function, x)["xla_gpu_enable_command_buffer"])

    def looping_long(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, _: (straight(x), None), x, length=9)[0]

    assert "WHILE" not in types(looping_long, ONES)
    assert "WHILE" in types(unbounded, ONES)


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
        {"xla_gpu_graph_min_graph_size": 5, "xla_disable_hlo_passes": "cse,dynamic-slice-annotator"}
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


ASKED: list[Mapping[str, Any]] = []


def compiled_for_a_pass(*given: Any) -> Any:
    ASKED.append(given[2])
    return compile_plainly(*given)


class AsksXla(toy.ReplaceTwo):
    name: ClassVar[str] = "asks-xla"
    compiled_by: ClassVar[str] = f"{__name__}:compiled_for_a_pass"

    def xla_options(self, module: ir.Module, platform: str) -> Mapping[str, Any]:
        return {"xla_cpu_enable_fast_min_max": platform == "cpu"}


def test_any_pass_may_give_options_where_it_changes_a_program_and_compile_with_them() -> None:
    with registry.registered(AsksXla):
        jax.jit(lambda x: x * 2.0, compiler_options={"hloom": "asks-xla"})(X)
        jax.jit(lambda x: x * 5.0, compiler_options={"hloom": "asks-xla"})(X)
    assert ASKED == [{"xla_cpu_enable_fast_min_max": True}, {}]


@pytest.mark.parametrize(
    ("attribute", "value", "said"),
    [
        ("compiled_by", "no_such_module:f", "compiled_by: .*No module named"),
        ("compiled_by", "math:no_such", "compiled_by: .*'math' has no attribute"),
        ("xla_options", lambda *_: [1], "xla_options: .*'list' object"),
    ],
)
def test_a_pass_that_fails_to_ask_xla_fails_as_in_any_phase(
    monkeypatch: pytest.MonkeyPatch, attribute: str, value: Any, said: str
) -> None:
    monkeypatch.setattr(AsksXla, attribute, value)
    step = jax.jit(lambda x: x * 2.0, compiler_options={"hloom": "asks-xla"})
    with registry.registered(AsksXla), pytest.raises(hloom.PassError, match=f"failed in {said}"):
        step(X)
    monkeypatch.setenv("HLOOM_STRICT", "0")
    with registry.registered(AsksXla), pytest.warns(match=said):
        np.testing.assert_array_equal(step(X), X * 2.0)


def test_passes_of_xla_that_two_steps_leave_out_are_joined() -> None:
    class Leaves(AsksXla):
        def xla_options(self, module: ir.Module, platform: str) -> Mapping[str, Any]:
            return {"xla_disable_hlo_passes": "one", "xla_gpu_graph_level": 1}

    module = jax.jit(jnp.sin).lower(X).compiler_ir()
    found = xla_options.options_of(Pipeline((Leaves(), Leaves())), module, "cuda")
    assert found == {"xla_disable_hlo_passes": "one,one", "xla_gpu_graph_level": 1}


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
