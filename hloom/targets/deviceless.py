"""Compiling for a GPU of this folder on a machine that has none.

XLA then runs its real GPU passes, scheduling and buffer assignment; its memory figures are exact
and the same on every machine. Lower the function with arguments placed by `placement`:

    argument = jax.ShapeDtypeStruct((8, 8), "float32", sharding=placement("h100_sxm"))
    jax.jit(f).lower(argument).compile().memory_analysis()
"""

from __future__ import annotations

import jax
from jax.experimental import topologies

from hloom import targets


class MissingCompilerError(RuntimeError):
    """JAX's compiler for the target's platform is not installed; the text says how to get it."""


def placement(target: str) -> jax.sharding.NamedSharding:
    """A sharding that puts a whole array on one device of the target, e.g. "h100_sxm".

    Raises hloom.targets.TargetError where the target is unknown, and MissingCompilerError where
    JAX's CUDA plugin is not installed.
    """
    description = targets.text(target)
    try:
        topology = topologies.get_topology_desc(
            platform="cuda", target_config=description, topology="1x1x1"
        )
    except NotImplementedError as error:
        raise MissingCompilerError(
            f"compiling for {target} needs JAX's CUDA compiler, which is not installed: "
            "pip install 'hloom[cuda13]' (about 2 GB; no GPU is needed)"
        ) from error
    mesh = topologies.make_mesh(topology, (1,), ("device",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
