"""A pipeline whose devices are in several processes, by gloo."""

from __future__ import annotations

import pytest
from support import often
from support.processes import assert_all_equal, run_members

pytestmark = [pytest.mark.long, pytest.mark.once]

SCRIPT = """
import sys
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

processes, process, port = map(int, sys.argv[1:])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", processes, process, initialization_timeout=60)
assert jax.device_count() == processes
mesh = jax.make_mesh((processes,), ("stage",), axis_types=(jax.sharding.AxisType.Auto,))
layers, width, batch = 8, 8, 8
rng = np.random.default_rng(0)
w = (0.3 * rng.standard_normal((layers, width, width))).astype("float32")
x = rng.standard_normal((batch, width)).astype("float32")

def step(w, x):
    def loss(w):
        return (jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, w)[0] ** 2).mean()
    value, gradients = jax.value_and_grad(loss)(w)
    return value, w - 0.1 * gradients

def put(value, spec):
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

stages, whole = PartitionSpec("stage"), PartitionSpec()
wanted = jax.device_get(jax.jit(step)(w, x))
placed = NamedSharding(mesh, stages), NamedSharding(mesh, whole)
for spec in ("pipeline{microbatches=4}", "pipeline{microbatches=4 repeats=2}"):
    run = jax.jit(step, out_shardings=placed[::-1], compiler_options={"hloom": spec})
    got = run(put(w, stages), put(x, whole))
    for value, known in zip(got, wanted):
        for shard in value.addressable_shards:
            np.testing.assert_allclose(shard.data, known[shard.index], rtol=2e-6, atol=2e-6)
import hloom
assert all(record.changed for record in hloom.records()[-2:])
print("equal")
"""


@pytest.mark.parametrize("processes", [2, 4][: often(1, 2)])
def test_processes_give_what_one_device_gives(processes: int) -> None:
    assert_all_equal(run_members(SCRIPT, str(processes), processes=processes, timeout_s=240))
