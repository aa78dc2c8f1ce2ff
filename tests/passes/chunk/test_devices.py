"""Heads whose batch is sharded: a dimension that is not is cut, or each device cuts its part."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from support.chunk_runs import assert_same, run
from support.devices.meshes import mesh_of

from benchmarks.common.collectives import collectives_of, sent_bytes_by_kind

DEVICES, WIDTH, WORDS = 4, 4, 256

DRAWN = np.random.default_rng(0)
SPEC = "chunk{chunks=2 min_bytes=1KiB}"


@pytest.fixture(scope="module", params=[AxisType.Auto, AxisType.Explicit])
def mesh(request: pytest.FixtureRequest) -> Mesh:
    return mesh_of(request.param, data=DEVICES)


def loss(w: Any, x: Any, labels: Any) -> Any:
    logits = jax.nn.log_softmax(jnp.tanh(x) @ w.T)
    return -jnp.take_along_axis(logits, labels[..., None], -1).mean()


step = jax.value_and_grad(loss, (0, 1))


def arguments(mesh: Mesh, *shape: int) -> tuple[Any, Any, Any]:
    by_row, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    x = DRAWN.normal(size=(*shape, WIDTH)).astype(np.float32)
    w = DRAWN.normal(size=(WORDS, WIDTH)).astype(np.float32)
    labels = DRAWN.integers(0, WORDS, shape).astype(np.int32)
    return (jax.device_put(w, whole), jax.device_put(x, by_row), jax.device_put(labels, by_row))


def text_of(spec: str, *values: Any) -> str:
    """What XLA makes of the step."""
    options = {"hloom": spec}
    return str(jax.jit(step).lower(*values).compile(compiler_options=options).as_text())


def test_the_dimension_that_is_not_sharded_is_cut(mesh: Mesh) -> None:
    values = arguments(mesh, DEVICES, 8)
    got = run(step, SPEC, *values)
    assert [region["along"] for region in got.regions] == ["axis 1"]
    assert_same(step, got.results, *values)


def test_each_device_cuts_its_part_where_there_is_no_other(mesh: Mesh) -> None:
    values = arguments(mesh, 4 * DEVICES)
    got = run(step, SPEC, *values)
    assert [region["along"] for region in got.regions] == ["axis 0 as [4, 4, 1]"]
    assert_same(step, got.results, *values)
    whole, chunks = (list(collectives_of(text_of(spec, *values))) for spec in ("off", SPEC))
    assert len(chunks) <= len(whole)


def test_a_part_that_is_too_short_is_left(mesh: Mesh) -> None:
    got = run(step, "chunk{chunks=2 min_bytes=64}", *arguments(mesh, DEVICES))
    assert not got.regions
    assert any("too little of it" in left["why"] for left in got.left)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_words_may_be_split_over_another_axis(kind: AxisType) -> None:
    """On explicit axes there is a constraint behind each operation, and none of these is implied:
    without it rows would be split as the words are."""
    mesh = mesh_of(kind, data=2, model=2)

    def loss(w: Any, x: Any, labels: Any) -> Any:
        logits = jnp.tanh(x @ w["hidden"]) @ w["words"]
        wanted = labels[..., None] == jnp.arange(WORDS)
        return (jax.nn.logsumexp(logits, -1) - jnp.where(wanted, logits, 0).sum(-1)).mean()

    w, x, labels = arguments(mesh_of(kind, data=2), 4, 16)
    by_row, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    weights = {
        "hidden": jax.device_put(DRAWN.normal(size=(WIDTH, WIDTH)).astype(np.float32), whole),
        "words": jax.device_put(np.asarray(w).T, NamedSharding(mesh, P(None, "model"))),
    }
    values = weights, *(jax.device_put(np.asarray(each), by_row) for each in (x, labels))
    step = jax.value_and_grad(loss, (0, 1))
    got = run(step, SPEC, *values)
    assert [region["along"] for region in got.regions] == ["axis 1"]
    assert_same(step, got.results, *values)


def sharded(mesh: Mesh, dtype: Any, *shape: int) -> tuple[Any, Any, Any]:
    """With rows of the weights on each device, too, and columns where the mesh has "model"."""
    w, x, labels = arguments(mesh, *shape)
    columns = "model" if "model" in mesh.shape else None
    placed = NamedSharding(mesh, P(columns, "data"))
    return jax.device_put(w.astype(dtype), placed), x.astype(dtype), labels


@pytest.mark.parametrize("sizes", [{"data": DEVICES}, {"data": 2, "model": 2}])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_weights_are_gathered_and_their_gradients_summed_once(
    sizes: dict[str, int], dtype: Any
) -> None:
    mesh = mesh_of(AxisType.Auto, **sizes)
    values = sharded(mesh, dtype, 2 * DEVICES, 64)
    got = run(step, SPEC, *values)
    assert [region["along"] for region in got.regions] == ["axis 1"]
    assert_same(step, got.results, *values, tolerance=2e-6 if dtype == jnp.float32 else 1e-2)
    whole, chunks = (
        sum(sent_bytes_by_kind(text_of(spec, *values)).values()) for spec in ("off", SPEC)
    )
    assert chunks <= whole + 64  # the loss with each chunk, a scalar
    [left] = [text for text in got.leaving if "on each of" in text]
    assert left.endswith(f"on each of {sizes['data']} devices")
