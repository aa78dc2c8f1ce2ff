"""`recursive-checkpoint` on automatic, explicit and manual axes, and in two processes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from support.processes import assert_all_equal, run_members
from support.remat_runs import transformed

SPEC = "recursive-checkpoint{levels=2 min_trips=4 min_bytes=1}"
TRIPS = 27


def loss(x: Any, ws: Any, mean: Any = jnp.mean) -> Any:
    def body(c: Any, w: Any) -> tuple[Any, None]:
        return jnp.tanh(c @ w) + 0.1 * mean(c), None

    return (lax.scan(body, x, ws)[0] ** 2).sum()


@pytest.mark.parametrize("kind", ["automatic", "explicit", "manual"])
def test_a_batch_over_devices(kind: str) -> None:
    axes = AxisType.Explicit if kind == "explicit" else AxisType.Auto
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",), axis_types=(axes,))
    keys = jax.random.split(jax.random.key(0))
    x = jax.device_put(jax.random.normal(keys[0], (8, 4)), NamedSharding(mesh, P("data")))
    ws = jax.device_put(jax.random.normal(keys[1], (TRIPS, 4, 4)) / 2, NamedSharding(mesh, P()))
    function = jax.value_and_grad(loss, (0, 1))
    if kind == "manual":

        def on_device(x: Any, ws: Any) -> Any:
            mean = lambda c: lax.pmean(c.mean(), "data")  # noqa: E731
            value, gradients = jax.value_and_grad(lambda *a: loss(*a, mean), (0, 1))(x, ws)
            return lax.psum(value, "data"), (gradients[0], lax.psum(gradients[1], "data"))

        specs = P("data"), P()
        function = jax.shard_map(
            on_device, mesh=mesh, in_specs=specs, out_specs=(P(), specs), check_vma=False
        )
    with jax.set_mesh(mesh):
        lowered = jax.jit(function).lower(x, ws)
        _, plan = transformed(lowered, SPEC)
        assert plan["tables"][0]["rows"]
        off, on = (lowered.compile({"hloom": spec})(x, ws) for spec in ("off", SPEC))
    for one, other in zip(jax.tree.leaves(on), jax.tree.leaves(off), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


MEMBER = """
import sys
import jax, jax.numpy as jnp, numpy as np
import hloom
process, port = map(int, sys.argv[-2:])
jax.distributed.initialize(f"127.0.0.1:{port}", 2, process)
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("data",))
x = jax.make_array_from_callback(
    (4, 4), NamedSharding(mesh, P("data")), lambda i: np.linspace(0, 1, 16).reshape(4, 4)[i]
)
def loss(x):
    body = lambda c, _: (jnp.sin(c + 0.1 * c.mean()), None)
    return (jax.lax.scan(body, x, None, length=27)[0] ** 2).sum()
lowered = jax.jit(jax.value_and_grad(loss)).lower(x)
texts = []
for spec in ("off", "recursive-checkpoint{min_trips=4 min_bytes=1}"):
    compiled = lowered.compile({"hloom": spec})
    value, gradient = compiled(x)
    texts.append((float(value), np.asarray(gradient.addressable_data(0))))
assert hloom.records()[-1].changed
np.testing.assert_allclose(texts[1][0], texts[0][0], rtol=1e-5)
np.testing.assert_allclose(texts[1][1], texts[0][1], rtol=1e-4, atol=1e-6)
print("equal")
"""


@pytest.mark.once
def test_two_processes() -> None:
    assert_all_equal(run_members(MEMBER))
