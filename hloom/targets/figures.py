"""Reads and checks the figures of a target, a TOML file."""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Callable
from importlib.resources.abc import Traversable
from typing import Any

from hloom.passes.framework.errors import did_you_mean
from hloom.passes.framework.target import Speed, Target
from hloom.targets import gpu_speed

_BITS = re.compile("[0-9]{1,3}")
"""The width of an element, as a key of a table."""


class TargetError(ValueError):
    """A target that is not known, or whose description cannot be read; the text says which."""

    __module__ = "hloom.targets"  # as a user catches it, and as Python prints it


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and value > 0


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)


def _are_rates(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(_BITS.fullmatch(bits) and _is_number(rate) for bits, rate in value.items())
    )


_KINDS: dict[str, Callable[[Any], bool]] = {
    "a text": lambda value: isinstance(value, str),
    "a text or a list of texts": lambda value: isinstance(value, str) or _are_texts(value),
    "a list of texts": _are_texts,
    "a positive whole number": lambda value: type(value) is int and value > 0,
    "a positive number": _is_number,
    "a table of positive numbers by bits": _are_rates,
    "[major, minor]": lambda value: isinstance(value, list) and list(map(type, value)) == [int] * 2,
}

_NEEDED = {
    "platform": "a text",
    "device_kind": "a text or a list of texts",
    "memory_bytes": "a positive whole number",
}
_KNOWN = _NEEDED | {
    "usable_bytes": "a positive whole number",
    "compute_capability": "[major, minor]",
    "core_count": "a positive whole number",
    "clock_hz": "a positive number",
    "bytes_per_s": "a positive number",
    "host_bytes_per_s": "a positive number",
    "link_bytes_per_s": "a positive number",
    "link_devices": "a positive whole number",
    "network_bytes_per_s": "a positive number",
    "collective_s": "a positive number",
    "matrix_flops_per_s": "a table of positive numbers by bits",
    "vector_flops_per_s": "a positive number",
    "topologies": "a list of texts",
    "chip_config": "a text",
}
"""The figures of a target, with the kind of value of each."""

_OF_SPEED = (
    "bytes_per_s",
    "collective_s",
    "host_bytes_per_s",
    "link_bytes_per_s",
    "link_devices",
    "network_bytes_per_s",
    "vector_flops_per_s",
)
"""The figures that are fields of `Speed` under the same name."""

USABLE_PERCENT = 80
"""The share of a host's memory that a program may take: the rest is for Python and others."""

GPU_PERCENT = 75.0
"""The share of a GPU's memory that JAX's allocator takes unless a variable sets it."""

FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", FRACTION)
"""JAX's variables of that share; the second is the older name."""

_TPU_FLOAT32_PASSES = (1, 3, 6)
"""A TPU multiplies float32 as bfloat16: once, three or six times, by the requested precision
(https://docs.jax.dev/en/latest/_autosummary/jax.lax.Precision.html)."""

_TPU_KERNEL_S = 3.5e-7
"""The least time of one step of a kernel's pipeline on a TPU
(https://docs.jax.dev/en/latest/pallas/tpu/pipelining.html)."""


def gpu_percent() -> float:
    """Returns the share of a GPU's memory that JAX's allocator gives out, by its environment
    variables, in percent."""
    text = next(filter(None, map(os.environ.get, _FRACTIONS)), "")
    try:
        share = 100 * float(text)
    except ValueError:
        return GPU_PERCENT
    return min(share, 100.0) if share > 0 else GPU_PERCENT


def usable_bytes(memory_bytes: int, platform: str = "cpu") -> int:
    """Returns the bytes that a program may take of a device of which only the memory is known."""
    percent = USABLE_PERCENT if platform in ("cpu", "tpu") else gpu_percent()
    return int(memory_bytes * percent) // 100


def read(file: Traversable) -> dict[str, Any]:
    """Reads the figures in a file. Raises TargetError where they do not describe a target."""
    try:
        figures = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise TargetError(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise TargetError(f"{file}: not a file of TOML: {error}") from error
    for name in (*_NEEDED, *figures):
        if name not in _KNOWN:
            raise TargetError(f"{file}: {name} is no figure.{did_you_mean(name, _KNOWN)}")
        if not _KINDS[_KNOWN[name]](figures.get(name)):
            got = repr(figures[name]) if name in figures else "nothing"
            raise TargetError(f"{file}: {name} is {_KNOWN[name]}, got {got}")
    usable, memory = figures.get("usable_bytes", 0), figures["memory_bytes"]
    if usable > memory:
        raise TargetError(f"{file}: usable_bytes is at most memory_bytes, {memory}, got {usable}")
    return figures


def device_kinds(figures: dict[str, Any]) -> tuple[str, ...]:
    """Returns JAX's names of that kind of device; several where its versions differ."""
    kinds = figures["device_kind"]
    return (kinds,) if isinstance(kinds, str) else tuple(kinds)


def target_of(name: str, figures: dict[str, Any]) -> Target:
    """Returns the target with these figures."""
    memory_bytes = figures["memory_bytes"]
    capability = figures.get("compute_capability")
    return Target(
        platform=figures["platform"],
        name=name,
        memory_bytes=memory_bytes,
        usable_bytes=figures.get("usable_bytes", usable_bytes(memory_bytes, figures["platform"])),
        speed=_speed(figures),
        compute_capability=None if capability is None else tuple(capability),
    )


def _speed(figures: dict[str, Any]) -> Speed:
    speed = Speed()
    if figures["platform"] == "tpu":
        speed = dataclasses.replace(
            speed, float32_passes=_TPU_FLOAT32_PASSES, kernel_s=_TPU_KERNEL_S
        )
    elif "compute_capability" in figures and "core_count" in figures:
        speed = gpu_speed.of_gpu(
            tuple(figures["compute_capability"]),
            figures["core_count"],
            clock_hz=figures.get("clock_hz"),
            bytes_per_s=figures.get("bytes_per_s"),
        )
    told: dict[str, Any] = {name: figures[name] for name in _OF_SPEED if name in figures}
    if "matrix_flops_per_s" in figures:
        rates = figures["matrix_flops_per_s"].items()
        told["matrix_flops_per_s"] = tuple(sorted((int(bits), rate) for bits, rate in rates))
    return dataclasses.replace(speed, **told)
