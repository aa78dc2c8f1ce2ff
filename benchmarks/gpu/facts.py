"""What a child finds out about JAX, its devices and hloom, before anything else runs."""

from __future__ import annotations

import platform
from typing import Any

import jax
import numpy as np

import hloom
from benchmarks.gpu.child import Note
from hloom import runtime


def find(note: Note, dry_run: bool) -> dict[str, Any]:
    """Versions, the devices, and whether XLA takes the native library.

    Raises RuntimeError where there is no GPU; in a dry run the CPU will do.
    """
    devices = jax.devices()
    first = devices[0]
    if not dry_run and first.platform != "gpu":
        raise RuntimeError(f"JAX finds no CUDA GPU, and would run on {first.platform}")
    stats = first.memory_stats() or {}
    return {
        "device": first.device_kind,
        "devices": len(devices),
        "platform": first.platform,
        "platform_version": first.client.platform_version.splitlines()[0],
        "memory_limit_bytes": stats.get("bytes_limit"),
        "jax": jax.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "hloom": hloom.__version__,
        "native_library": _native_library(),
    }


def _native_library() -> dict[str, Any]:
    """The version of XLA's FFI that it was built against, and what XLA said of it."""
    chosen = "cuda" if jax.default_backend() == "gpu" else "cpu"
    found: dict[str, Any] = {"platform": chosen, "error": None}
    try:
        found["ffi_version"] = runtime.load_library().ffi_version
        runtime.register(runtime.targets(chosen), chosen)
    except (runtime.RuntimeLibraryError, runtime.RegistrationError) as error:
        # No reason to stop: remat and capture need none of it.
        found["error"] = str(error)
    return found
