"""`jax.lax.ragged_all_to_all` between processes, where the operands are gathered."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = """
import sys
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from ragged_splits import exchange, gradients, random_split

port, processes, process = map(int, sys.argv[1:])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", processes, process, initialization_timeout=60)
devices = jax.device_count()
assert devices == 2 * processes
mesh = Mesh(np.array(jax.devices()), ("x",))

def body(weight, operand, output, *slices):
    def send(operand):
        rows = (each[0] for each in slices)
        return jax.lax.ragged_all_to_all(operand, output[0], *rows, axis_name="x")
    result, backward = jax.vjp(send, operand[0])
    return result[None], backward(weight[0])[0][None]

mapped = jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
step = jax.jit(mapped, compiler_options={"hloom": "barriers{timeout=30s}"})

def put(values):
    sharding = NamedSharding(mesh, P("x"))
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

rng = np.random.default_rng(0)
for _ in range(10):
    split = random_split(rng, operand_rows=24, output_rows=48, devices=devices)
    shapes = (devices, 48, 3), (devices, 24, 3), (devices, 48, 3)
    weight, operand, output = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    results = step(*map(put, (weight, operand, output, *split.arrays())))
    expected = exchange(operand, output, split), gradients(weight, 24, split)[0]
    for result, wanted in zip(results, expected, strict=True):
        for shard in result.addressable_shards:
            np.testing.assert_array_equal(shard.data, wanted[shard.index])
print("equal")
"""


@pytest.mark.parametrize("processes", [2, 4])
def test_equals_numpy_with_gradients(processes: int) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(port), str(processes), str(process)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(processes)
    ]
    try:
        outputs = [worker.communicate(timeout=180) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, (output, errors) in zip(workers, outputs, strict=True):
        assert worker.returncode == 0, errors
        assert output.endswith("equal\n")
