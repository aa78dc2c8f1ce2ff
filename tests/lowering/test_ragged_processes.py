"""`jax.lax.ragged_all_to_all` between processes, where the operands are exchanged."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Sequence
from itertools import islice

import pytest
from support import often
from support.devices.stopping import stopped_for
from support.processes import Member, assert_all_equal, ended, start_members

pytestmark = pytest.mark.long

START = """
import os
import signal
import sys
import time
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from support.devices.ragged_splits import exchange, gradients, random_split

processes, other, process, port = map(int, sys.argv[1:])
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

def run():
    split = random_split(rng, operand_rows=24, output_rows=48, devices=devices)
    shapes = (devices, 48, 3), (devices, 24, 3), (devices, 48, 3)
    weight, operand, output = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    results = step(*map(put, (weight, operand, output, *split.arrays())))
    expected = exchange(operand, output, split), gradients(weight, 24, split)[0]
    for result, wanted in zip(results, expected, strict=True):
        for shard in result.addressable_shards:
            np.testing.assert_array_equal(shard.data, wanted[shard.index])
"""

EQUAL = (
    START
    + """
for _ in range(10):
    run()
print("equal")
"""
)

STOPS = (
    START
    + """
for number in range(6):
    if (number, process) == (3, other):
        os.kill(os.getpid(), signal.SIGSTOP)
    run()
print("equal")
"""
)

# One process exchanges offsets, but sends no rows, and is killed when the others wait for them.
DIES = (
    START
    + """
from hloom.lowering import ragged

if process == other:
    ragged.every_row_exchanged = lambda operand, groups: ragged.repeated(operand, len(groups[0]))

def forward(operand, output, *slices):
    rows = (each[0] for each in slices)
    return jax.lax.ragged_all_to_all(operand[0], output[0], *rows, axis_name="x")[None]

once = jax.shard_map(forward, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
once = jax.jit(once, compiler_options={"hloom": "barriers"})
split = random_split(rng, operand_rows=24, output_rows=48, devices=devices)
shapes = (devices, 24, 3), (devices, 48, 3)
values = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
try:
    once(*map(put, (*values, *split.arrays()))).block_until_ready()
    assert process == other
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
except (jax.errors.JaxRuntimeError, ValueError) as error:
    print("ended with", " ".join(str(error).split()), flush=True)
# Nobody goes before all have told: who goes is an error for those who wait for it.
sys.stdin.read()
os._exit(0)
"""
)


def start(script: str, processes: int, other: int = -1) -> list[Member]:
    """A script in several processes; to one of them, `other`, something happens."""
    return start_members(script, str(processes), str(other), processes=processes, devices=2)


@pytest.mark.parametrize("processes", [2, 4][: often(1, 2)])
def test_equals_numpy_with_gradients(processes: int) -> None:
    assert_all_equal(ended(start(EQUAL, processes), timeout_s=180))


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.once)])
def test_a_process_that_is_killed_is_an_error_in_the_others(processes: int) -> None:
    """Killed when the others wait for its rows, and for nothing else of it."""
    dead = 1
    workers = start(DIES, processes, other=dead)
    alive = [worker for process, worker in enumerate(workers) if process != dead]
    try:
        # Long before jax.distributed itself finds that a process is gone, after 100 s.
        assert workers[dead].wait(timeout=180) == -signal.SIGKILL
        told = told_within(60, alive)
    finally:
        for worker in workers:
            worker.kill()
    assert len(told) == len(alive)
    for error in told:
        assert re.search("Gloo all-to-all.*(closed|reset) by peer", error)


def told_within(seconds: float, workers: Sequence[Member]) -> list[str]:
    """A line of each process, of those that tell one in time."""
    lines: list[str] = []
    readers = [threading.Thread(target=_read, args=(each, lines), daemon=True) for each in workers]
    end = time.monotonic() + seconds
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(max(0, end - time.monotonic()))
    return list(lines)


def _read(worker: Member, lines: list[str]) -> None:
    # XLA's transport writes lines of its own.
    lines.extend(islice((each for each in worker.stdout if each.startswith("ended with")), 1))


@pytest.mark.once
@pytest.mark.parametrize("processes", [2, 4][: often(1, 2)])
def test_a_process_that_is_stopped_is_waited_for(processes: int) -> None:
    workers = start(STOPS, processes, other=1)
    assert_all_equal(
        ended(workers, timeout_s=180, meanwhile=lambda: stopped_for(10, workers[1].pid))
    )
