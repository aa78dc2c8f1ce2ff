"""The devices of this process."""

from __future__ import annotations

from typing import Any

import jax


class NoDeviceError(RuntimeError):
    """JAX starts no device on this machine; the text has its reason."""


def local_devices() -> list[Any]:
    """Returns the devices of this process. Raises NoDeviceError."""
    try:
        return list(jax.local_devices())
    except (AssertionError, RuntimeError) as error:  # the first where a plugin did not start
        reason = " ".join(str(error).split()) or "its plugin did not start"
        raise NoDeviceError(f"JAX starts no device here: {reason}") from error


def described_to_xla(devices: Any) -> str | None:
    """Returns XLA's description of GPUs, a `GpuTargetConfigProto` as text; None for other devices.

    The figures are the devices' own, as the driver and CUDA report them.
    """
    from jaxlib import xla_client

    try:
        topology = xla_client.get_topology_for_devices(list(devices))
    except (NotImplementedError, RuntimeError):  # jax.errors.JaxRuntimeError is one
        return None
    text = getattr(topology, "target_config", None)
    return str(text) if text else None
