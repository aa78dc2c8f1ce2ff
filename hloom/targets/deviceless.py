"""Compiles for a device of this folder on a machine that has none.

XLA runs the real passes of that device, scheduling and buffer assignment included; its memory
figures are exact and the same on every machine. Lower the function with arguments placed by
`placement`:

    prepare()
    argument = jax.ShapeDtypeStruct((8, 8), "float32", sharding=placement("h100_sxm"))
    jax.jit(f).lower(argument).compile().memory_analysis()
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies

from hloom import targets
from hloom._jax.attention import checked_for

_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
_DRIVER = Path("/dev/nvidiactl")
_TPU_DEVICES = (Path("/dev/accel0"), Path("/dev/vfio/0"))

WITHOUT_TPU = {
    # libtpu must not query the cloud's metadata server or a driver for a TPU.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5p-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    # Otherwise a second process that loads libtpu would fail: libtpu claims the TPU for itself.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""The variables that libtpu needs on a machine without a TPU; any type works for every topology."""


class MissingCompilerError(RuntimeError):
    """JAX's compiler for the target's platform cannot be used; the text says what to do."""


def prepare() -> None:
    """Lets JAX's plugins start on a machine without their devices. Call it before JAX is used.

    The CUDA plugin looks for a driver and libtpu for a TPU, and JAX fails without them unless
    another platform is chosen. So on a machine with neither, where the program did not choose its
    platforms itself, this chooses the CPU; anywhere else it does nothing.
    """
    chosen = jax.config.jax_platforms  # type: ignore[attr-defined] # made when JAX is imported
    if not chosen and not _DRIVER.exists() and not _has_tpu():
        jax.config.update("jax_platforms", "cpu")


def placement(target: str) -> jax.sharding.NamedSharding:
    """Returns a sharding that places a whole array on one device of the target, e.g. "h100_sxm" or
    "v5p".

    Raises hloom.targets.TargetError where the target is unknown, and MissingCompilerError where
    JAX's plugin for it is not installed or did not start.
    """
    return jax.sharding.NamedSharding(mesh(target, 1), jax.sharding.PartitionSpec())


def mesh(target: str, devices: int) -> jax.sharding.Mesh:
    """Returns a mesh of that many devices of the target, with one axis, "device".

    GPUs are in one machine; TPUs are the first of the smallest slice that has so many.

    Raises as `placement` does, and TargetError where no slice of TPUs has so many.
    """
    find = _tpus if targets.described_platform(target) == "tpu" else _gpus
    return jax.sharding.Mesh(np.asarray(find(target, devices)), ("device",))


def attention_lowered_for(target: str) -> AbstractContextManager[Any]:
    """Lets `jax.nn.dot_product_attention(implementation="cudnn")` be lowered inside the block as
    for a target: JAX asks the first GPU of the process, of which there may be none."""
    return checked_for(targets.load(target).compute_capability or (0, 0))


def _gpus(target: str, devices: int) -> list[Any]:
    description = targets.text(target)
    try:
        topology = topologies.get_topology_desc(
            platform="cuda", target_config=description, topology=f"1x1x{devices}"
        )
    except NotImplementedError as error:
        raise MissingCompilerError(_cuda_remedy(target)) from error
    return list(topology.devices)


def _tpus(target: str, devices: int) -> list[Any]:
    name = targets.topology(target, devices)
    if find_spec("libtpu") is None:
        raise MissingCompilerError(
            f"compiling for {target} needs the package libtpu, which is not installed: "
            "pip install 'hloom[tpu]' (about 200 MB; no TPU is needed)"
        )
    if not _has_tpu():
        for variable, value in WITHOUT_TPU.items():
            os.environ.setdefault(variable, value)
    try:
        config = targets.chip_config(target)
        options = {} if config is None else {"chip_config_name": config}
        topology = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    except RuntimeError as error:
        raise MissingCompilerError(
            f"compiling for {target}: libtpu is installed but does not tell of {name}: {error}"
        ) from error
    return list(topology.devices[:devices])


def _has_tpu() -> bool:
    return any(device.exists() for device in _TPU_DEVICES)


def _cuda_remedy(target: str) -> str:
    if any(find_spec(plugin) for plugin in _PLUGINS):
        return (
            f"compiling for {target} needs JAX's CUDA plugin, which is installed but did not "
            "start; on a machine without a GPU set JAX_PLATFORMS=cpu"
        )
    return (
        f"compiling for {target} needs JAX's CUDA plugin, which is not installed: "
        "pip install 'hloom[cuda13]' (about 2 GB; no GPU is needed)"
    )
