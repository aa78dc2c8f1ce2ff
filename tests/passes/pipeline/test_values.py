"""Steps that are pipelines give what they give on one device.

`benchmarks/pipeline/values.py` has more of them, at a size that takes longer.
"""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support import often
from support.devices.meshes import mesh_of

import hloom
from benchmarks.pipeline import by_hand, programs
from benchmarks.pipeline.values import Case, compared, random_case
from hloom.passes.pipeline.choice import ScheduleChoice

MOST_OFF = 2e-6
LAYERS, WIDTH, BATCH, LENGTH = 8, 8, 8, 2


def values(seed: int, *shape: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.3).astype("float32")


def weights() -> Any:
    stacks = {"a": values(0, LAYERS, WIDTH, 2 * WIDTH), "b": values(1, LAYERS, 2 * WIDTH, WIDTH)}
    return {"layers": stacks, "shared": values(2, WIDTH, WIDTH)}


def everything(p: Any, d: Any) -> jax.Array:
    """Carries of every kind: what travels, with its microbatch or for all, and what is added up."""

    def body(c: Any, w: Any) -> Any:
        x, number, loss, largest, seen = c
        key = jax.random.fold_in(jax.random.key(5), number)
        x = x + jnp.tanh(x @ w["a"]) @ w["b"] + 0.1 * jnp.tanh(d @ p["shared"])
        x = jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0.0)
        largest = jnp.maximum(largest, lax.stop_gradient(x.max()))
        return (x, number + 1, loss + (x**2).mean(), largest, seen | (x > 1).any(-1)), jnp.cos(x)

    start = (d, jnp.int32(0), jnp.zeros(()), jnp.float32(-1.0), jnp.zeros(d.shape[:2], bool))
    (x, number, loss, largest, seen), every = lax.scan(body, start, p["layers"])
    return (x**2).mean() + loss + 0.1 * largest + every.mean() + number * seen.mean()


def plain(p: Any, d: Any) -> jax.Array:
    x, _ = lax.scan(lambda x, w: (x + jnp.tanh(x @ w["a"]) @ w["b"], None), d, p["layers"])
    return (x**2).mean()


def by_layers(path: Any, value: Any) -> PartitionSpec:
    names = programs.names_of(path)
    if "layers" in names:
        return PartitionSpec("stage")
    return PartitionSpec() if "shared" in names else PartitionSpec("data")


def fully_sharded(path: Any, value: Any) -> PartitionSpec:
    names = programs.names_of(path)
    return PartitionSpec("stage", "data") if "layers" in names else PartitionSpec("data")


def by_stage(path: Any, value: Any) -> PartitionSpec:
    return PartitionSpec("stage") if "layers" in programs.names_of(path) else PartitionSpec()


DATA = values(3, BATCH, LENGTH, WIDTH)
TWO = {"data": 2, "stage": 2}
REVERSED = {"stage": 2, "data": 2}
"""Of axes that are manual XLA wants the mesh's order."""

CASES = [
    ("gpt", programs.plain, {"stage": 4}, programs.by_layers, "pipeline{microbatches=4}"),
    ("everything", everything, {"stage": 4}, by_stage, "pipeline{microbatches=4}"),
    ("circular", everything, {"stage": 2}, by_stage, "pipeline{microbatches=4 repeats=2}"),
    ("data", everything, TWO, by_layers, "pipeline{microbatches=4 repeats=2}"),
    ("sharded", everything, REVERSED, fully_sharded, "pipeline{microbatches=2}"),
    ("groups", plain, {"stage": 2}, by_stage, "accumulate{microbatches=2},pipeline{repeats=2}"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_a_pipeline_gives_what_one_device_gives(case: Any) -> None:
    name, loss, sizes, rule, spec = case
    arguments: Any = (weights(), DATA)
    if name == "gpt":
        arguments = (programs.parameters(4), programs.tokens(8))
    off, record = compared(Case(name, jax.value_and_grad(loss), arguments, sizes, rule, spec))
    assert off < MOST_OFF
    run = next(run for run in record.runs if run.name == "pipeline")
    assert run.effect.startswith("pipeline over stage: ")


@pytest.mark.parametrize("axes", [AxisType.Auto, AxisType.Explicit], ids=["automatic", "explicit"])
def test_other_axes_of_the_mesh_are_automatic_or_explicit(axes: AxisType) -> None:
    """Data and tensor parallelism; arguments are donated, and the optimizer is in the step."""
    kinds = (axes, AxisType.Auto, axes)
    mesh = jax.make_mesh((2, 2, 2), ("data", "stage", "tensor"), axis_types=kinds)
    rows = PartitionSpec("data", None, None)

    def step(p: Any, d: jax.Array) -> Any:
        def body(x: jax.Array, w: Any) -> Any:
            out = NamedSharding(mesh, rows) if axes is AxisType.Explicit else None
            hidden = jnp.tanh(x @ w["a"])
            return x + jnp.einsum("bsh,hd->bsd", hidden, w["b"], out_sharding=out), None

        def loss(p: Any) -> jax.Array:
            return (lax.scan(body, d, p)[0] ** 2).mean()

        value, gradients = jax.value_and_grad(loss)(p)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, p, gradients)

    def wanted(p: Any, d: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(lambda p: plain({"layers": p}, d))(p)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, p, gradients)

    p = weights()["layers"]
    known = jax.device_get(jax.jit(wanted)(p, DATA))
    specs = {"a": PartitionSpec("stage", None, "tensor"), "b": PartitionSpec("stage", "tensor")}
    with jax.set_mesh(mesh):
        placed = {name: jax.device_put(p[name], NamedSharding(mesh, specs[name])) for name in p}
        run = jax.jit(
            step, donate_argnums=0, compiler_options={"hloom": "pipeline{microbatches=4}"}
        )
        got = jax.device_get(run(placed, jax.device_put(DATA, NamedSharding(mesh, rows))))
    assert hloom.records()[-1].changed
    assert programs.worst(known, got) < MOST_OFF


@pytest.mark.parametrize("dtype", ["f32", "keep"])
def test_narrow_gradients_are_added_up_as_asked(dtype: str) -> None:
    p = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), weights())
    spec = f"pipeline{{microbatches=8 dtype={dtype}}}"
    case = Case("bf16", jax.grad(plain), (p, DATA.astype("bfloat16")), {"stage": 2}, by_stage, spec)
    off, record = compared(case)
    assert record.changed
    assert off < (1e-2 if dtype == "f32" else 5e-2)


@pytest.mark.parametrize("number", range(often(4, 40)))
def test_random_steps_give_what_one_device_gives(number: int) -> None:
    off, record = compared(random_case(number))
    assert record.changed
    assert off < MOST_OFF


def test_what_is_amiss_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In strict mode, too: it is no error."""
    told = "the links are slow"
    monkeypatch.setattr(ScheduleChoice, "warnings", lambda self, loops, block: iter((told,)))
    case = Case("plain", plain, (weights(), DATA), {"stage": 2}, by_stage, "pipeline")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        off, record = compared(case)
    assert (off < MOST_OFF, record.complaint) == (True, None)
    texts = [str(each.message) for each in seen if told in str(each.message)]
    assert texts == [f"hloom: pass 'pipeline': 'jit_plain': {told}."]


@pytest.mark.once
def test_the_form_by_hand_gives_what_one_device_gives() -> None:
    """It stands beside the pass in a table of benchmarks."""
    mesh = mesh_of(AxisType.Auto, stage=2)
    p, tok = programs.parameters(2), programs.tokens(4)
    known = jax.device_get(jax.jit(jax.value_and_grad(programs.plain))(p, tok))
    placed = programs.placed((p, tok), mesh, programs.by_layers)
    step = jax.jit(
        jax.value_and_grad(lambda p, tok: by_hand.gpipe(p, tok, mesh, 4)),
        in_shardings=placed,
        compiler_options={"hloom": "off"},
    )
    got = jax.device_get(step(*jax.device_put((p, tok), placed)))
    assert programs.worst(known, got) < MOST_OFF


def test_a_step_that_is_refused_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one warning, which names the operation."""

    def loss(p: Any, d: jax.Array) -> jax.Array:
        x, _ = lax.scan(lambda x, w: (jnp.tanh(x @ w) - x.mean((0, 1)), None), d, p)
        return (x**2).mean()

    mesh = mesh_of(AxisType.Auto, stage=2)
    p = values(0, LAYERS, WIDTH, WIDTH)
    known = jax.jit(loss)(p, DATA)
    placed = NamedSharding(mesh, PartitionSpec("stage")), NamedSharding(mesh, PartitionSpec())
    step = jax.jit(loss, in_shardings=placed, compiler_options={"hloom": "pipeline"})
    monkeypatch.setenv("HLOOM_STRICT", "0")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        got = step(p, DATA)
    [warning] = [each for each in seen if "pipeline" in str(each.message)]
    assert "cannot be cut into microbatches: subtract" in str(warning.message)
    np.testing.assert_allclose(got, known, rtol=1e-5)
