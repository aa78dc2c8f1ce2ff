"""Compiles for a device of this folder on a machine that has none.

XLA runs the real passes of that device, scheduling and buffer assignment included; its memory
figures are exact and the same on every machine. Lower the function with arguments placed by
`placement`:

    prepare()
    argument = jax.ShapeDtypeStruct((8, 8), "float32", sharding=placement("h100_sxm"))
    jax.jit(f).lower(argument).compile().memory_analysis()
"""

from __future__ import annotations

import itertools
import math
import os
from contextlib import AbstractContextManager
from importlib import resources
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
    find = _tpus if described_platform(target) == "tpu" else _gpus
    return jax.sharding.Mesh(np.asarray(find(target, devices)), ("device",))


def attention_lowered_for(target: str) -> AbstractContextManager[Any]:
    """Lets `jax.nn.dot_product_attention(implementation="cudnn")` be lowered inside the block as
    for a target: JAX asks the first GPU of the process, of which there may be none."""
    return checked_for(targets.load(target).compute_capability or (0, 0))


def described_platform(name_or_path: str) -> str:
    """Returns the platform of a device, by JAX's name, e.g. "cuda" for "h100_sxm".

    Raises TargetError as `targets.load` does.
    """
    return "cpu" if name_or_path == "cpu" else str(targets.figures_of(name_or_path)["platform"])


def text(name_or_path: str) -> str:
    """Returns XLA's description of a GPU.

    Raises TargetError as `targets.load` does, for "cpu" and TPUs, which have none, and where a file
    of figures has no description beside it.
    """
    if name_or_path == "cpu":
        raise targets.TargetError("target 'cpu' has no description: XLA takes the host as it is.")
    if targets.figures_of(name_or_path)["platform"] == "tpu":
        raise targets.TargetError(
            f"target '{name_or_path}' has no description: XLA knows it by its topologies."
        )
    if not targets.is_path(name_or_path):
        return (resources.files(targets.__name__) / (name_or_path + targets.DESCRIPTION)).read_text(
            encoding="utf-8"
        )
    path = Path(name_or_path).with_suffix(targets.DESCRIPTION)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise targets.TargetError(
            f"{path}: {error.strerror}. XLA's description of the GPU is wanted beside the figures; "
            "`hloom targets --this` writes both on a machine that has one."
        ) from error


def source(name: str) -> str:
    """Returns the first lines of a known target's file: the figures' meaning and their source.

    Raises TargetError where the name is unknown; empty for "cpu".
    """
    if name == "cpu":
        return ""
    targets.figures_of(name)
    text = (
        resources.files(targets.__name__)
        .joinpath(name + targets.FIGURES)
        .read_text(encoding="utf-8")
    )
    lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    return " ".join(line.lstrip("# ") for line in lines)


def topology(name: str, devices: int) -> str:
    """Returns the smallest topology of a TPU with that many devices, by XLA's name: "v5p:2x2x1".

    Raises TargetError as `targets.load` does, for anything but a TPU, and where no topology has
    that many.
    """
    known = [] if name == "cpu" else targets.figures_of(name).get("topologies", [])
    if not known:
        raise targets.TargetError(f"target '{name}' has no topologies: they are TPUs'.")
    by_devices = {_devices_of(one): one for one in known}
    fitting = [count for count in by_devices if count >= devices]
    if not fitting:
        most = max(by_devices)
        raise targets.TargetError(
            f"target '{name}' has at most {most} devices here, not {devices}."
        )
    return str(by_devices[min(fitting)])


def _devices_of(topology_name: str) -> int:
    _, _, shape = topology_name.partition(":")
    return math.prod(map(int, shape.split("x")))


def chip_config(name: str) -> str | None:
    """Returns XLA's configuration of a TPU's chips, e.g. "megacore"; None for the default.

    Raises TargetError as `targets.load` does.
    """
    found = None if name == "cpu" else targets.figures_of(name).get("chip_config")
    return None if found is None else str(found)


def _gpus(target: str, devices: int) -> list[Any]:
    description = text(target)
    try:
        found = topologies.get_topology_desc(
            platform="cuda", target_config=description, topology=f"1x1x{devices}"
        )
    except NotImplementedError as error:
        raise MissingCompilerError(_cuda_remedy(target)) from error
    return list(found.devices)


def _tpus(target: str, devices: int) -> list[Any]:
    name = topology(target, devices)
    if find_spec("libtpu") is None:
        raise MissingCompilerError(
            f"compiling for {target} needs the package libtpu, which is not installed: "
            "pip install 'hloom[tpu]' (about 200 MB; no TPU is needed)"
        )
    if not _has_tpu():
        for variable, value in WITHOUT_TPU.items():
            os.environ.setdefault(variable, value)
    try:
        config = chip_config(target)
        options = {} if config is None else {"chip_config_name": config}
        found = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    except RuntimeError as error:
        raise MissingCompilerError(
            f"compiling for {target}: libtpu is installed but does not tell of {name}: {error}"
        ) from error
    return list(found.devices[:devices])


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
