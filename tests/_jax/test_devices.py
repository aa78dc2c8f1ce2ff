"""What hloom/_jax/devices.py takes for granted of JAX.

Process indices, compile-only clients, what devices tell of themselves.

What hloom/_jax/distributed.py takes for granted of JAX.

`client` and `coordinator_address` of `jax._src.distributed.global_state`, and that what processes
tell each other is compressed.

What docs/shardings.md tells of JAX's and XLA's defaults between devices and between hosts.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support import ROOT, RunPython
from support.processes import free_port, run_members

from hloom._jax.devices import DeviceFacts, device_facts, platform_of, processes_of, takes_part
from hloom._jax.distributed import ProcessStore, coordinator_address
from hloom._jax.executables import optimized_text
from hloom.targets import deviceless

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


def test_a_process_alone_has_no_store_and_no_coordinator() -> None:
    assert ProcessStore.find() is None
    assert coordinator_address() is None


def with_store() -> str:
    """The beginning of a script that has a store, as the only process of a job."""
    return f"""
import jax
jax.distributed.initialize("127.0.0.1:{free_port()}", num_processes=1, process_id=0)
from hloom._jax.distributed import ProcessStore
store = ProcessStore.find()
"""


def test_what_processes_tell_each_other_is_compressed(run_python: RunPython) -> None:
    script = with_store() + """store.put("hloom/plan", "[0, 1]" * 1000)"""
    traced = run_python(script, GRPC_VERBOSITY="INFO", GRPC_TRACE="compression").stderr
    sizes = re.findall(r"Compressed\[gzip\] (\d+) bytes vs. (\d+) bytes", traced)
    # The figures that a job agrees on are short; a plan would be sent in a fraction of its bytes.
    assert any(int(before) > 6000 and int(after) < 600 for before, after in sizes), traced[-2000:]


def test_the_address_of_the_coordinator_is_known(run_python: RunPython) -> None:
    script = (
        with_store()
        + """
from hloom._jax.distributed import coordinator_address
print(coordinator_address())
"""
    )
    assert re.fullmatch(r"127\.0\.0\.1:\d+\n", run_python(script).stdout)


def test_processes_share_a_store(run_python: RunPython) -> None:
    script = f"""
{with_store()}
store.put("hloom/a", "[1]")
print(store.get("hloom/a", 1.0))
store.delete("hloom/a")
print(store.get("hloom/a", 0.1))
store.put("hloom/a", "[2]")
print(store.get("hloom/a", 1.0))
"""
    assert run_python(script).stdout.splitlines() == ["[1]", "None", "[2]"]


JAX_DEFAULTS = {
    "jax_cpu_collectives_implementation": "gloo",
    "jax_cross_host_transfer_socket_address": "",
    "jax_cross_host_transfer_timeout_seconds": None,
    "jax_cross_host_transfer_transfer_size": None,
    "jax_cross_host_transport_addresses": "",
    "jax_force_dcn_cross_host_transfers": False,
}

XLA_DEFAULTS = {
    "xla_gpu_collective_permute_mode": "COLLECTIVES_PRIVATE_MEMORY",
    "xla_gpu_enable_highest_priority_async_stream": "true",
    "xla_gpu_enable_nccl_user_buffers": "false",
    "xla_gpu_enable_pipelined_p2p": "false",
    "xla_gpu_experimental_enable_nccl_symmetric_buffers": "false",
    "xla_gpu_experimental_parallel_async_compute_limit": "2",
    "xla_gpu_experimental_parallel_collective_overlap_limit": "1",
    "xla_gpu_experimental_pipeline_parallelism_opt_level": "PIPELINE_PARALLELISM_OPT_LEVEL_DISABLE",
    "xla_gpu_unsupported_use_ragged_all_to_all_one_shot_kernel": "true",
    "xla_gpu_use_memcpy_local_p2p": "false",
}

MEMBER = """
import sys
import jax
import jax.numpy as jnp

process, port = map(int, sys.argv[1:])
jax.distributed.initialize(f"127.0.0.1:{port}", 2, process, initialization_timeout=60)
assert not getattr(jax.devices()[0].client, "supports_cross_host_transfers", False)
of_first, of_second = (jax.sharding.SingleDeviceSharding(device) for device in jax.devices())
value = jax.make_array_from_single_device_arrays(
    (4,), of_first, [jnp.zeros(4)] if process == 0 else [], dtype=jnp.float32
)
try:
    jax.device_put(value, of_second)
except ValueError as error:
    print(error)
"""


def test_what_jax_is_told() -> None:
    assert {name: jax.config.values[name] for name in JAX_DEFAULTS} == JAX_DEFAULTS


def test_cpus_need_an_address_to_send_to_another_process() -> None:
    members = run_members(MEMBER)
    for member in members:
        assert "Please set jax_cross_host_transfer_socket_address" in member.stdout, member.stderr


@pytest.mark.h100
def test_what_xla_is_told(tmp_path: Path) -> None:
    mesh = deviceless.mesh("h100_sxm", 8)
    mapped = jax.shard_map(
        lambda x: jax.lax.psum(x, "device"), mesh=mesh, in_specs=P("device"), out_specs=P()
    )
    argument = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(mesh, P("device")))
    dump = {"hloom": "off", "xla_dump_to": str(tmp_path), "xla_dump_hlo_as_text": True}
    jax.jit(mapped).lower(argument).compile(compiler_options=dump)
    [config] = [each for each in tmp_path.glob("*.config.pbtxt") if "gpu_target" not in each.name]
    told = dict(re.findall(r"^\s*(xla_\w+): (\S+)$", config.read_text(), re.MULTILINE))
    assert {name: told[name] for name in XLA_DEFAULTS} == XLA_DEFAULTS


@pytest.mark.h100
def test_slices_of_stacks_are_copied_beside_other_work() -> None:
    mesh = deviceless.mesh("h100_sxm", 1)

    def layers(x: jax.Array, stack: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack)[0]

    whole = NamedSharding(mesh, P())
    arguments = (
        jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16, sharding=whole),
        jax.ShapeDtypeStruct((4, 4096, 4096), jnp.bfloat16, sharding=whole),
    )
    executable = jax.jit(layers).lower(*arguments).compile(compiler_options={"hloom": "off"})
    text = optimized_text(executable.runtime_executable())
    # The oldest JAX supported loads a slice where it is read.
    assert text.count(" fusion-start(") == (jax.__version_info__ >= (0, 12))
    assert " copy-start(" not in text
