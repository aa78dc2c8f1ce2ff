"""Places residuals in pinned host memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

MEMORY_KIND = "pinned_host"

LEAST_BYTES = 2**20
"""The default size below which residuals stay on the device: a smaller copy costs as much as one of
this size."""


class HostMemoryError(ValueError):
    """The devices cannot address host memory."""


class HostPlacement:
    """Selects the residuals that are in host memory."""

    def __init__(self, devices: Any, least_bytes: int) -> None:
        """Raises HostMemoryError where the devices cannot address host memory.

        Devices that are only described list no memories, and are accepted.
        """
        self._devices, self._least_bytes = list(devices.flat), least_bytes
        first = self._devices[0]
        kinds = [memory.kind for memory in first.addressable_memories()]
        self._is_described = not kinds
        if kinds and MEMORY_KIND not in kinds:
            raise HostMemoryError(
                f"{first.device_kind} has no memory of the kind {MEMORY_KIND}, but "
                f"{', '.join(kinds)}; leave offload= out"
            )

    def takes(self, aval: Any, sharding: Any) -> bool:
        """Whether a residual with this sharding is large enough; with an unknown sharding it counts
        as whole."""
        shape = aval.shape if sharding is None else sharding.shard_shape(aval.shape)
        return math.prod(shape) * np.dtype(aval.dtype).itemsize >= self._least_bytes

    def sharding(self, sharding: Any) -> Any:
        """Returns the sharding of such a residual; None where only the program has it."""
        if self._is_described:
            return None
        if sharding is None and len(self._devices) == 1:
            sharding = jax.sharding.SingleDeviceSharding(self._devices[0])
        return None if sharding is None else sharding.with_memory_kind(MEMORY_KIND)


def is_on_host(value: Any) -> bool:
    """Whether an array, or the array of a shape, is in pinned host memory."""
    return getattr(getattr(value, "sharding", None), "memory_kind", None) == MEMORY_KIND


def with_copies(function: Callable[..., Any], on_host: Sequence[bool]) -> Callable[..., Any]:
    """Wraps a function so that it first copies its arguments in host memory to the device.

    Results that ``on_host`` selects are copied to host memory.
    """

    def copying(*args: Any) -> Any:
        space = jax.memory.Space
        here = [
            jax.device_put(arg, space.Device) if jax.typeof(arg).memory_space == space.Host else arg
            for arg in args
        ]
        return [
            jax.device_put(result, space.Host) if goes else result
            for result, goes in zip(function(*here), on_host, strict=True)
        ]

    copying.__name__ = copying.__qualname__ = function.__name__
    return copying
