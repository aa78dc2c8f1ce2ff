"""What hloom/_jax/modules.py takes for granted of JAX: modules through HLO, names of `jax.pmap`.

What hloom/_jax/lowered.py takes for granted of JAX: what a Lowered keeps of its devices.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from support import RunPython

from hloom._jax.lowered import devices_of
from hloom._jax.modules import pmapped_function, through_hlo
from hloom.compiling.origin import module_name


def test_a_module_through_hlo_has_no_chlo() -> None:
    text = jax.jit(jnp.sinh).lower(np.float32(0)).as_text()
    assert "chlo.sinh" in text
    through = through_hlo(text)
    assert "chlo." not in through
    assert "@main(%arg0: tensor<f32>" in through


def train_step(w: jax.Array, x: jax.Array) -> jax.Array:
    def loss(w: jax.Array) -> jax.Array:
        return jnp.sin(x @ w).sum()

    return w - jax.lax.pmean(jax.grad(loss)(w), "devices")


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (train_step, "pmap_train_step"),
        (functools.partial(train_step, x=np.ones((2, 3), np.float32)), "pmap_train_step"),
        (lambda w: jax.lax.psum(w * 2, "devices"), "pmap__lambda_"),
    ],
)
def test_a_program_of_pmap_is_called_by_the_users_function(
    function: Callable[..., jax.Array], name: str
) -> None:
    shapes = [jax.ShapeDtypeStruct((1, 3, 4), "float32")]
    if function is train_step:
        shapes.append(jax.ShapeDtypeStruct((1, 2, 3), "float32"))
    module = jax.pmap(function, axis_name="devices").lower(*shapes).compiler_ir()
    assert module_name(module) == name


def test_a_function_of_the_name_of_jaxs_own_keeps_it() -> None:
    def _fun(x: jax.Array) -> jax.Array:
        return x + 1

    module = jax.jit(_fun).lower(np.float32(0)).compiler_ir()
    assert module_name(module) == "jit__fun"
    assert pmapped_function(module, "jit__fun") == ""


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
