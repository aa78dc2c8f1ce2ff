"""The devices of each stage, and the shardings of microbatches and parameters on them."""

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
class StagePlace:
    """The devices of a stage.

    Attributes:
      mesh: the devices as a mesh of one axis.
    """

    mesh: Mesh

    @property
    def devices(self) -> int:
        """Returns the number of devices."""
        return self.mesh.size

    @property
    def process(self) -> int:
        """Returns the process of the devices."""
        return int(self.mesh.devices.flat[0].process_index)

    @property
    def is_here(self) -> bool:
        """Whether the devices are this process's."""
        return self.process == jax.process_index()

    @property
    def whole(self) -> NamedSharding:
        """Returns the sharding of an array that each device has whole."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def divided(self) -> NamedSharding:
        """Returns the sharding of an array divided along its leading axis."""
        return NamedSharding(self.mesh, PartitionSpec(AXIS))

    def __str__(self) -> str:
        numbers = ",".join(str(device.id) for device in self.mesh.devices.flat)
        return f"{self.mesh.devices.flat[0].platform} {numbers}"


def places_of(meshes: Sequence[Mesh] | None, stages: int) -> tuple[StagePlace, ...]:
    """Returns the places of stages by their meshes; by default each has one device, in JAX's order.

    Raises ValueError where there are not enough devices, or the meshes do not fit.
    """
    if meshes is None:
        devices = jax.devices()
        if len(devices) < stages:
            raise ValueError(
                f"hloom.stages: stages={stages}: there {_are(len(devices))}; wanted one for each "
                "stage. For a try on a CPU, set jax_num_cpu_devices before JAX starts."
            )
        return tuple(StagePlace(Mesh(np.array([each]), (AXIS,))) for each in devices[:stages])
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
    places = tuple(StagePlace(Mesh(mesh.devices.flatten(), (AXIS,))) for mesh in meshes)
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
    """Moves arrays in one call."""
    if not arrays:
        return []
    moved: list[jax.Array] = jax.device_put(list(arrays), list(shardings))
    return moved
