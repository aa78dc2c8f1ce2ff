"""What hloom/_jax/lowered.py takes for granted of JAX: what a Lowered keeps of its devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from support import RunPython

from hloom._jax.lowered import devices_of


def shape(sharding: object = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((8, 4), "float32", sharding=sharding)


def test_without_shardings_it_is_the_default_device() -> None:
    backend, devices = devices_of(jax.jit(jnp.sin).lower(shape()))
    assert backend is jax.devices()[0].client
    assert list(devices.flat) == jax.devices()[:1]


def test_with_a_mesh_it_is_the_devices_of_the_mesh() -> None:
    mesh = jax.make_mesh((4,), ("x",), devices=jax.devices()[2:6])
    spread = NamedSharding(mesh, PartitionSpec("x"))
    backend, devices = devices_of(jax.jit(jnp.sin).lower(shape(spread)))
    assert backend is jax.devices()[0].client
    assert list(devices.flat) == jax.devices()[2:6]


@pytest.mark.h100
def test_devices_may_only_be_described(run_python: RunPython) -> None:
    script = """
import jax
from hloom._jax.devices import platform_of
from hloom._jax.lowered import devices_of
from hloom.targets import deviceless
deviceless.prepare()
placed = jax.ShapeDtypeStruct((8,), "float32", sharding=deviceless.placement("h100_sxm"))
backend, [device] = devices_of(jax.jit(lambda x: x * 2).lower(placed))
print(platform_of(backend), device.device_kind)
"""
    assert run_python(script).stdout.splitlines()[-1] == "cuda NVIDIA H100 80GB HBM3"
