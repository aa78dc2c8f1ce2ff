"""What hloom/_jax/execution.py takes for granted of JAX.

`execute_sharded`, the shardings of parameters and outputs, `GSPMDSharding`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from hloom._jax.execution import argument_shardings, assembled, compile_module, execute


def test_an_executable_runs_by_itself_on_several_devices() -> None:
    devices = jax.devices()[:4]
    mesh = jax.sharding.Mesh(np.array(devices), ("a",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a"))
    x = jax.ShapeDtypeStruct((8, 2), "float32", sharding=sharding)
    lowered = jax.jit(lambda x, n: (x + 1, x.sum() * n), donate_argnums=0).lower(x, 2.0)
    executable = compile_module(lowered.compiler_ir(), devices, {})
    wanted = argument_shardings(executable, devices, [None, None])
    given = [
        jax.device_put(value, place)
        for value, place in zip(
            (np.arange(16, dtype=np.float32).reshape(8, 2), np.float32(2)), wanted, strict=True
        )
    ]
    assert {shard.data.shape for shard in given[0].addressable_shards} == {(2, 2)}
    shards = execute(executable, given)
    assert [len(each) for each in shards] == [4, 4]
    results = [(0, (8, 2), shards[0]), (1, (), shards[1])]
    more, total = assembled(executable, devices, results)
    np.testing.assert_array_equal(more, np.arange(16).reshape(8, 2) + 1)
    assert total == 240
    assert given[0].is_deleted()


def test_an_executable_runs_by_itself_on_one_device() -> None:
    module = jax.jit(jnp.sin).lower(np.float32(0)).compiler_ir()
    executable = compile_module(module, jax.devices()[:1], {})
    [place] = argument_shardings(executable, jax.devices()[:1], [None])
    shards = execute(executable, [jax.device_put(np.float32(0), place)])
    [result] = assembled(executable, jax.devices()[:1], [(0, (), shards[0])])
    assert result == 0
