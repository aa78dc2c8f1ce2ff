"""The ways of running that docs/use.md names: a step is rewritten, its results are its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from support import ROOT

import hloom

LAYERS, BATCH, WIDTH = 6, 64, 128

Ran = tuple[Any, Any, str]
"""The results without hloom and with it, and the program's name."""


def train_step(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(h @ w) * jnp.cos(h), None

    def loss(weights: jax.Array) -> jax.Array:
        return (jax.lax.scan(layer, x, weights)[0] ** 2).sum()

    value, gradient = jax.value_and_grad(loss)(weights)
    return weights - 0.1 * gradient, value


def arguments() -> tuple[jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(0))
    weights = jax.random.normal(keys[0], (LAYERS, WIDTH, WIDTH)) / WIDTH**0.5
    return weights, jax.random.normal(keys[1], (BATCH, WIDTH))


def both(run: Callable[[], Any], name: str = "jit_train_step") -> Ran:
    jax.clear_caches()
    before = run()
    jax.clear_caches()
    with hloom.passes("remat"):
        return before, run(), name


def for_one_function() -> Ran:
    def run(spec: str) -> Any:
        step = jax.jit(train_step, compiler_options={"hloom": spec})
        return step(*arguments())

    return run("off"), run("remat"), "jit_train_step"


def ahead_of_time() -> Ran:
    def run(spec: str) -> Any:
        lowered = jax.jit(train_step).lower(*arguments())
        return lowered.compile(compiler_options={"hloom": spec})(*arguments())

    return run("off"), run("remat"), "jit_train_step"


def with_export() -> Ran:
    exported = jax.export.export(jax.jit(train_step))(*arguments())

    def step(weights: jax.Array, x: jax.Array) -> Any:
        return exported.call(weights, x)

    return both(lambda: jax.jit(step)(*arguments()), "jit_step")


def with_shard_map() -> Ran:
    mesh = Mesh(np.array(jax.devices()[:2]), ("batch",))
    rows, whole = PartitionSpec("batch"), PartitionSpec()

    def step(weights: jax.Array, x: jax.Array) -> Any:
        weights, value = train_step(jax.lax.pcast(weights, "batch", to="varying"), x)
        return jax.lax.pmean(weights, "batch"), jax.lax.psum(value, "batch")

    mapped = jax.shard_map(step, mesh=mesh, in_specs=(whole, rows), out_specs=(whole, whole))
    return both(lambda: jax.jit(mapped)(*arguments()), "jit_step")


def with_shardings() -> Ran:
    mesh = Mesh(np.array(jax.devices()[:2]), ("batch",))

    def run() -> Any:
        weights, x = arguments()
        x = jax.device_put(x, NamedSharding(mesh, PartitionSpec("batch")))
        return jax.jit(train_step)(weights, x)

    return both(run)


def with_vmap() -> Ran:
    def run() -> Any:
        weights, x = arguments()
        return jax.jit(jax.vmap(train_step, in_axes=(None, 0)))(weights, jnp.stack([x, 2 * x]))

    return both(run)


def with_pmap() -> Ran:
    def run() -> Any:
        each = [jnp.stack([one, one / 2]) for one in arguments()]
        return jax.pmap(train_step, devices=jax.devices()[:2])(*each)

    return both(run, "pmap_train_step")


def with_donation() -> Ran:
    def run() -> Any:
        weights, x = arguments()
        made = jax.jit(train_step, donate_argnums=0)(weights, x)
        assert weights.is_deleted()
        return made

    return both(run)


def with_a_callback() -> Ran:
    seen: list[float] = []

    def step(weights: jax.Array, x: jax.Array) -> Any:
        weights, value = train_step(weights, x)
        jax.debug.callback(lambda value: seen.append(float(value)), value)
        return weights, value

    def run() -> Any:
        seen.clear()
        made = jax.jit(step)(*arguments())
        jax.effects_barrier()
        return *made, tuple(seen)

    return both(run, "jit_step")


def with_orbax() -> Ran:
    import tempfile

    checkpoint = pytest.importorskip("orbax.checkpoint")

    def run() -> Any:
        weights, x = arguments()
        step = jax.jit(train_step)
        weights, _ = step(weights, x)
        with tempfile.TemporaryDirectory() as folder, checkpoint.StandardCheckpointer() as writer:
            writer.save(Path(folder) / "one", {"weights": weights})
            writer.wait_until_finished()
            kept = writer.restore(Path(folder) / "one", {"weights": weights})
        return step(kept["weights"], x)

    return both(run)


WAYS: dict[str, Callable[[], Ran]] = {
    "`jax.jit`": lambda: both(lambda: jax.jit(train_step)(*arguments())),
    "one function": for_one_function,
    "ahead of time": ahead_of_time,
    "`jax.export`": with_export,
    "shardings": with_shardings,
    "`jax.shard_map`": with_shard_map,
    "`jax.vmap`": with_vmap,
    "`jax.pmap`": with_pmap,
    "donated arguments": with_donation,
    "host callbacks": with_a_callback,
    "Orbax": with_orbax,
}

ELSEWHERE = {
    "the persistent cache": "tests/compiling/test_cache.py",
    "several processes": "tests/compiling/test_cross_process.py",
    "notebooks": "tests/log/test_terminal.py",
    "MaxText": "tests/house/test_docs.py",
}
"""The rows of the page whose tests take more than a function here."""


@pytest.mark.parametrize("way", WAYS)
def test_a_step_is_rewritten_and_gives_its_results(way: str) -> None:
    before, after, name = WAYS[way]()
    newest = hloom.records(name)[-1]
    assert (newest.changed, newest.spec) == (True, "remat")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), before, after)


@pytest.mark.once
def test_the_page_has_a_row_for_each_way_and_a_test_for_each_row() -> None:
    page = (ROOT / "docs" / "use.md").read_text(encoding="utf-8")
    page = page.split("\n## Ways to run\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+?) \| [^-]", page, re.M)
    assert [row for row in rows if row != "way"] == [*WAYS, *ELSEWHERE]
    assert all((ROOT / path).is_file() for path in ELSEWHERE.values())
