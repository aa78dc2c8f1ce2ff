"""Compiles a module outside of a jit, and runs the executable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    # Importing it loads much of JAX that a process without a spec has no use for.
    from jax.extend.mlir import ir


def compile_options_for(devices: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Returns JAX's compile options for a module with one partition on each of these devices.

    Args:
      devices: those of one backend.
      options: options by name, XLA's and "hloom".
    """
    import numpy as np
    from jax._src import compiler

    return compiler.get_compile_options(
        num_replicas=1,
        num_partitions=len(devices),
        device_assignment=np.array([[device.id for device in devices]]),
        env_options_overrides=dict(options),
        backend=devices[0].client,
    )


def compile_module(module: ir.Module, devices: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Compiles a module for these devices as JAX would, through its hook and its cache.

    Args:
      module: for as many partitions as there are devices.
      devices: those of one backend, which may be one that only compiles.
      options: compile options, "hloom" among them or not.
    """
    import numpy as np
    from jax._src import compiler
    from jaxlib import _jax

    backend = devices[0].client
    compile_options = compile_options_for(devices, options)
    return compiler.compile_or_get_cached(
        backend,
        module,
        np.array(devices),
        compile_options,
        host_callbacks=[],
        executable_devices=_jax.DeviceList(tuple(devices)),
    )


def argument_shardings(
    executable: Any, devices: Sequence[Any], memory_kinds: Sequence[str | None]
) -> tuple[jax.sharding.Sharding, ...]:
    """Returns the shardings that an executable expects of its arguments.

    Args:
      executable: the result of `compile_module`.
      devices: the devices that it was compiled for, in order.
      memory_kinds: for each argument, the memory that holds it; None for the device's own.
    """
    shardings = executable.get_parameter_shardings() or [None] * len(memory_kinds)
    return tuple(
        _sharding(devices, sharding, kind)
        for sharding, kind in zip(shardings, memory_kinds, strict=True)
    )


def execute(executable: Any, arguments: Sequence[jax.Array]) -> list[list[jax.Array]]:
    """Runs an executable; returns each result's shards, by device.

    Arguments that it was compiled to write over are deleted by the run.
    """
    results = executable.execute_sharded(list(arguments))
    shards: list[list[jax.Array]] = results.disassemble_into_single_device_arrays()
    return shards


def assembled(
    executable: Any,
    devices: Sequence[Any],
    results: Sequence[tuple[int, tuple[int, ...], Sequence[jax.Array]]],
) -> list[jax.Array]:
    """Assembles whole arrays from the shards that `execute` returned.

    Args:
      executable: the executable that returned them.
      devices: the devices that it was compiled for, in order.
      results: of each, the number of the result, its whole shape, and its shards.
    """
    shardings = executable.get_output_shardings()
    return [
        jax.make_array_from_single_device_arrays(
            shape,
            _sharding(devices, shardings and shardings[index], shards[0].sharding.memory_kind),
            list(shards),
        )
        for index, shape, shards in results
    ]


def _sharding(devices: Sequence[Any], sharding: Any, kind: str | None) -> jax.sharding.Sharding:
    from jax._src import sharding_impls

    if sharding is None:
        return jax.sharding.SingleDeviceSharding(devices[0], memory_kind=kind)
    gspmd: jax.sharding.Sharding = sharding_impls.GSPMDSharding(
        tuple(devices), sharding, memory_kind=kind
    )
    return gspmd
