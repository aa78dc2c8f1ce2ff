"""The devices that hloom can plan and compile for without having one.

Each `<name>.txtpb` here describes one GPU to XLA: a `GpuTargetConfigProto` in text form, as
`jax.experimental.topologies.get_topology_desc(target_config=…)` takes it. The `<name>.toml` beside
it has the figures that hloom's passes plan with.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from hloom.passes.analysis.cost import Speed
from hloom.passes.framework.base import Target
from hloom.passes.framework.errors import did_you_mean
from hloom.targets import gpu_speed

_SUFFIX, _FIGURES = ".txtpb", ".toml"

_KINDS: dict[str, Callable[[Any], bool]] = {
    "a text": lambda value: isinstance(value, str),
    "a positive whole number": lambda value: type(value) is int and value > 0,
    "a positive number": lambda value: type(value) in (int, float) and value > 0,
    "[major, minor]": lambda value: isinstance(value, list) and list(map(type, value)) == [int] * 2,
}

_NEEDED = {
    "platform": "a text",
    "device_kind": "a text",
    "memory_bytes": "a positive whole number",
}
_KNOWN = _NEEDED | {
    "compute_capability": "[major, minor]",
    "core_count": "a positive whole number",
    "clock_hz": "a positive number",
    "bytes_per_s": "a positive number",
    "host_bytes_per_s": "a positive number",
}
"""The figures of a target, with the kind of value of each."""

_USABLE_PERCENT = 80
"""What a program may take of a device's memory where no allocator is there to tell its limit.

XLA:GPU schedules for this share of a described device
(xla/service/gpu/gpu_hlo_schedule.cc, GetSchedulerMemoryLimit), and leaves the rest to the CUDA
context, the libraries' workspaces and NCCL. JAX's 75 % is only what its allocator takes at the
start of a process by default; jobs that need memory raise it.
"""


class TargetError(ValueError):
    """A target that is not known, or whose description cannot be read; the text says which."""


def names() -> tuple[str, ...]:
    """Every target known by name, sorted: "cpu", and one for each description in this folder."""
    described = (
        entry.name.removesuffix(_SUFFIX)
        for entry in resources.files(__name__).iterdir()
        if entry.name.endswith(_SUFFIX)
    )
    return tuple(sorted(("cpu", *described)))


def text(name: str) -> str:
    """The description of a known GPU, for XLA.

    Raises TargetError where the name is unknown, and for "cpu", which needs no description.
    """
    if name == "cpu":
        raise TargetError("target 'cpu' has no description: XLA takes the host as it is.")
    if name not in names():
        raise TargetError(_unknown(name))
    return resources.files(__name__).joinpath(name + _SUFFIX).read_text(encoding="utf-8")


def usable_bytes(memory_bytes: int) -> int:
    """What a program may take of a device of which nothing but its memory is known."""
    return memory_bytes * _USABLE_PERCENT // 100


def device_kind(name: str) -> str:
    """What JAX calls the kind of a known GPU, e.g. "NVIDIA H100 80GB HBM3".

    Raises TargetError as `text` does.
    """
    text(name)
    return str(_figures(resources.files(__name__).joinpath(name + _FIGURES))["device_kind"])


def load(name_or_path: str) -> Target:
    """The target of that name, or the one described by the file at that path.

    A path is told from a name by a "/" or the ending ".txtpb" or ".toml"; of the two files that
    describe a target, either may be named.

    Raises TargetError where the name is unknown, or where the figures cannot be read.
    """
    if name_or_path == "cpu":
        return Target()
    if "/" not in name_or_path and not name_or_path.endswith((_SUFFIX, _FIGURES)):
        text(name_or_path)
        file = resources.files(__name__).joinpath(name_or_path + _FIGURES)
        return _target(name_or_path, _figures(file))
    path = Path(name_or_path)
    if not path.exists():
        raise TargetError(f"{path}: No such file or directory")
    figures = path.with_suffix(_FIGURES)
    if not figures.exists():
        raise TargetError(
            f"{path}: {figures.name} is not beside it, which has the figures that hloom plans "
            "with. Write one, with hloom/targets/h100_sxm.toml for an example."
        )
    return _target(path.stem, _figures(figures))


def _target(name: str, figures: dict[str, Any]) -> Target:
    capability = tuple(figures["compute_capability"]) if "compute_capability" in figures else None
    speed = Speed()
    if capability is not None and "core_count" in figures:
        speed = gpu_speed.of_gpu(
            capability,
            figures["core_count"],
            clock_hz=figures.get("clock_hz"),
            bytes_per_s=figures.get("bytes_per_s"),
        )
    if "host_bytes_per_s" in figures:
        speed = dataclasses.replace(speed, host_bytes_per_s=figures["host_bytes_per_s"])
    return Target(
        platform=figures["platform"],
        name=name,
        memory_bytes=figures["memory_bytes"],
        usable_bytes=usable_bytes(figures["memory_bytes"]),
        speed=speed,
        compute_capability=capability,
    )


def _figures(file: Traversable) -> dict[str, Any]:
    """The figures in a file. Raises TargetError where there are not those of a target."""
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
    return figures


def _unknown(name: str) -> str:
    return (
        f"unknown target '{name}'.{did_you_mean(name, names())} Targets: {', '.join(names())}. "
        f"A path of a description works too, such as ./{name}{_SUFFIX}"
    )
