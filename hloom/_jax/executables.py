"""Figures of an executable: memory, module, buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class MemoryFigures:
    """What XLA's buffer assignment says of an executable, on one device; None where nothing."""

    temp_bytes: int | None = None
    argument_bytes: int | None = None
    output_bytes: int | None = None
    alias_bytes: int | None = None

    @property
    def step_bytes(self) -> int | None:
        """What a step takes of the device; arguments that are given back as results count once."""
        known = (self.argument_bytes, self.output_bytes, self.temp_bytes, self.alias_bytes)
        if None in known:
            return None
        argument, output, temp, alias = (each or 0 for each in known)
        return argument + output + temp - alias


def memory_figures(executable: Any) -> MemoryFigures:
    """XLA's memory figures of an executable; empty where its backend gives none.

    Of a TPU's, temporaries are what the peak has beside arguments and results: `temp_size_in_bytes`
    adds up the buffers in the cores' own memory as well.
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
    """Whether arguments and results lie in tiles, as on no other platform.

    An executable for devices that are not here has no client that would tell the platform.
    """
    try:
        layouts = [*executable.get_parameter_layouts(), *executable.get_output_layouts()]
    except (jax.errors.JaxRuntimeError, NotImplementedError, AttributeError):
        return False
    return any(":T(" in str(layout) for layout in layouts)


def optimized_text(executable: Any) -> str:
    """XLA's text of the optimised module, in the order of the schedule.

    Raises what the backend raises where it does not tell.
    """
    [module, *_] = executable.hlo_modules()
    text: str = module.to_string()
    return text


def generated_code_bytes(executable: Any) -> int | None:
    """Bytes of the code itself, on one device; None where the backend does not tell."""
    try:
        size_bytes: int = executable.get_compiled_memory_stats().generated_code_size_in_bytes
    except (jax.errors.JaxRuntimeError, NotImplementedError):
        return None
    return size_bytes


def fingerprint(executable: Any) -> bytes | None:
    """What XLA identifies an executable by; None where its backend does not."""
    try:
        found: bytes | None = executable.fingerprint
    except (jax.errors.JaxRuntimeError, NotImplementedError, AttributeError):
        return None
    return found


def xla_version(executable: Any) -> str | None:
    """What the executable's backend says of its version; None for devices that are not here."""
    client = getattr(executable, "client", None)
    return None if client is None else str(client.platform_version)
