"""What XLA captures, on compiles for an H100 without one: the promises of `capture`, and XLA's."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from support import often

import hloom
from benchmarks.capture import measure_alone, measure_captured
from benchmarks.common.capture_subjects import SUBJECTS
from benchmarks.common.h100 import TARGET
from benchmarks.programs import perceptron
from hloom.passes.capture.capturable import Rules, obstacle
from hloom.passes.capture.xla_options import COMMAND_BUFFER_TYPES
from hloom.passes.framework import registry
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.inline import Inline
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.walk import functions, operations
from hloom.targets import deviceless, load
from hloom_tools.cli import main

pytestmark = pytest.mark.h100

MOST_GROWTH = 1.02
"""Of the peak memory."""


@pytest.fixture(autouse=True, scope="module")
def _compiler_is_ready() -> None:
    deviceless.prepare()


def lowered(function: Callable[..., Any], *shapes: Any) -> Any:
    placement = deviceless.placement(TARGET)
    placed = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placement), shapes
    )
    return jax.jit(function).lower(*placed)


def matrix(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize(
    "name", ["perceptron", "mixture_of_experts", "lstm", "gpt_scanned", "adam"][: often(3, 5)]
)
def test_everything_is_in_one_graph(name: str) -> None:
    program = SUBJECTS[name].lower(deviceless.mesh(TARGET, 1))
    alone, captured = measure_alone(program), measure_captured(program)
    assert captured.coverage.share == 1
    assert captured.coverage.graphs == captured.foreseen_graphs == 1
    assert captured.coverage.left_out == ()
    assert captured.peak_bytes <= MOST_GROWTH * alone.peak_bytes


def test_no_type_that_xla_captures_by_default_is_left_out(tmp_path: Path) -> None:
    program = SUBJECTS["perceptron"].lower(deviceless.mesh(TARGET, 1))
    dump = {"xla_dump_to": str(tmp_path), "xla_dump_hlo_as_text": True}
    program.compile(compiler_options={"hloom": "off", **dump})
    [config] = tmp_path.glob("*.config.pbtxt")
    by_default = re.findall(r"xla_gpu_enable_command_buffer: (\w+)", config.read_text("utf-8"))
    measure_captured(program)
    captured = hloom.records()[-1].captured
    assert captured is not None
    assert by_default
    assert {*by_default} <= {*str(captured.options[COMMAND_BUFFER_TYPES]).split(",")}


@pytest.mark.parametrize(("name", "graphs"), [("host_is_told", 1), ("host_is_asked", 2)])
def test_only_the_host_s_call_is_left_out(name: str, graphs: int) -> None:
    program = SUBJECTS[name].lower(deviceless.mesh(TARGET, 1))
    alone, captured = measure_alone(program), measure_captured(program)
    assert alone.coverage.graphs == 2
    assert captured.coverage.graphs == captured.foreseen_graphs == graphs
    [left_out] = captured.coverage.left_out
    assert left_out.reason == "a host callback"
    assert left_out.line.startswith(perceptron.__file__)
    assert captured.peak_bytes <= MOST_GROWTH * alone.peak_bytes


@pytest.mark.parametrize("name", ["perceptron", "mixture_of_experts", "lstm"])
def test_on_eight_devices_only_collectives_stand_between_graphs(name: str) -> None:
    program = SUBJECTS[name].lower(deviceless.mesh(TARGET, 8))
    alone, captured = measure_alone(program), measure_captured(program)
    assert captured.coverage.share >= 0.8
    assert captured.coverage.share >= alone.coverage.share
    assert any("a collective" in each.reason for each in captured.coverage.left_out)
    assert captured.peak_bytes <= MOST_GROWTH * alone.peak_bytes


def test_collectives_are_captured_where_asked() -> None:
    program = SUBJECTS["lstm"].lower(deviceless.mesh(TARGET, 8))
    captured = measure_captured(program, "capture{collectives=on loops=on}")
    assert captured.coverage.share == 1
    assert captured.coverage.graphs == 1


def test_a_program_that_is_one_loop_is_captured() -> None:
    def function(x: jax.Array, ws: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0]

    program = lowered(function, matrix(64, 64), matrix(8, 64, 64))
    assert measure_alone(program).coverage.captured == 0
    captured = measure_captured(program)
    assert captured.coverage.share == 1
    assert captured.coverage.graphs == 1


def test_a_short_loop_with_a_callback_is_one_graph_and_the_calls() -> None:
    def body(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden = jnp.tanh(x @ w)
        perceptron.call_host(None, (), hidden[0, 0])
        hidden = jnp.sin(hidden @ w) @ w
        return jnp.tanh(hidden @ w.T), hidden.sum()

    program = lowered(lambda x, ws: jax.lax.scan(body, x, ws), matrix(64, 64), matrix(3, 64, 64))
    captured = measure_captured(program)
    assert captured.coverage.graphs == 1
    assert [each.reason for each in captured.coverage.left_out] == ["a host callback"] * 3


OPERATIONS: dict[str, tuple[Callable[[jax.Array], Any], bool]] = {
    "branch": (lambda x: jax.lax.cond(x[0, 0] > 0, lambda x: x @ x, lambda x: x - 1, x), True),
    "cholesky": (jnp.linalg.cholesky, False),
    "convolution": (lambda x: jax.lax.conv(x[None, None], x[None, None], (1, 1), "SAME"), False),
    "cumulative sum": (jnp.cumsum, True),
    "fft": (lambda x: jax.lax.fft(x.astype("complex64"), "fft", (64,)), False),
    "gather": (lambda x: x[x[:, 0].astype(int)], True),
    "loop of unknown length": (
        lambda x: jax.lax.while_loop(lambda x: x[0, 0] > 0, lambda x: jnp.sin(x @ x), x),
        True,
    ),
    "qr": (jnp.linalg.qr, False),
    "random numbers": (lambda x: x + jax.random.uniform(jax.random.key(0), x.shape), True),
    "scatter": (lambda x: x.at[jnp.arange(5)].add(1.0), True),
    "sort": (lambda x: jnp.sort(x.ravel()), True),
    "top k": (lambda x: jax.lax.top_k(x, 4), True),
    "triangular solve": (
        lambda x: jax.lax.linalg.triangular_solve(x, x, left_side=True, lower=True),
        False,
    ),
}
"""What `passes/capture/capturable.py` says, and whether XLA does so."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_analysis_says_what_xla_does(name: str) -> None:
    function, is_captured = OPERATIONS[name]
    program = lowered(lambda x: function(jnp.tanh(x @ x)), matrix(64, 64))
    module = clone_module(program.compiler_ir())
    Pipeline((Inline(),)).run(module, target=load(TARGET))
    main = functions(module)["main"]
    found = [obstacle(op, Rules()) for op in operations(main)]
    assert all(each is None for each in found) == is_captured
    coverage = measure_captured(program, "capture{min_ops=1}").coverage
    assert (coverage.share == 1) == is_captured


def test_capture_is_not_among_the_recommended_passes() -> None:
    """Nobody has measured yet that a step gets faster."""
    assert "capture" not in registry.DEFAULT


def test_what_xla_does_not_compile_is_an_error_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.mlir"
    empty.write_text("", encoding="utf-8")
    assert main(["show", str(empty), "capture", "--target", TARGET]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"hloom show: error: {empty}: XLA does not compile it for {TARGET}: ")
