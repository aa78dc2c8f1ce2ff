"""The devices and callbacks of a lowered program."""

from __future__ import annotations

from typing import Any

import numpy as np


def devices_of(lowered: Any) -> tuple[Any, Any]:
    """Returns the backend that a `jax.stages.Lowered` is for, and an array of its devices.

    The devices are those of its shardings, which may only be described; else the first of the
    default backend.
    """
    described = lowered._lowering.compile_args
    backend = described["backend"]
    for sharding in (*described["in_shardings"], *described["out_shardings"]):
        devices = getattr(sharding, "device_set", ())
        if devices:
            ordered = sorted(devices, key=lambda device: int(device.id))
            return ordered[0].client, np.array(ordered, dtype=object)
    devices = backend.local_devices()[: described["num_devices"]]
    return backend, np.array(devices, dtype=object)


def callbacks_of(lowered: Any) -> tuple[Any, Any]:
    """Returns the callbacks to Python that a `jax.stages.Lowered` numbers, with what they need."""
    described = lowered._lowering.compile_args
    return tuple(described["host_callbacks"]), described["keepalive"]
