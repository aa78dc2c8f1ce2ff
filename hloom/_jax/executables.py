"""What an executable tells of itself: memory, module, buffers."""

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


def memory_figures(executable: Any) -> MemoryFigures:
    """XLA's memory figures of an executable; empty where its backend gives none."""
    try:
        stats = executable.get_compiled_memory_stats()
    except (jax.errors.JaxRuntimeError, NotImplementedError):
        return MemoryFigures()
    return MemoryFigures(
        temp_bytes=stats.temp_size_in_bytes,
        argument_bytes=stats.argument_size_in_bytes,
        output_bytes=stats.output_size_in_bytes,
        alias_bytes=stats.alias_size_in_bytes,
    )


@dataclass(frozen=True)
class OptimizedModule:
    """What an executable holds of the module that XLA made of the program.

    Attributes:
      name: the module's, e.g. "jit_step".
      text: XLA's text of it, in the order of the schedule.
      proto: the same as a serialized HloModuleProto, with the ids of the instructions.
    """

    name: str
    text: str
    proto: bytes


def optimized_module(executable: Any) -> OptimizedModule:
    """XLA's optimised module, also of an executable that came from the cache.

    Raises what the backend raises where it does not tell.
    """
    [module, *_] = executable.hlo_modules()
    return OptimizedModule(
        module.name, module.to_string(), bytes(module.as_serialized_hlo_module_proto())
    )


@dataclass(frozen=True)
class BufferAssignment:
    """What XLA keeps of the buffers of an executable.

    Attributes:
      proto: a serialized BufferAssignmentProto; empty where the backend has none.
      generated_code_bytes: of the code itself, on one device.
    """

    proto: bytes
    generated_code_bytes: int


def buffer_assignment(executable: Any) -> BufferAssignment | None:
    """XLA's buffer assignment of an executable; None where its backend does not tell."""
    try:
        stats = executable.get_compiled_memory_stats()
    except (jax.errors.JaxRuntimeError, NotImplementedError):
        return None
    proto = bytes(stats.serialized_buffer_assignment_proto or b"")
    return BufferAssignment(proto, stats.generated_code_size_in_bytes)


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
