"""Backends and devices: platforms, processes, facts, places."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class DeviceFacts:
    """What JAX tells of one device.

    Attributes:
      kind: the product, e.g. "NVIDIA H100 80GB HBM3".
      compute_capability: of a CUDA device, e.g. (9, 0); None elsewhere.
      core_count: the GPU's multiprocessors; None elsewhere.
      limit_bytes: what the allocator gives out in all; None where there is no allocator of JAX,
        and where the device is another process's, or not here at all.
    """

    kind: str
    compute_capability: tuple[int, int] | None = None
    core_count: int | None = None
    limit_bytes: int | None = None


@dataclass(frozen=True)
class DevicePlace:
    """Which device of which process.

    Attributes:
      ordinal: the number that XLA tells a custom call that runs there.
      process: the index of the process.
    """

    ordinal: int
    process: int


def takes_part(backend: Any, devices: Any) -> bool:
    """Whether a device of this process is among the devices that the executable is for.

    A compile-only backend, which stands for devices that are not here, takes part as long as
    it has any device.
    """
    return bool(devices.size) and backend.process_index() in processes_of(backend, devices)


def processes_of(backend: Any, devices: Any) -> tuple[int, ...]:
    """The processes that compile a program for these devices, by index, sorted.

    A compile-only backend compiles for all of them in this one.
    """
    from jaxlib import _jax

    if isinstance(backend, _jax.CompileOnlyPyClient):
        return (backend.process_index(),)
    return tuple(sorted({device.process_index for device in devices.flat}))


def platform_of(backend: Any) -> str:
    """The backend's platform by one name everywhere: "cpu", "cuda", "rocm", "tpu", …"""
    if backend.platform != "gpu":
        return str(backend.platform)
    return "rocm" if backend.platform_version.startswith("rocm") else "cuda"


class NoDeviceError(RuntimeError):
    """JAX starts no device here; the text has its reason."""


def local_devices() -> list[Any]:
    """The devices of this process. Raises NoDeviceError."""
    try:
        return list(jax.local_devices())
    except (AssertionError, RuntimeError) as error:  # the first where a plugin did not start
        reason = " ".join(str(error).split()) or "its plugin did not start"
        raise NoDeviceError(f"JAX starts no device here: {reason}") from error


def device_facts(backend: Any, devices: Any) -> tuple[DeviceFacts, ...]:
    """Facts of those of the devices that are this process's, or of all where none of them is."""
    here = [device for device in devices.flat if device.process_index == backend.process_index()]
    return tuple(_facts(device) for device in here or devices.flat)


def _facts(device: Any) -> DeviceFacts:
    # CUDA says "9.0", ROCm "gfx942", other platforms nothing.
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
    """Where the partitions of a program for these devices run, by partition."""
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
    # XLA:CPU tells a custom call the device's id, which is another in each process; XLA:GPU its
    # number in the process (0.10.2 and 0.12.0.1).
    if device.platform == "cpu":
        return int(device.id)
    # A device that is only described has no number: they are taken to be in order.
    return number_in_process if device.local_hardware_id is None else device.local_hardware_id


def ffi_targets(platform: str) -> frozenset[str] | None:
    """The FFI targets that XLA has for a platform; None for one that lives in a plugin.

    A plugin ("cuda") has a registry of its own, which nobody can ask.
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


def described_to_xla(devices: Any) -> str | None:
    """What XLA itself is told of GPUs: a `GpuTargetConfigProto` as text; None of other devices.

    The figures are the devices' own, as the driver and CUDA tell them.
    """
    from jaxlib import xla_client

    try:
        topology = xla_client.get_topology_for_devices(list(devices))
    except (NotImplementedError, RuntimeError):  # jax.errors.JaxRuntimeError is one
        return None
    text = getattr(topology, "target_config", None)
    return str(text) if text else None
