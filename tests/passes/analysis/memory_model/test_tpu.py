"""The memory model by XLA:TPU's rules: what is fused, and XLA's own figures of small programs.

The memory of a loss over many words, split over a mesh: by the model, and by XLA.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from support.devices.meshes import mesh_of

from benchmarks.common.h100 import TARGET as H100
from benchmarks.common.h100 import measure
from benchmarks.common.subjects import SUBJECTS
from benchmarks.common.tables import RESULTS
from benchmarks.tpu import heads
from hloom._jax.executables import memory_figures
from hloom.passes.analysis.device import DeviceView
from hloom.passes.analysis.memory_model.fusion import Kernels
from hloom.passes.analysis.memory_model.memory_rules import XLA_GPU
from hloom.passes.analysis.memory_model.profile import memory_profile
from hloom.passes.analysis.memory_model.targets import memory_rules
from hloom.passes.analysis.memory_model.tpu import XLA_TPU
from hloom.passes.analysis.memory_model.tracer import predict, trace_block
from hloom.passes.analysis.program import Program
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.spec import parse_spec
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.op_facts import BufferUse
from hloom.targets import deviceless

MEBI = 2**20
TARGET = Target("tpu", "v5p")


def array(*shape: int, type_: str = "float32", on: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, type_, sharding=on)


def prepared(lowered: Any) -> ir.Module:
    return prepared_module(clone_module(lowered.compiler_ir()))


def prepared_module(module: ir.Module) -> ir.Module:
    passes = parse_spec("inline,cse,free-constants", source="test")
    Pipeline(passes).run(module, target=TARGET)
    return module


def temp_bytes(function: Callable[..., Any], *arguments: Any) -> int:
    module = prepared(jax.jit(function).lower(*arguments))
    return predict(module, rules=memory_rules(TARGET)).temp_bytes


def written(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """The operations that the kernels of a program end with."""
    module = prepared(jax.jit(function).lower(*arguments))
    block = walk.entry_function(module).regions[0].blocks[0]
    graph = Program(block, DeviceView.of(module, XLA_TPU))
    kernels = Kernels(trace_block(graph))
    return [graph.names[position].split(".")[1] for position in kernels.positions]


def test_only_a_tpu_has_these_rules() -> None:
    assert memory_rules(TARGET) is XLA_TPU
    assert memory_rules(Target("rocm", "mi300x")) is memory_rules(Target("cuda", "h100_sxm"))
    assert memory_rules(Target()) is not memory_rules(Target("cuda", "h100_sxm"))
    assert memory_rules(Target()) is not XLA_TPU


def test_a_product_fuses_what_it_reads() -> None:
    x = array(1024, 1024)
    assert written(lambda x, w: jnp.tanh(x) @ jnp.exp(w), x, x) == ["dot_general"]


def test_a_product_ends_with_what_alone_reads_it() -> None:
    x = array(1024, 1024)
    assert written(lambda x, w: jnp.tanh(x @ w), x, x) == ["tanh"]
    assert written(lambda x, w: (x @ w).sum(), x, x) == ["reduce"]
    # The first product has two readers, which both make the tanh of it.
    assert written(lambda x, w: jnp.tanh(h := x @ w) @ w + h, x, x) == ["dot_general", "add"]


def test_a_product_ends_with_several_values_of_its_size() -> None:
    x, w, g = array(512, 256), array(256, 512), array(512, 512)
    assert written(two_ends, x, w, g, g) == ["multiply", "multiply"]
    # One of them is not in memory.
    narrow = written(lambda *given: [each.sum() for each in two_ends(*given)], x, w, g, g)
    assert narrow == ["dot_general", "reduce", "reduce"]


def two_ends(x: jax.Array, w: jax.Array, g: jax.Array, h: jax.Array) -> tuple[jax.Array, ...]:
    product = x @ w
    return product * g, product * h


def test_a_sum_of_two_values_is_kept_for_two_products() -> None:
    x = array(1024, 1024)
    several = written(lambda x, y, w: ((z := jnp.exp(x) + y) @ w, z.T @ w), x, x, x)
    assert several == ["add", "dot_general", "dot_general"]
    assert written(lambda x, w: ((z := jnp.exp(x)) @ w, z.T @ w), x, x) == ["dot_general"] * 2


def test_what_is_kept_of_heads_for_two_products_is_as_measured() -> None:
    """By XLA's figures in `benchmarks/results/heads_tpu.json`: kept or not is a factor of two."""
    report = json.loads((RESULTS / "heads_tpu.json").read_text("utf-8"))
    for row in next(iter(report.values()))["rows"]:
        module = heads.lowered(tuple(row["shape"]), heads.FORMS[row["form"]]).compiler_ir()
        assert heads.predicted(module) == pytest.approx(row["temp_bytes"], rel=0.01), row


def test_products_with_vectors_and_without_sums_are_elementwise() -> None:
    x, v = array(8, 512, 64), array(8, 64)
    rows = written(lambda x, v: jnp.einsum("btd,bd->bt", x, v) @ jnp.ones((512, 8)), x, v)
    assert rows == ["dot_general", "dot_general"]  # no product fuses a sum
    outer = written(lambda a, b: jnp.einsum("bi,bj->bij", a, b).sum((1, 2)), v, v)
    assert outer == ["reduce"]


def test_statistics_of_attention_are_in_all_lanes_while_it_runs() -> None:
    q = array(2, 1024, 1, 64, type_="bfloat16")

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        weights = jax.nn.softmax(jnp.einsum("btnh,bsnh->bnts", q, k).astype("float32"))
        return jnp.einsum("bnts,bsnh->btnh", weights.astype(q.dtype), v)

    module = clone_module(jax.jit(attend).lower(q, q, q).compiler_ir())
    Pipeline(parse_spec("attention", source="test")).run(module, target=TARGET)
    lanes = 2 * 1024 * 128 * 4
    predicted = predict(module, rules=memory_rules(TARGET)).temp_bytes
    assert lanes <= predicted <= 1.3 * lanes


def test_a_gather_reads_memory_and_its_gradient_is_fused() -> None:
    logits, labels = array(8, 256, 4096, type_="bfloat16"), array(8, 256, type_="int32")

    def loss(x: jax.Array, labels: jax.Array) -> jax.Array:
        found = jax.nn.log_softmax(x.astype("float32"))
        return -jnp.take_along_axis(found, labels[..., None], axis=-1).mean()

    # In memory for the gather alone: no scatter has another one.
    wide = 8 * 256 * 4096 * 4
    assert wide <= temp_bytes(jax.value_and_grad(loss), logits, labels) < 1.1 * wide


def test_an_end_is_written_over_a_product_that_it_reads_last() -> None:
    x, w = array(4096, 1024), array(1024, 4096)

    def chain(x: jax.Array, y: jax.Array, w: jax.Array) -> tuple[jax.Array, ...]:
        hidden = x @ w
        scale = hidden.max()
        end = jnp.tanh(y @ w) * hidden
        return scale, end @ w.T, end.T @ x, end.sum()

    size = 4096 * 4096 * 4
    assert size <= temp_bytes(chain, x, x, w) <= 1.2 * size


def test_sizes_are_those_of_tiles() -> None:
    module = prepared(jax.jit(lambda x: x + 1).lower(array(1000, 3)))
    found = predict(module, rules=XLA_TPU)
    assert found.argument_bytes == found.output_bytes == 1024 * 4 * 4
    assert predict(module).argument_bytes == 1000 * 3 * 4


def test_the_parts_of_a_split_value_are_padded() -> None:
    module = prepared(jax.jit(lambda x: x + 1).lower(array(1000, 512)))
    [argument] = walk.entry_function(module).regions[0].blocks[0].arguments
    type_ = argument.type
    assert XLA_TPU.part_bytes(type_, {1: 4}) == 1000 * 128 * 4
    assert XLA_TPU.part_bytes(type_, {0: 100}) == 16 * 512 * 4


@pytest.mark.parametrize("grad", [False, True])
def test_the_profile_has_the_same_peak(grad: bool) -> None:
    module = prepared(jax.jit(jax.grad(scanned) if grad else scanned).lower(*SCANNED))
    assert (
        memory_profile(module, rules=XLA_TPU).temp_bytes
        == predict(module, rules=XLA_TPU).temp_bytes
    )


def test_fit_plans_a_program_for_a_tpu() -> None:
    # Its moves put loops in the bodies of scans, whose stacks are then read in inner blocks.
    module = clone_module(SUBJECTS["mixture_of_experts"].lower(None, None).compiler_ir())
    budget = 800 * MEBI
    Pipeline(parse_spec("fit{budget=800MiB}", source="test")).run(module, target=TARGET)
    assert predict(prepared_module(module), rules=XLA_TPU).step_bytes <= budget


# XLA's own figures.


def perceptron(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    return jnp.sum((jax.nn.gelu(x @ up) @ down) ** 2)


def scanned(weights: jax.Array, x: jax.Array) -> jax.Array:
    out, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)
    return out.sum()


def attention(x: jax.Array) -> jax.Array:
    scores = jnp.einsum("bqd,bkd->bqk", x, x).astype("float32")
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores).astype(x.dtype), x).sum()


def checkpointed(weights: jax.Array, x: jax.Array) -> jax.Array:
    """A scan that keeps what it carries alone, and converts its weights to its type."""

    @jax.checkpoint
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return x + jnp.tanh(x @ w.astype(x.dtype)), None

    out, _ = jax.lax.scan(layer, x, weights)
    return out.astype("float32").sum()


def transposed(weights: jax.Array, x: jax.Array) -> jax.Array:
    return checkpointed(jnp.swapaxes(weights, 0, 1), x)


def head(weights: jax.Array, x: jax.Array, labels: jax.Array) -> jax.Array:
    """A loss after a scan, whose stacks are there while the loss is made."""
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)
    found = jax.nn.log_softmax((x @ weights.reshape(-1, 1024).T).astype("float32"))
    return -jnp.take_along_axis(found, labels[:, None], axis=-1).mean()


def read_wide(weights: jax.Array) -> jax.Array:
    total, _ = jax.lax.scan(lambda total, w: (total + w.sum(), None), jnp.zeros(()), weights)
    return total


def rounded_sum(x: jax.Array, w: jax.Array) -> jax.Array:
    total = x.astype("float32").sum(0).astype("bfloat16")
    return (total @ w).sum() + (total.T @ total).sum()


SCANNED = array(12, 1024, 1024, type_="bfloat16"), array(8192, 1024, type_="bfloat16")
FEW_ROWS = array(2048, 2048, type_="bfloat16")

PROGRAMS = {
    "perceptron": (
        jax.grad(perceptron, (1, 2)),
        (array(8192, 1024), array(1024, 4096), array(4096, 1024)),
    ),
    "scanned": (jax.grad(scanned), SCANNED),
    "converted weights": (jax.grad(checkpointed), (array(12, 2048, 2048), FEW_ROWS)),
    "transposed weights": (jax.grad(transposed), (array(2048, 12, 2048), FEW_ROWS)),
    "a stack for products": (jax.grad(checkpointed), (array(4, 1024, 1024), array(16384, 1024))),
    "two ends": (two_ends, (array(4096, 512), array(512, 4096), *2 * (array(4096, 4096),))),
    "a rounded sum": (
        rounded_sum,
        (array(2, 8192, 2048, type_="bfloat16"), array(2048, 256, type_="bfloat16")),
    ),
    "head": (jax.grad(head), (*SCANNED, array(8192, type_="int32"))),
    "attention": (jax.grad(attention), (array(16, 2048, 256, type_="bfloat16"),)),
}


@pytest.mark.tpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_predictions_are_near_xlas_figures(name: str) -> None:
    function, arguments = PROGRAMS[name]
    sharding = deviceless.placement("v5p")
    placed = [array(*each.shape, type_=each.dtype, on=sharding) for each in arguments]
    lowered = jax.jit(function).lower(*placed)
    found = memory_figures(lowered.compile().runtime_executable())
    predicted = predict(prepared(lowered), rules=XLA_TPU)
    assert predicted.argument_bytes == pytest.approx(found.argument_bytes, rel=0.01)
    real_bytes = (found.argument_bytes or 0) + (found.output_bytes or 0) + (found.temp_bytes or 0)
    assert predicted.step_bytes == pytest.approx(real_bytes, rel=0.05), (
        f"predicted {predicted.temp_bytes / MEBI:.0f} MiB, "
        f"XLA takes {(found.temp_bytes or 0) / MEBI:.0f}"
    )


def test_of_float32_weights_that_a_loop_converts_there_is_a_copy() -> None:
    x, shape = array(64, 1024, type_="bfloat16"), (12, 1024, 1024)
    without = temp_bytes(checkpointed, array(*shape, type_="bfloat16"), x)
    copied = temp_bytes(checkpointed, array(*shape), x)
    assert copied - without == pytest.approx(2 * 12 * 1024 * 1024, rel=0.1)
    # What is read in 32 bits as well is not narrowed.
    reads_both = temp_bytes(lambda w, x: checkpointed(w, x) + read_wide(w), array(*shape), x)
    assert reads_both == pytest.approx(copied, rel=0.1)
    assert temp_bytes(lambda w, x: read_wide(w), array(*shape), x) < MEBI


WORDS, LENGTH, WIDTH, BATCH = 32768, 1024, 256, 8
KINDS = ["picked", "one-hot"]


def gradient_of_loss(
    mesh: Mesh, kind: str, split: str | None, words: int = WORDS, *, is_constrained: bool = True
) -> Any:
    """Lowered, the batch split over "data", the words over an axis or not."""

    def loss(weights: jax.Array, x: jax.Array, labels: jax.Array) -> jax.Array:
        logits = (jnp.tanh(x) @ weights).astype("float32")
        if is_constrained:
            placed = NamedSharding(mesh, PartitionSpec("data", None, split))
            logits = jax.lax.with_sharding_constraint(logits, placed)
        chances = jax.nn.log_softmax(logits)
        if kind == "one-hot":
            return -(chances * jax.nn.one_hot(labels, words)).sum(-1).mean()
        return -jnp.take_along_axis(chances, labels[..., None], axis=-1).mean()

    def shaped(type_: str, shape: tuple[int, ...], *axes: str | None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(
            shape, type_, sharding=NamedSharding(mesh, PartitionSpec(*axes))
        )

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    return step.lower(
        shaped("bfloat16", (WIDTH, words), None, split),
        shaped("bfloat16", (BATCH, LENGTH, WIDTH), "data"),
        shaped("int32", (BATCH, LENGTH), "data"),
    )


def predicted(lowered: Any) -> int:
    module = clone_module(lowered.compiler_ir())
    passes = parse_spec("inline,cse,free-constants", source="test")
    Pipeline(passes).run(module, target=Target("cuda", "cuda"))
    return predict(module, rules=XLA_GPU).temp_bytes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_constrained", [False, True])
def test_of_half_the_batch_it_takes_half(kind: str, *, is_constrained: bool) -> None:
    """The loss is summed before its gradient is written over the logits, as on one device."""
    whole, half = (
        predicted(
            gradient_of_loss(
                mesh_of(AxisType.Auto, data=devices), kind, None, is_constrained=is_constrained
            )
        )
        for devices in (1, 2)
    )
    weights_bytes = WIDTH * WORDS * 2
    assert half == pytest.approx(whole / 2, abs=weights_bytes)


@pytest.mark.parametrize("split", [None, "model"])
def test_parts_of_rows_are_summed_apart(split: str | None) -> None:
    """A sum over devices is in no kernel: what is normalized by it may be written over."""
    mesh = mesh_of(AxisType.Auto, data=2, model=4)
    module = clone_module(gradient_of_loss(mesh, "picked", split, 8192).compiler_ir())
    Pipeline(parse_spec("inline", source="test")).run(module, target=Target("cuda", "cuda"))
    program = Program.of(module, DeviceView.of(module, XLA_GPU))
    sums = {
        use
        for op, use in zip(program.ops, trace_block(program).uses, strict=False)
        if op.name == "stablehlo.reduce" and op.operands[0].type.shape == [BATCH, LENGTH, 8192]
    }
    assert sums == {BufferUse.ROWS if split is None else BufferUse.REDUCTION}


@pytest.mark.h100
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", [None, "model"])
def test_it_is_xlas(kind: str, split: str | None) -> None:
    devices = np.asarray(deviceless.mesh(H100, 8).devices).reshape(2, 4)
    lowered = gradient_of_loss(Mesh(devices, ("data", "model")), kind, split)
    real = measure(lowered, "off").temp_bytes
    assert predicted(lowered) == pytest.approx(real, rel=0.07)
