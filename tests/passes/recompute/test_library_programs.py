"""The training steps of libraries: `remat` changes no result of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.programs.libraries import LIBRARY_PROGRAMS

SPEC = "remat{min_bytes=0}"


@pytest.mark.parametrize("make", LIBRARY_PROGRAMS)
def test_a_step_gives_the_same_result(make: Callable[[], Any]) -> None:
    function, arguments = make()
    lowered = jax.jit(function).lower(*arguments)
    wanted = lowered.compile(compiler_options={"hloom": "off"})(*arguments)
    got = lowered.compile(compiler_options={"hloom": SPEC})(*arguments)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        if not jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)
