"""`hloom.split` of a GPT over 8 devices: values, and bytes of a device as XLA has them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support.programs import normal
from support.results import assert_close

import hloom
from benchmarks.programs.gpt import Gpt
from hloom.passes.framework.tables import facts_of

ROWS, COLUMNS = PartitionSpec("model"), PartitionSpec(None, "model")
FULLY_SHARDED = dict.fromkeys(
    ("query_key_value", "attention_out", "up", "down", "embedding", "position"),
    PartitionSpec("data"),
)
TENSOR_PARALLEL = {
    "query_key_value": COLUMNS, "up": COLUMNS, "attention_out": ROWS, "down": ROWS,
    "embedding": ROWS,
}  # fmt: skip


def placed(program: Gpt, mesh: jax.sharding.Mesh, specs: Any) -> tuple[Any, jax.Array]:
    """Parameters and tokens on the devices of a mesh."""

    def put(path: Any, shape: jax.ShapeDtypeStruct) -> jax.Array:
        name = path[-1].key
        spec = specs.get(name, PartitionSpec())
        stacked = program.scanned and name not in ("embedding", "position")
        spec = PartitionSpec(*((None, *spec) if stacked else spec))
        values = 0.05 * normal(*shape.shape, seed=len(name))
        return jax.device_put(values, NamedSharding(mesh, spec))

    tokens = np.random.default_rng(0).integers(0, 64, (program.batch, program.sequence))
    over_data = NamedSharding(mesh, PartitionSpec("data"))
    return (
        jax.tree_util.tree_map_with_path(put, program.parameters()),
        jax.device_put(jnp.asarray(tokens, "int32"), over_data),
    )


@pytest.mark.parametrize(
    ("shape", "specs", "scanned"),
    [((8, 1), FULLY_SHARDED, True), ((2, 4), TENSOR_PARALLEL, False)],
    ids=["fully sharded, scanned", "tensor parallel, unrolled"],
)
def test_a_gpt_over_eight_devices(shape: tuple[int, int], specs: Any, scanned: bool) -> None:
    mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    program = Gpt(scanned, layers=2, width=64, heads=4, vocabulary=64, batch=16, sequence=32)
    arguments = placed(program, mesh, specs)
    with jax.set_mesh(mesh):
        fwd, bwd = hloom.split(program.loss)
        y, residuals = fwd(*arguments)
        got = y, bwd(residuals, 1.0)
        assert_close(got, jax.jit(jax.value_and_grad(program.loss))(*arguments), 3e-6)
        figures = fwd.lower(*arguments).compile().memory_analysis()
    held = sum(value.addressable_shards[0].data.nbytes for value in residuals.values.values())
    assert held * 4 <= residuals.nbytes
    pointers = 8 * (1 + len(residuals.values))  # of a tuple of results, on a CPU
    assert figures.output_size_in_bytes == held + y.nbytes + pointers
    facts = facts_of(hloom.records("loss")[-1].runs[-1].plan)
    assert facts["bytes of residuals"] == held


def test_three_programs_over_eight_devices() -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    program = Gpt(scanned=True, layers=2, width=64, heads=4, batch=16, sequence=32)
    parameters, _ = placed(program, mesh, TENSOR_PARALLEL)
    over_data = NamedSharding(mesh, PartitionSpec("data"))
    layers = parameters["layers"]
    x = jax.device_put(normal(16, 32, 64), over_data)
    with jax.set_mesh(mesh):
        fwd, bwd_x, bwd_w = hloom.split(program.stage, argnums=(0, 1), weights=0)
        y, residuals = fwd(layers, x)
        (of_x,), rest = bwd_x(residuals, y)
        of_weights = bwd_w(rest)
        _, pullback = jax.vjp(jax.jit(program.stage), layers, x)
        assert_close((of_weights, of_x), pullback(y), 3e-6)
    held = sum(value.addressable_shards[0].data.nbytes for value in rest.values.values())
    facts = facts_of(hloom.records("stage")[-1].runs[-1].plan)
    assert held == (
        facts["bytes of residuals for gradients of weights"]
        + facts["bytes handed to gradients of weights"]
    )
    assert held * 2 <= rest.nbytes
