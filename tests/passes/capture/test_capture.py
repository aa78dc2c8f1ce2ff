"""`capture`: no result changes, callbacks get what they got, and elsewhere than on CUDA nothing."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir

import hloom
from hloom import targets
from hloom.passes.framework.pipeline import Pipeline, PipelineResult
from hloom.passes.framework.tables import facts_of, rows_of
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.marks import CAPTURE_REGION

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


def test_elsewhere_it_does_nothing(
    new_records: Callable[[], tuple[hloom.CompileRecord, ...]],
) -> None:
    compiled = jax.jit(step, compiler_options={"hloom": "capture{min_ops=1}"})
    assert compiled(X) == jax.jit(step)(X)
    [record] = new_records()
    assert not record.changed
    assert record.captured is None


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
