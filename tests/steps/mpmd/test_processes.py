"""Stages in several processes: right, and none waits for ever or without saying for whom."""

from __future__ import annotations

import re

import pytest
from support.processes import run_members

pytestmark = pytest.mark.long

SCRIPT = """
import os, signal, sys, threading, time
import jax
*_, what, processes, me, port = sys.argv
me, processes = int(me), int(processes)
jax.distributed.initialize(f"127.0.0.1:{port}", processes, me)
import numpy as np
import jax.numpy as jnp
import hloom

def loss(params, x, y):
    h = x @ params["outside"]
    h, _ = jax.lax.scan(lambda h, w: (h + jnp.tanh(h @ w), None), h, params["layers"])
    return jnp.mean((h @ params["outside"].T - y) ** 2)

if what == "dies":  # A slow standard error: its line stands before the step fails all the same.
    write = os.write
    os.write = lambda *each: (time.sleep(0.5), write(*each))[1]
rng = np.random.default_rng(0)
params = {"outside": rng.normal(size=(8, 8)) / 3, "layers": rng.normal(size=(4, 8, 8)) / 4}
params = {name: each.astype(np.float32) for name, each in params.items()}
devices = np.array(jax.devices()).reshape(processes, -1)
x, y = rng.normal(size=(2, 8 * devices.shape[1], 8)).astype(np.float32)
microbatches = 2 if what == "otherwise" and me else 4
step = hloom.stages(
    loss, processes, microbatches, meshes=[jax.sharding.Mesh(each, ("x",)) for each in devices],
    timeout_s=2 if what == "late" else 60,
)
try:
    placed = step.place(params, x, y)
    if what == "late" and me:
        time.sleep(7)
        sys.exit()
    if what == "dies" and me == 1:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    for number in range(100_000 if what == "dies" else 2):
        value, gradients = step(placed, x, y)
except hloom.StagesError as error:
    own = [np.asarray(each.addressable_shards[0].data) for each in placed[me].values()]
    print("intact", all(np.isfinite(each).all() for each in own))
    print(error)
    sys.exit()
wanted, right = jax.jit(jax.value_and_grad(loss))(params, x, y)
found = step.gather(gradients)
off = [float(abs(found[name] - right[name]).max() / abs(right[name]).max()) for name in params]
assert abs(float(value.addressable_shards[0].data) - wanted) < 2e-6 * wanted
assert max(off) < 2e-6, off
assert step.trace.tasks == list(step.plan.timeline.order)
print("right", step.trace.live[me])
"""


def test_stages_in_two_processes_of_two_devices_give_what_one_program_gives() -> None:
    members = run_members(SCRIPT, "runs", "2", processes=2, devices=2)
    last = [each.stdout.splitlines()[-1:] for each in members]
    assert last == [["right 2"], ["right 1"]], members


@pytest.mark.once
def test_a_process_that_dies_is_named_on_every_other_and_none_hangs() -> None:
    first, dead, last = run_members(SCRIPT, "dies", "3", processes=3, timeout_s=60)
    assert dead.returncode == -9
    for number, member in ((0, first), (2, last)):
        assert f"process 1 has died; this is process {number}" in member.stderr, member
        assert "intact True" in member.stdout
        assert "hloom.stages: process 1 has died" in member.stdout
        # JAX would wait for the dead process at the end.
        assert member.returncode == 1


@pytest.mark.once
def test_a_wait_has_a_deadline_and_a_name() -> None:
    first, _ = run_members(SCRIPT, "late", "2", processes=2, timeout_s=60)
    assert re.search(
        r"hloom.stages: nothing has come for 2 s; stage 0 waits for (B0 of stage 1, process 1|"
        r"stage 1, process 1, to take F\d); this is process 0. The parameters are those before the "
        "step.",
        first.stdout,
    ), first


@pytest.mark.once
def test_processes_that_plan_otherwise_are_told() -> None:
    members = run_members(SCRIPT, "otherwise", "2", processes=2, timeout_s=60)
    for number, member in enumerate(members):
        text = f"process {1 - number} has planned other stages than process {number}"
        assert text in member.stdout + member.stderr, member
