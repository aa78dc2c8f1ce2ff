"""Compiling for a GPU of this folder on a machine that has none.

XLA then runs its real GPU passes, scheduling and buffer assignment; its memory figures are exact
and the same on every machine. Lower the function with arguments placed by `placement`:

    prepare()
    argument = jax.ShapeDtypeStruct((8, 8), "float32", sharding=placement("h100_sxm"))
    jax.jit(f).lower(argument).compile().memory_analysis()
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import jax
from jax.experimental import topologies

from hloom import targets

_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
_DRIVER = Path("/dev/nvidiactl")


class MissingCompilerError(RuntimeError):
    """JAX's compiler for the target's platform cannot be used; the text says what to do."""


def prepare() -> None:
    """Lets JAX's CUDA plugin start on a machine without a GPU. Call it before JAX is used.

    The plugin looks for a driver, and gives up without one, unless JAX is told to run on
    something else. So on a machine without a driver, where the program did not choose its
    platforms itself, this chooses the CPU; anywhere else it does nothing.
    """
    chosen = jax.config.jax_platforms  # type: ignore[attr-defined] # made when JAX is imported
    if not chosen and not _DRIVER.exists():
        jax.config.update("jax_platforms", "cpu")


def placement(target: str) -> jax.sharding.NamedSharding:
    """A sharding that puts a whole array on one device of the target, e.g. "h100_sxm".

    Raises hloom.targets.TargetError where the target is unknown, and MissingCompilerError where
    JAX's CUDA plugin is not installed or did not start.
    """
    return jax.sharding.NamedSharding(mesh(target, 1), jax.sharding.PartitionSpec())


def mesh(target: str, devices: int) -> jax.sharding.Mesh:
    """That many devices of the target in one machine, as a mesh of one axis, "device".

    Raises as `placement` does.
    """
    description = targets.text(target)
    try:
        topology = topologies.get_topology_desc(
            platform="cuda", target_config=description, topology=f"1x1x{devices}"
        )
    except NotImplementedError as error:
        raise MissingCompilerError(_remedy(target)) from error
    return topologies.make_mesh(topology, (devices,), ("device",))


def _remedy(target: str) -> str:
    if any(find_spec(plugin) for plugin in _PLUGINS):
        return (
            f"compiling for {target} needs JAX's CUDA plugin, which is installed but did not "
            "start; on a machine without a GPU set JAX_PLATFORMS=cpu"
        )
    return (
        f"compiling for {target} needs JAX's CUDA plugin, which is not installed: "
        "pip install 'hloom[cuda13]' (about 2 GB; no GPU is needed)"
    )
