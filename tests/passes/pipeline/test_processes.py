"""A pipeline whose devices are in several processes, by gloo."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
from support import ROOT, often, xla_flags

pytestmark = [pytest.mark.long, pytest.mark.once]

SCRIPT = """
import sys
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

port, processes, process = map(int, sys.argv[1:])
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
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"XLA_FLAGS": xla_flags(1)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *map(str, (port, processes, process))],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(processes)
    ]
    try:
        outputs = [worker.communicate(timeout=240) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, (output, errors) in zip(workers, outputs, strict=True):
        assert worker.returncode == 0, errors
        assert output.endswith("equal\n")
