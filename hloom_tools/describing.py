"""Describes devices of this machine in the form of the files of `hloom/targets/`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hloom import targets
from hloom._jax.devices import DeviceFacts

_FIELD = r"(?m)^\s*{}: ([\d.]+)"
_CAPABILITY = re.compile(
    r"cuda_compute_capability\s*\{\s*(?:major: (\d+)\s*)?(?:minor: (\d+)\s*)?", re.DOTALL
)
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True)
class Description:
    """The files that describe a device.

    Attributes:
      name: the target's name.
      figures: the text of the TOML file that hloom plans with.
      text: XLA's description of a GPU; None for other devices.
    """

    name: str
    figures: str
    text: str | None


def description_of(platform: str, facts: DeviceFacts, text: str | None) -> Description:
    """Returns the description of a device.

    Args:
      platform: its platform, by JAX's name.
      facts: the facts that JAX reports about it.
      text: XLA's description of it, for a GPU.

    Raises TargetError for a CPU, which needs none, and where its memory is not known.
    """
    if platform == "cpu":
        raise targets.TargetError(
            "the device here is a CPU: target 'cpu' needs no description, XLA takes the host as "
            "it is."
        )
    told = {} if text is None else _told(text)
    memory_bytes = told.get("device_memory_size") or facts.limit_bytes
    if not memory_bytes:
        raise targets.TargetError(f"{facts.kind} does not tell how much memory it has.")
    lines = [
        f"# {facts.kind}, as it described itself. Speeds that are not here count as an H100's,",
        "# or as those of the data-centre part of its compute capability.",
        f'platform = "{platform}"',
        f"device_kind = {_quoted(facts.kind)}  # as JAX names it",
        f"memory_bytes = {int(memory_bytes)}",
    ]
    if platform == "tpu":
        lines.append(f"usable_bytes = {int(memory_bytes)}  # what the device gives out")
        lines.append("# bytes_per_s, matrix_flops_per_s and vector_flops_per_s: its datasheet's.")
    capability = _capability(text) or facts.compute_capability
    if capability is not None:
        lines.append(f"compute_capability = [{capability[0]}, {capability[1]}]")
    core_count = int(told.get("core_count", facts.core_count or 0))
    if core_count:
        lines.append(f"core_count = {core_count}")
    if "clock_rate_ghz" in told:
        lines.append(f"clock_hz = {told['clock_rate_ghz']:g}e9")
    if "memory_bandwidth" in told:
        lines.append(f"bytes_per_s = {told['memory_bandwidth'] / 1e12:.10g}e12")
    if platform in ("cuda", "rocm"):
        lines.append(
            "# host_bytes_per_s, link_bytes_per_s, link_devices, network_bytes_per_s: the server's."
        )
    name = _NOT_IN_NAMES.sub("_", facts.kind.lower()).strip("_") or "device"
    return Description(name, "\n".join(lines) + "\n", text)


def _told(text: str) -> dict[str, float]:
    names = ("clock_rate_ghz", "core_count", "device_memory_size", "memory_bandwidth")
    found = {name: re.search(_FIELD.format(name), text) for name in names}
    return {name: float(match[1]) for name, match in found.items() if match is not None}


def _capability(text: str | None) -> tuple[int, int] | None:
    found = None if text is None else _CAPABILITY.search(text)
    if found is None or found[1] is None:
        return None
    return int(found[1]), int(found[2] or 0)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
