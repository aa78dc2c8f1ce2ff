"""Programs for several devices: shardings, code on single devices, and their exchanges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.mlir import ir
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from support.flows.cuts import best_cut
from support.flows.runs import assert_chunks_agree, compiled, flow_of, lowered, results_of

from hloom.passes.analysis.signatures.signature import AxisLayout

DEVICES, ROWS, WIDTH = 2, 8, 4

X = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH) / 9
W = np.arange(WIDTH * WIDTH, dtype=np.float32).reshape(WIDTH, WIDTH) / 7 - 1

ON_EACH = AxisLayout(0, DEVICES, ROWS // DEVICES, 1)
"""The rows, cut on each device alike."""


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:DEVICES]), ("d",))


def sharded(mesh: Mesh, body: Callable[..., Any], out_specs: Any) -> ir.Module:
    """A program that runs the body on each device, on its rows of both arguments."""
    in_specs = (P("d"), P("d"))
    function = jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs)
    places = [NamedSharding(mesh, spec) for spec in in_specs]
    arguments = [
        jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=place)
        for value, place in zip((X, W), places, strict=True)
    ]
    module = lowered(function, *arguments)
    assert "sdy.manual_computation" in str(module)
    return module


def step(x: Any, w: Any) -> Any:
    w = lax.all_gather(w, "d", axis=0, tiled=True)
    y = jnp.tanh(x @ w)
    gradient = lax.psum_scatter(x.T @ y, "d", scatter_dimension=0, tiled=True)
    return y, lax.psum(y.sum(0), "d"), gradient, lax.pmax(y.max(0), "d")


def exchanges(x: Any, w: Any) -> Any:
    turned = lax.ppermute(jnp.sin(x), "d", [(0, 1), (1, 0)])
    split = lax.all_to_all(jnp.cos(x), "d", split_axis=1, concat_axis=1, tiled=True)
    joined = lax.all_to_all(jnp.cos(x), "d", split_axis=1, concat_axis=0, tiled=True)
    return turned, split, lax.all_gather(x[:, 0], "d"), joined


ROWS_SPLIT = "split along axis 0 as [2, 4, 1] in phase 1"
SUM = "partial sum in phase 1"


def test_a_step_on_each_device_runs_in_one_loop(mesh: Mesh) -> None:
    module = sharded(mesh, step, (P("d"), P(), P("d"), P()))
    flow = flow_of(module, (0, ON_EACH))
    assert results_of(flow) == [ROWS_SPLIT, SUM, SUM, "partial maximum in phase 1"]
    assert len(flow.phases) == 1
    assert flow.sharded == 1
    assert_chunks_agree(module, flow, (X, W), evaluate=compiled)


def test_exchanges_move_chunks(mesh: Mesh) -> None:
    module = sharded(mesh, exchanges, (P("d"),) * 4)
    flow = flow_of(module, (0, ON_EACH))
    assert results_of(flow)[:2] == [ROWS_SPLIT] * 2
    assert results_of(flow)[2:] == [
        "split along axis 1 in phase 1",
        "split along axis 0 as [4, 4, 1] in phase 1",
    ]
    assert_chunks_agree(module, flow, (X, W), evaluate=compiled)


def test_rows_that_are_gathered_stay_split(mesh: Mesh) -> None:
    """Each device has the rows of all, in the order of devices."""

    def gathered(x: Any, w: Any) -> Any:
        rows = lax.all_gather(x @ lax.all_gather(w, "d", tiled=True), "d", tiled=True)
        return lax.psum_scatter(jnp.tanh(rows), "d", tiled=True)

    module = sharded(mesh, gathered, P("d"))
    flow = flow_of(module, (0, ON_EACH))
    assert results_of(flow) == [ROWS_SPLIT]
    assert_chunks_agree(module, flow, (X, W), evaluate=compiled)


def test_a_dimension_across_devices_is_not_cut_by_hand(mesh: Mesh) -> None:
    module = sharded(mesh, step, (P("d"), P(), P("d"), P()))
    flow = flow_of(module, (0, 0))
    assert results_of(flow) == ["invariant"] * 4
    assert flow.sharded == DEVICES


def test_a_sharded_batch_is_cut_on_each_device(mesh: Mesh) -> None:
    def loss(w: Any, x: Any) -> Any:
        hidden = lax.with_sharding_constraint(jnp.tanh(x @ w), NamedSharding(mesh, P("d")))
        return (jnp.tanh(hidden @ w) ** 2).mean()

    whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("d"))
    arguments = (
        jax.ShapeDtypeStruct(W.shape, W.dtype, sharding=whole),
        jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=rows),
    )
    module = lowered(jax.value_and_grad(loss), *arguments)
    dimension, flow = best_cut(module)
    assert (dimension.size, dimension.devices) == (ROWS, DEVICES)
    assert [seed.layout for seed in flow.seeds] == [ON_EACH]
    assert flow.sharded == 1
    assert len(flow.phases) == 1
    assert flow_of(module, (1, 0)).sharded == DEVICES
    assert_chunks_agree(module, flow, (W, X), evaluate=compiled)
