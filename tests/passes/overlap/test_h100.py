"""What XLA:GPU makes of rings, and what it does with exchanges by default."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import hloom
from benchmarks.common.collectives import sent_bytes_by_kind
from benchmarks.overlap.programs import AXIS, programs
from hloom._jax.executables import optimized_text
from hloom.targets import deviceless
from hloom.xla.scheduled import ScheduledCollective, scheduled_collectives

pytestmark = pytest.mark.h100


NEVER_PIPELINED: dict[str, Any] = (
    {"xla_gpu_enable_pipelined_reduce_scatter": False}
    if jax.__version_info__ < (0, 12)
    else {"xla_gpu_pipeline_reduce_scatter": "COLLECTIVE_PIPELINING_MODE_OFF"}
)


def compiled(lowered: Any, spec: str, **options: Any) -> tuple[list[ScheduledCollective], int, int]:
    """The large exchanges of a program for 8 H100s, its temporaries, and what a device sends."""
    with hloom.strict():
        executable = lowered.compile(compiler_options={"hloom": spec, **options})
    text = optimized_text(executable.runtime_executable())
    large = [each for each in scheduled_collectives(text) if each.bytes >= 2**16]
    sent_bytes = sum(sent_bytes_by_kind(text).values())
    return large, executable.memory_analysis().temp_size_in_bytes, sent_bytes


@pytest.mark.parametrize(
    ("name", "steps", "sent"),
    [
        ("MLP, its gradient", 28, 1.0),
        ("MLPs in a scan, their gradient", 28, 1.0),
        ("MLP in fp8", 14, 0.7501),
    ],
)
def test_every_step_is_beside_a_product(name: str, steps: int, sent: float) -> None:
    lowered = programs()[name].lower(deviceless.mesh("h100_sxm", 8))
    _, temp_bytes, sent_bytes = compiled(lowered, "off")
    found, temp_now_bytes, sent_now_bytes = compiled(lowered, "overlap")
    assert len(found) == steps
    assert {each.kind for each in found} == {"collective-permute"}
    assert all(each.is_asynchronous and each.products for each in found)
    assert temp_now_bytes <= 1.001 * temp_bytes
    assert sent_now_bytes <= sent * sent_bytes


def test_every_step_of_a_ring_that_is_a_loop() -> None:
    lowered = programs()["MLP"].lower(deviceless.mesh("h100_sxm", 8))
    _, temp_bytes, sent_bytes = compiled(lowered, "off")
    found, temp_now_bytes, sent_now_bytes = compiled(lowered, "overlap{unroll=7}")
    assert sorted(each.runs for each in found) == [1, 1, 6, 6]
    assert all(each.is_asynchronous and each.products for each in found)
    assert temp_now_bytes <= temp_bytes
    assert sent_now_bytes == sent_bytes


def test_xla_pipelines_sums_that_a_loop_stacks() -> None:
    mesh, layers = deviceless.mesh("h100_sxm", 8), 4

    def block(x: jax.Array, w: jax.Array) -> jax.Array:
        def layer(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            return jnp.sin(x), jax.lax.psum_scatter(x.T @ w, AXIS, tiled=True)

        return jax.lax.scan(layer, x, None, length=layers)[1]

    mapped = jax.shard_map(
        block, mesh=mesh, in_specs=P(AXIS), out_specs=P(None, AXIS), check_vma=False
    )
    sharding = NamedSharding(mesh, P(AXIS))
    argument = jax.ShapeDtypeStruct((8 * 4096, 4096), jnp.bfloat16, sharding=sharding)
    lowered = jax.jit(mapped).lower(argument, argument)
    # All iterations but one do the sum of the one before, and one sum is behind the loop.
    found, _, _ = compiled(lowered, "overlap")
    assert sorted((each.kind, each.runs) for each in found) == [
        ("reduce-scatter", 1),
        ("reduce-scatter", layers - 1),
    ]
    found, _, _ = compiled(lowered, "overlap", **NEVER_PIPELINED)
    assert {(each.kind, each.runs) for each in found} == {("collective-permute", layers)}
    assert all(each.products for each in found)


@pytest.mark.parametrize(("size", "kernel"), [(2**12, "one-shot"), (2**22, "NCCL")])
def test_which_kernel_an_all_reduce_is_by_default(size: int, kernel: str) -> None:
    mesh = deviceless.mesh("h100_sxm", 8)
    mapped = jax.shard_map(
        lambda x: jax.lax.psum(x, AXIS), mesh=mesh, in_specs=P(AXIS), out_specs=P()
    )
    sharding = NamedSharding(mesh, P(AXIS))
    argument = jax.ShapeDtypeStruct((8 * size,), jnp.float32, sharding=sharding)
    executable = jax.jit(mapped).lower(argument).compile()
    [found] = scheduled_collectives(optimized_text(executable.runtime_executable()))
    assert (found.kernel, found.memory) == (kernel, 0)
