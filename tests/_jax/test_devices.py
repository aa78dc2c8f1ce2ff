"""What hloom/_jax/devices.py takes for granted of JAX.

Process indices, compile-only clients, what devices tell of themselves.
"""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from support import ROOT, RunPython

from hloom._jax.devices import DeviceFacts, device_facts, platform_of, processes_of, takes_part

TARGET = ROOT / "hloom" / "targets" / "h100_sxm.txtpb"

DESCRIBED = f"""
import json, numpy as np
from jax.experimental import topologies
from hloom._jax import devices as jax_devices
from pathlib import Path
topology = topologies.get_topology_desc(
    platform="cuda", target_config=Path({str(TARGET)!r}).read_text(), topology="2x1x1")
devices = np.array(topology.devices, dtype=object)
client = devices[0].client"""
"""Devices that are there by description alone, and their client."""


def test_devices_and_clients_tell_their_process() -> None:
    [device, *_] = jax.devices()
    assert device.client.process_index() == device.process_index == 0
    assert takes_part(device.client, np.array([device], dtype=object))
    assert not takes_part(device.client, np.array([], dtype=object))
    assert platform_of(device.client) == "cpu"


@pytest.mark.h100
def test_a_compile_only_client_takes_part(run_python: RunPython) -> None:
    script = f"""{DESCRIBED}
# Its second device belongs to no process that exists.
print(json.dumps([client.platform, jax_devices.platform_of(client),
    jax_devices.takes_part(client, devices), jax_devices.takes_part(client, devices[1:])]))
"""
    assert json.loads(run_python(script).stdout) == ["gpu", "cuda", True, True]


def test_a_cpu_tells_its_kind_only() -> None:
    devices = np.array(jax.devices()[:2], dtype=object)
    facts = device_facts(devices[0].client, devices)
    assert facts == (DeviceFacts("cpu"),) * 2
    assert processes_of(devices[0].client, devices) == (0,)


@pytest.mark.h100
def test_a_device_that_is_only_described_tells_what_it_is(run_python: RunPython) -> None:
    script = f"""{DESCRIBED}
print([jax_devices.device_facts(client, devices[index:]) for index in range(2)])
print(jax_devices.processes_of(client, devices))
"""
    fact = "DeviceFacts(kind='NVIDIA H100 80GB HBM3', compute_capability=(9, 0), core_count=132, "
    fact += "limit_bytes=None)"
    assert run_python(script).stdout.splitlines() == [f"[({fact},), ({fact},)]", "(0,)"]


@pytest.mark.gpu
def test_a_gpu_tells_what_it_is_and_its_limit(run_python: RunPython) -> None:
    script = """
import jax, numpy as np
from hloom._jax import devices as jax_devices
devices = np.array(jax.devices(), dtype=object)
for fact in jax_devices.device_facts(devices[0].client, devices):
    assert fact.compute_capability >= (7, 0)
    assert fact.core_count > 10
    assert fact.limit_bytes > 2**30
"""
    run_python(script, JAX_PLATFORMS="cuda")
