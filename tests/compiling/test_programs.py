"""Every way a program reaches the compiler, with the flag set."""

from __future__ import annotations

import threading
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from support import ROOT, RunPython, registering
from support import toy_passes as toy
from support.doubling import NewRecords, X, factor, fresh_jit, with_option

import hloom

_toys = registering(toy.ReplaceTwo, toy.Touch)


def test_donation(new_records: NewRecords) -> None:
    x = jnp.arange(1024, dtype=jnp.float32)
    f = fresh_jit(donate_argnums=0, **with_option("replace-two"))
    assert factor(f(x)) == 3
    assert x.is_deleted()
    assert new_records()[-1].alias_bytes == 4096


def test_gradients_and_scan() -> None:
    def loss(x: jax.Array) -> jax.Array:
        step = lambda carry, _: (carry * 2.0, None)  # noqa: E731
        return jax.lax.scan(step, x, None, length=4)[0]

    with hloom.passes("replace-two"):
        assert jax.jit(jax.grad(loss))(1.0) == 81


def test_host_callbacks() -> None:
    def on_host(x: np.ndarray) -> np.ndarray:
        return np.asarray(x) + 1

    def f(x: jax.Array) -> jax.Array:
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x * 2.0)

    assert factor(jax.jit(f, **with_option("replace-two"))(X)) == 4


@pytest.fixture
def mesh() -> jax.sharding.Mesh:
    assert len(jax.devices()) == 8
    return jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))


def test_sharded_jit(mesh: jax.sharding.Mesh, new_records: NewRecords) -> None:
    sharding = NamedSharding(mesh, PartitionSpec("i"))
    f = fresh_jit(in_shardings=sharding, out_shardings=sharding, **with_option("replace-two"))
    result = f(X)
    np.testing.assert_array_equal(result, X * 3)
    assert result.sharding == sharding
    assert new_records()[-1].changed


def test_shard_map(mesh: jax.sharding.Mesh) -> None:
    @partial(jax.jit, **with_option("replace-two"))
    @partial(jax.shard_map, mesh=mesh, in_specs=PartitionSpec("i"), out_specs=PartitionSpec())
    def f(x: jax.Array) -> jax.Array:
        return jax.lax.psum(x * 2.0, "i")

    np.testing.assert_array_equal(f(X), [X.sum() * 3])


def test_threads_compile_at_once(new_records: NewRecords) -> None:
    shared = fresh_jit()
    results: dict[int, tuple[float, float]] = {}
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        # The block is this thread's own: the others compile with other passes meanwhile.
        with hloom.passes(f"replace-two{{by={number}}}"):
            results[number] = factor(shared(X)), factor(fresh_jit()(X))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert results == {number: (number, number) for number in range(3, 11)}
    assert len(new_records()) == 16


def test_autopgle_recompiles_with_the_passes(run_python: RunPython) -> None:
    script = """
import jax, numpy as np
import hloom
from support import toy_passes
from hloom.passes.framework import registry
jax.config.update("jax_enable_pgle", True)
jax.config.update("jax_pgle_profiling_runs", 2)
with registry.registered(toy_passes.ReplaceTwo):
    def step(x): return x * 2.0
    f = jax.jit(step, compiler_options={"hloom": "replace-two"})
    print([float(f(np.ones(3, np.float32))[0]) for _ in range(5)])
print([(record.module, record.changed) for record in hloom.records()])
"""
    # The CPU's profile is empty, but collecting it and compiling again with it are real.
    assert run_python(script).stdout.splitlines() == [
        "[3.0, 3.0, 3.0, 3.0, 3.0]",
        "[('jit_step', True), ('jit_step', True)]",
    ]


H100 = ROOT / "hloom" / "targets" / "h100_sxm.txtpb"


@pytest.mark.h100
def test_a_compile_for_an_h100_without_one(run_python: RunPython) -> None:
    script = f"""
import jax
import hloom
from support import toy_passes
from hloom.passes.framework import registry
from jax.experimental import topologies
topology = topologies.get_topology_desc(
    platform="cuda", target_config=open({str(H100)!r}).read(), topology="1x1x1")
mesh = topologies.make_mesh(topology, (1,), ("x",))
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
x = jax.ShapeDtypeStruct((8, 8), "float32", sharding=sharding)
with registry.registered(toy_passes.ReplaceTwo):
    compiled = jax.jit(lambda x: x * 2.0).lower(x).compile({{"hloom": "replace-two"}})
print("constant(3)" in compiled.as_text())
[record] = hloom.records()
print(record.platform, record.changed, record.argument_bytes)
"""
    assert run_python(script).stdout.splitlines() == ["True", "cuda True 256"]
