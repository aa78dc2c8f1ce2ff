"""Residuals in pinned memory of the host."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

MEMORY_KIND = "pinned_host"

LEAST_BYTES = 2**20
"""Residuals of fewer bytes stay on the device, if nothing else is said: a copy of less costs as
much as one of this."""


class HostMemoryError(ValueError):
    """The devices cannot reach the host's memory."""


class HostPlacement:
    """Where the residuals of some devices are in the host's memory."""

    def __init__(self, devices: Any, least_bytes: int) -> None:
        """Raises HostMemoryError where the devices cannot reach any."""
        self._devices, self._least_bytes = list(devices.flat), least_bytes
        first = self._devices[0]
        kinds = [memory.kind for memory in first.addressable_memories()]
        if MEMORY_KIND not in kinds:
            raise HostMemoryError(
                f"{first.device_kind} has no memory of the kind {MEMORY_KIND}, but "
                f"{', '.join(kinds)}; leave offload= out"
            )

    def sharding(self, aval: Any, sharding: Any) -> Any:
        """Where a residual is that is split over the devices as ``sharding`` says.

        It stays on the device where it takes too little, and on several devices where how it is
        split is not known.
        """
        known = sharding
        if known is None and len(self._devices) == 1:
            known = jax.sharding.SingleDeviceSharding(self._devices[0])
        if known is None:
            return None
        elements = math.prod(known.shard_shape(aval.shape))
        if elements * np.dtype(aval.dtype).itemsize < self._least_bytes:
            return sharding
        return known.with_memory_kind(MEMORY_KIND)


def is_on_host(value: Any) -> bool:
    """Whether an array, or what a shape describes, is in the host's pinned memory."""
    return getattr(getattr(value, "sharding", None), "memory_kind", None) == MEMORY_KIND


def on_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that copies what it gets of the host's memory to the device, before all else."""

    def with_copies(*args: Any) -> Any:
        return function(
            *(
                jax.device_put(arg, jax.memory.Space.Device)
                if jax.typeof(arg).memory_space == jax.memory.Space.Host
                else arg
                for arg in args
            )
        )

    with_copies.__name__ = with_copies.__qualname__ = function.__name__
    return with_copies
