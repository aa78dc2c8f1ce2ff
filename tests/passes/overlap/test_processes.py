"""Rings between processes: each plans by itself, all come to the same program."""

from __future__ import annotations

import pytest
from support.processes import run_members

pytestmark = [pytest.mark.long, pytest.mark.once]

MEMBER = """
import sys
import jax
import numpy as np
from benchmarks.overlap.programs import AXIS, programs
from support.devices.planned_for_h100 import both_ways, mesh_of, placed

processes, process, port = map(int, sys.argv[1:])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", processes, process, initialization_timeout=60)
assert jax.process_count() == processes
mesh = mesh_of(jax.device_count(), axis=AXIS)
program = programs(tokens=32, width=16, hidden=32)["MLP, its gradient"]
rng = np.random.default_rng(0)
arguments = tuple(
    placed(rng.normal(size=shape).astype(np.float32), mesh, spec)
    for shape, spec in zip(program.shapes, program.specs, strict=True)
)
spec = "overlap{min_bytes=1B min_rows=1}"
wanted, got, run = both_ways(program.function(mesh), arguments, spec)
assert len(wanted) == 4  # The loss and three gradients.
for one, other in zip(wanted, got, strict=True):
    for known, shard in zip(one.addressable_shards, other.addressable_shards, strict=True):
        largest = np.abs(known.data).max()
        np.testing.assert_allclose(shard.data, known.data, rtol=0, atol=1e-6 * largest)
print(run.summary)
"""

DEVICES = 4
"""Of all processes together."""


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_run_one_ring(processes: int) -> None:
    own = DEVICES // processes
    members = run_members(MEMBER, str(processes), processes=processes, devices=own, timeout_s=240)
    for member in members:
        assert member.returncode == 0, member.stderr
    # Before it gloo tells of its connections.
    told = [member.stdout.splitlines()[-1] for member in members]
    steps = 4 * (DEVICES - 1)
    assert told == [f"4 exchanges in {steps} steps beside products"] * processes
