"""Figures of an executable: memory, module, buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class MemoryFigures:
    """The sizes in XLA's buffer assignment of an executable, on one device; None where unknown."""

    temp_bytes: int | None = None
    argument_bytes: int | None = None
    output_bytes: int | None = None
    alias_bytes: int | None = None

    @property
    def step_bytes(self) -> int | None:
        """Returns the device memory of a step; donated arguments that hold results count once."""
        known = (self.argument_bytes, self.output_bytes, self.temp_bytes, self.alias_bytes)
        if None in known:
            return None
        argument, output, temp, alias = (each or 0 for each in known)
        return argument + output + temp - alias


def memory_figures(executable: Any) -> MemoryFigures:
    """Returns XLA's memory figures of an executable; empty where its backend reports none.

    On a TPU, temporaries are the peak less arguments and results: `temp_size_in_bytes` also adds up
    the buffers in the cores' own memory.
    """
    try:
        stats = executable.get_compiled_memory_stats()
    except (jax.errors.JaxRuntimeError, NotImplementedError):
        return MemoryFigures()
    temp_bytes = stats.temp_size_in_bytes
    if _is_for_tpu(executable):
        around = stats.argument_size_in_bytes + stats.output_size_in_bytes
        temp_bytes = max(0, stats.peak_memory_in_bytes - around + stats.alias_size_in_bytes)
    return MemoryFigures(
        temp_bytes=temp_bytes,
        argument_bytes=stats.argument_size_in_bytes,
        output_bytes=stats.output_size_in_bytes,
        alias_bytes=stats.alias_size_in_bytes,
    )


def _is_for_tpu(executable: Any) -> bool:
    """Whether arguments and results are stored in tiles, which only TPUs do.

    An executable for devices that are only described has no client with the platform's name.
    """
    try:
        layouts = [*executable.get_parameter_layouts(), *executable.get_output_layouts()]
    except (jax.errors.JaxRuntimeError, NotImplementedError, AttributeError):
        return False
    return any(":T(" in str(layout) for layout in layouts)


def optimized_text(executable: Any) -> str:
    """Returns XLA's text of the optimised module, in scheduled order.

    Raises the backend's error where it has no text.
    """
    [module, *_] = executable.hlo_modules()
    text: str = module.to_string()
    return text


def generated_code_bytes(executable: Any) -> int | None:
    """Returns the bytes of the code itself, on one device; None where the backend reports none."""
    try:
        size_bytes: int = executable.get_compiled_memory_stats().generated_code_size_in_bytes
    except (jax.errors.JaxRuntimeError, NotImplementedError):
        return None
    return size_bytes


def fingerprint(executable: Any) -> bytes | None:
    """Returns XLA's fingerprint of an executable; None where its backend has none."""
    try:
        found: bytes | None = executable.fingerprint
    except (jax.errors.JaxRuntimeError, NotImplementedError, AttributeError):
        return None
    return found


def xla_version(executable: Any) -> str | None:
    """Returns the version of the executable's backend; None for devices that are only described."""
    client = getattr(executable, "client", None)
    return None if client is None else str(client.platform_version)
