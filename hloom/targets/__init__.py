"""The devices that hloom can plan and compile for without having one.

Each `<name>.txtpb` here describes one GPU to XLA: a `GpuTargetConfigProto` in text form, as
`jax.experimental.topologies.get_topology_desc(target_config=…)` takes it.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from hloom.passes.analysis.cost import Speed
from hloom.passes.framework.base import Target
from hloom.passes.framework.errors import did_you_mean
from hloom.targets import gpu_speed, text_proto

_SUFFIX = ".txtpb"

_CAPABILITY_AND_CORES = "{}: cuda_compute_capability is a message, core_count a number"

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
    source = name + _SUFFIX
    return str(_single(_parse(text(name), source), "device_description_str", source))


def load(name_or_path: str) -> Target:
    """The target of that name, or the one described by the file at that path.

    A path is told from a name by a "/" or the ending ".txtpb".

    Raises TargetError where the name is unknown, or where the file cannot be read or lacks
    `platform_name` or `gpu_device_info.device_memory_size`.
    """
    if name_or_path == "cpu":
        return Target()
    if "/" not in name_or_path and not name_or_path.endswith(_SUFFIX):
        return _describe(text(name_or_path), name_or_path, source=name_or_path + _SUFFIX)
    path = Path(name_or_path)
    try:
        description = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TargetError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TargetError(
            f"{path}: not text: a target is a GpuTargetConfigProto in text form"
        ) from error
    return _describe(description, path.name.removesuffix(_SUFFIX), source=name_or_path)


def _describe(description: str, name: str, *, source: str) -> Target:
    fields = _parse(description, source)
    platform = _single(fields, "platform_name", source)
    device = _single(fields, "gpu_device_info", source)
    if not isinstance(platform, str) or not isinstance(device, dict):
        raise TargetError(f"{source}: platform_name is text and gpu_device_info is a message")
    memory_bytes = _single(device, "device_memory_size", source)
    if not isinstance(memory_bytes, int) or memory_bytes <= 0:
        raise TargetError(
            f"{source}: device_memory_size is a positive number of bytes, got {memory_bytes!r}"
        )
    return Target(
        platform=platform.lower(),
        name=name,
        memory_bytes=memory_bytes,
        usable_bytes=usable_bytes(memory_bytes),
        speed=_speed(device, source),
        compute_capability=_compute_capability(device, source),
    )


def _speed(device: text_proto.Message, source: str) -> Speed:
    """The speed that a description tells; figures that it lacks are those of a usual part."""
    capability = _compute_capability(device, source)
    cores = device.get("core_count", [])
    if capability is None or not cores:
        return Speed()
    if not isinstance(cores[0], int):
        raise TargetError(_CAPABILITY_AND_CORES.format(source))
    clock_ghz = _number(device, "clock_rate_ghz")
    return gpu_speed.of_gpu(
        capability,
        cores[0],
        clock_hz=clock_ghz * 1e9,
        bytes_per_s=_number(device, "memory_bandwidth"),
    )


def _compute_capability(device: text_proto.Message, source: str) -> tuple[int, int] | None:
    """Major and minor; None where the description does not tell."""
    capability = device.get("cuda_compute_capability", [])
    if not capability:
        return None
    if not isinstance(capability[0], dict):
        raise TargetError(_CAPABILITY_AND_CORES.format(source))
    return int(_number(capability[0], "major")), int(_number(capability[0], "minor"))


def _number(message: text_proto.Message, field: str) -> float:
    """A field that is a number; 0, as in protocol buffers, where it is not there."""
    value = message.get(field, [0])[0]
    return float(value) if isinstance(value, int | float) else 0.0


def _parse(description: str, source: str) -> text_proto.Message:
    try:
        return text_proto.parse(description, source=source)
    except ValueError as error:
        raise TargetError(str(error)) from error


def _single(message: text_proto.Message, field: str, source: str) -> text_proto.Value:
    values = message.get(field, [])
    if len(values) != 1:
        raise TargetError(f"{source}: expected one {field}, got {len(values)}")
    return values[0]


def _unknown(name: str) -> str:
    return (
        f"unknown target '{name}'.{did_you_mean(name, names())} Targets: {', '.join(names())}. "
        f"A path of a description works too, such as ./{name}{_SUFFIX}"
    )
