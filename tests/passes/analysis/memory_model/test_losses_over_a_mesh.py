"""The memory of a loss over many words, split over a mesh: by the model, and by XLA."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from support.devices.meshes import mesh_of

from benchmarks.common.h100 import TARGET, measure
from hloom.passes.analysis.device import DeviceView
from hloom.passes.analysis.memory_model.memory_rules import XLA_GPU
from hloom.passes.analysis.memory_model.tracer import predict, trace_block
from hloom.passes.analysis.program import Program
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.spec import parse_spec
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.op_facts import BufferUse
from hloom.targets import deviceless

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
    devices = np.asarray(deviceless.mesh(TARGET, 8).devices).reshape(2, 4)
    lowered = gradient_of_loss(Mesh(devices, ("data", "model")), kind, split)
    real = measure(lowered, "off").temp_bytes
    assert predicted(lowered) == pytest.approx(real, rel=0.07)
