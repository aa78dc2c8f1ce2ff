"""Where stages are: the devices of each, and how a microbatch and parameters lie on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hloom.passes.framework.errors import echo

AXIS = "data"
"""The axis of a stage's mesh: each of its devices has a part of every microbatch."""


@dataclass(frozen=True)
class Place:
    """The devices of a stage.

    Attributes:
      mesh: of one axis.
    """

    mesh: Mesh

    @property
    def devices(self) -> int:
        """How many there are."""
        return self.mesh.size

    @property
    def process(self) -> int:
        """The process that has them."""
        return int(self.mesh.devices.flat[0].process_index)

    @property
    def is_here(self) -> bool:
        """Whether they are this process's."""
        return self.process == jax.process_index()

    @property
    def whole(self) -> NamedSharding:
        """Each device has all of an array."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def divided(self) -> NamedSharding:
        """Each device has a part of an array's leading axis."""
        return NamedSharding(self.mesh, PartitionSpec(AXIS))

    def __str__(self) -> str:
        numbers = ",".join(str(device.id) for device in self.mesh.devices.flat)
        return f"{self.mesh.devices.flat[0].platform} {numbers}"


def places_of(meshes: Sequence[Mesh] | None, stages: int) -> tuple[Place, ...]:
    """The places of stages, by their meshes; by default each has one device, in JAX's order.

    Raises ValueError where there are not enough devices, or the meshes do not fit.
    """
    if meshes is None:
        devices = jax.devices()
        if len(devices) < stages:
            raise ValueError(
                f"hloom.stages: stages={stages}: there {_are(len(devices))}; wanted one for each "
                "stage. For a try on a CPU, set jax_num_cpu_devices before JAX starts."
            )
        return tuple(Place(Mesh(np.array([each]), (AXIS,))) for each in devices[:stages])
    if len(meshes) != stages or not all(isinstance(mesh, Mesh) for mesh in meshes):
        raise ValueError(
            f"hloom.stages: meshes={echo(str(meshes))}: wanted a list of {stages} "
            "jax.sharding.Mesh, one for each stage."
        )
    sizes = {mesh.size for mesh in meshes}
    if len(sizes) > 1:
        raise ValueError(
            f"hloom.stages: meshes= of {', '.join(map(str, sorted(sizes)))} devices; wanted as "
            "many for each stage."
        )
    places = tuple(Place(Mesh(mesh.devices.flatten(), (AXIS,))) for mesh in meshes)
    for number, place in enumerate(places):
        processes = {device.process_index for device in place.mesh.devices.flat}
        if len(processes) > 1:
            raise ValueError(
                f"hloom.stages: the mesh of stage {number} has devices of processes "
                f"{', '.join(map(str, sorted(processes)))}; wanted those of one."
            )
    return places


def _are(count: int) -> str:
    return f"is {count} device" if count == 1 else f"are {count} devices"


def put(arrays: Sequence[Any], shardings: Sequence[NamedSharding]) -> list[jax.Array]:
    """Arrays, moved in one call."""
    if not arrays:
        return []
    moved: list[jax.Array] = jax.device_put(list(arrays), list(shardings))
    return moved
