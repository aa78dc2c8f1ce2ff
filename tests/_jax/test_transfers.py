"""What docs/shardings.md tells of JAX's and XLA's defaults between devices and between hosts."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support.processes import run_members

from hloom._jax.executables import optimized_text
from hloom.targets import deviceless

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
