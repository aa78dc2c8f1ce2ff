"""Rings between processes: each plans by itself, all come to the same program."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.long, pytest.mark.once]

MEMBER = """
import sys
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from support.devices.planned_for_h100 import AXIS, both_ways, mesh_of, placed

processes, process, port = map(int, sys.argv[1:])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", processes, process, initialization_timeout=60)
mesh = mesh_of(jax.device_count())

def block(x, up, down):
    whole = jax.lax.all_gather(x, AXIS, tiled=True)
    return jax.lax.psum_scatter(jnp.tanh(whole @ up) @ down, AXIS, tiled=True)

specs = P(AXIS), P(None, AXIS), P(AXIS)
mapped = jax.shard_map(block, mesh=mesh, in_specs=specs, out_specs=specs[0])
rng = np.random.default_rng(0)
shapes = (16, 8), (8, 16), (16, 8)
arguments = tuple(
    placed(rng.normal(size=shape).astype(np.float32), mesh, spec)
    for shape, spec in zip(shapes, specs, strict=True)
)
[wanted], [got], run = both_ways(mapped, arguments, "overlap{min_bytes=1B min_rows=1}")
for one, other in zip(wanted.addressable_shards, got.addressable_shards, strict=True):
    np.testing.assert_allclose(other.data, one.data, rtol=0, atol=1e-5)
print(run.summary)
"""


def test_two_processes_run_one_ring() -> None:
    processes = 2
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    members = [
        subprocess.Popen(
            [sys.executable, "-c", MEMBER, str(processes), str(process), port],
            env=os.environ
            | {
                "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
                "PYTHONHASHSEED": str(process + 1),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(processes)
    ]
    try:
        outputs = [member.communicate(timeout=240) for member in members]
    finally:
        for member in members:
            member.kill()
    for member, (_, errors) in zip(members, outputs, strict=True):
        assert member.returncode == 0, errors
    steps = 2 * (2 * processes - 1)
    # Before it gloo tells of its connections.
    told = [out.splitlines()[-1] for out, _ in outputs]
    assert told == [f"2 exchanges in {steps} steps beside products"] * processes
