"""What hloom/_jax/modules.py takes for granted of JAX: modules through HLO, names of `jax.pmap`."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
