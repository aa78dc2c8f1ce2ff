"""What hloom/_jax/modules.py takes for granted of JAX: modules through HLO."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from hloom._jax.modules import through_hlo


def test_a_module_through_hlo_has_no_chlo() -> None:
    text = jax.jit(jnp.sinh).lower(np.float32(0)).as_text()
    assert "chlo.sinh" in text
    through = through_hlo(text)
    assert "chlo." not in through
    assert "@main(%arg0: tensor<f32>" in through
