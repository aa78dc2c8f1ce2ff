"""Backends and devices: platforms, processes, facts, numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class DeviceFacts:
    """The facts that JAX reports about one device.

    Attributes:
      kind: the product, e.g. "NVIDIA H100 80GB HBM3".
      compute_capability: that of a CUDA device, e.g. (9, 0); None elsewhere.
      core_count: the number of the GPU's multiprocessors; None elsewhere.
      limit_bytes: the bytes that the allocator gives out in all; None without an allocator of JAX,
        and where the device is another process's, or only described.
    """

    kind: str
    compute_capability: tuple[int, int] | None = None
    core_count: int | None = None
    limit_bytes: int | None = None


@dataclass(frozen=True)
class DevicePlace:
    """The process of a device, and its number there.

    Attributes:
      ordinal: the number that XLA passes to a custom call that runs there.
      process: the index of the process.
    """

    ordinal: int
    process: int


def takes_part(backend: Any, devices: Any) -> bool:
    """Whether a device of this process is among the devices that the executable is for.

    A compile-only backend, whose devices are only described, takes part if it has any device.
    """
    return bool(devices.size) and backend.process_index() in processes_of(backend, devices)


def processes_of(backend: Any, devices: Any) -> tuple[int, ...]:
    """Returns the indices of the processes that compile a program for these devices, sorted.

    A compile-only backend compiles for all devices in this process.
    """
    from jaxlib import _jax

    if isinstance(backend, _jax.CompileOnlyPyClient):
        return (backend.process_index(),)
    return tuple(sorted({device.process_index for device in devices.flat}))


def platform_of(backend: Any) -> str:
    """Returns hloom's name for the backend's platform: "cpu", "cuda", "rocm", "tpu", …"""
    if backend.platform != "gpu":
        return str(backend.platform)
    return "rocm" if backend.platform_version.startswith("rocm") else "cuda"


def device_facts(backend: Any, devices: Any) -> tuple[DeviceFacts, ...]:
    """Returns the facts of this process's devices among these, or of all where none of them is."""
    here = [device for device in devices.flat if device.process_index == backend.process_index()]
    return tuple(_facts(device) for device in here or devices.flat)


def _facts(device: Any) -> DeviceFacts:
    # CUDA reports "9.0", ROCm "gfx942", other platforms nothing.
    major, _, minor = str(getattr(device, "compute_capability", "")).partition(".")
    capability = (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None
    try:
        limit_bytes = (device.memory_stats() or {}).get("bytes_limit")
    except (jax.errors.JaxRuntimeError, NotImplementedError):
        limit_bytes = None
    return DeviceFacts(
        kind=device.device_kind,
        compute_capability=capability,
        core_count=getattr(device, "core_count", None),
        limit_bytes=limit_bytes,
    )


def device_places(devices: Any) -> tuple[DevicePlace, ...]:
    """Returns the place of each partition of a program for these devices."""
    counts: Counter[int] = Counter()
    in_order: dict[int, int] = {}
    for device in sorted(devices.flat, key=lambda device: int(device.id)):
        in_order[device.id] = counts[device.process_index]
        counts[device.process_index] += 1
    return tuple(
        DevicePlace(_ordinal(device, in_order[device.id]), device.process_index)
        for device in devices.flat
    )


def _ordinal(device: Any, number_in_process: int) -> int:
    # XLA:CPU passes a custom call the device's id, which differs in each process; XLA:GPU its
    # number in the process (0.10.2 and 0.12.0.1).
    if device.platform == "cpu":
        return int(device.id)
    # Devices that are only described have no number: their order counts.
    return number_in_process if device.local_hardware_id is None else device.local_hardware_id


def ffi_targets(platform: str) -> frozenset[str] | None:
    """Returns the FFI targets that XLA has for a platform; None for a platform of a plugin.

    A plugin ("cuda") has a registry of its own, which cannot be queried.
    """
    from jaxlib import xla_client

    return frozenset(xla_client.custom_call_targets("Host")) if platform == "cpu" else None


def keeps_barriers(platform: str) -> bool:
    """Whether XLA merges equal operations before it drops the optimization barriers.

    XLA:CPU of jaxlib 0.10.2 expands them first, so that a recomputation merges back into the first
    computation; that of 0.11.2 and 0.12.0.1 keeps them (measured 2026-11-21 on an unrolled GPT:
    temp bytes 51.1 -> 51.1 MiB and 51.1 -> 23.3 MiB).
    """
    return platform != "cpu" or jax.__version_info__ >= (0, 11, 2)
