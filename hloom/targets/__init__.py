"""The devices that hloom can plan and compile for on a machine without them.

Each `<name>.toml` here has the figures that hloom's passes plan with. XLA's description of the
device depends on its platform: for a GPU the `<name>.txtpb` beside it, a `GpuTargetConfigProto` in
text form, as `jax.experimental.topologies.get_topology_desc(target_config=…)` takes it; for a TPU
the name of a topology, which the figures give.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from hloom.passes.framework.errors import did_you_mean
from hloom.passes.framework.target import Target
from hloom.passes.framework.text import size
from hloom.targets import figures as target_figures
from hloom.targets.figures import TargetError, usable_bytes

__all__ = [
    "TargetError", "chip_config", "described_platform", "device_kinds", "limit_reason", "load",
    "names", "share_of_gpus", "source", "text", "topology", "usable_bytes",
]  # fmt: skip

_SUFFIX, _FIGURES = ".txtpb", ".toml"


def names() -> tuple[str, ...]:
    """Returns every target known by name, sorted: "cpu", and one for each file of figures here."""
    described = (
        entry.name.removesuffix(_FIGURES)
        for entry in resources.files(__name__).iterdir()
        if entry.name.endswith(_FIGURES)
    )
    return tuple(sorted(("cpu", *described)))


def described_platform(name_or_path: str) -> str:
    """Returns the platform of a device, by JAX's name, e.g. "cuda" for "h100_sxm".

    Raises TargetError as `load` does.
    """
    return "cpu" if name_or_path == "cpu" else str(_figures(name_or_path)["platform"])


def text(name_or_path: str) -> str:
    """Returns XLA's description of a GPU.

    Raises TargetError as `load` does, for "cpu" and TPUs, which have none, and where a file of
    figures has no description beside it.
    """
    if name_or_path == "cpu":
        raise TargetError("target 'cpu' has no description: XLA takes the host as it is.")
    if _figures(name_or_path)["platform"] == "tpu":
        raise TargetError(
            f"target '{name_or_path}' has no description: XLA knows it by its topologies."
        )
    if not _is_path(name_or_path):
        return (resources.files(__name__) / (name_or_path + _SUFFIX)).read_text(encoding="utf-8")
    path = Path(name_or_path).with_suffix(_SUFFIX)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TargetError(
            f"{path}: {error.strerror}. XLA's description of the GPU is wanted beside the figures; "
            "`hloom targets --this` writes both on a machine that has one."
        ) from error


def topology(name: str, devices: int) -> str:
    """Returns the smallest topology of a TPU with that many devices, by XLA's name: "v5p:2x2x1".

    Raises TargetError as `load` does, for anything but a TPU, and where no topology has that many.
    """
    known = [] if name == "cpu" else _figures(name).get("topologies", [])
    if not known:
        raise TargetError(f"target '{name}' has no topologies: they are TPUs'.")
    by_devices = {_devices_of(one): one for one in known}
    fitting = [count for count in by_devices if count >= devices]
    if not fitting:
        most = max(by_devices)
        raise TargetError(f"target '{name}' has at most {most} devices here, not {devices}.")
    return str(by_devices[min(fitting)])


def _devices_of(topology_name: str) -> int:
    _, _, shape = topology_name.partition(":")
    return math.prod(map(int, shape.split("x")))


def chip_config(name: str) -> str | None:
    """Returns XLA's configuration of a TPU's chips, e.g. "megacore"; None for the default.

    Raises TargetError as `load` does.
    """
    found = None if name == "cpu" else _figures(name).get("chip_config")
    return None if found is None else str(found)


def source(name: str) -> str:
    """Returns the first lines of a known target's file: the figures' meaning and their source.

    Raises TargetError where the name is unknown; empty for "cpu".
    """
    if name == "cpu":
        return ""
    _figures(name)
    text = resources.files(__name__).joinpath(name + _FIGURES).read_text(encoding="utf-8")
    lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    return " ".join(line.lstrip("# ") for line in lines)


def limit_reason(target: Target) -> str:
    """Returns the reason for a target's memory limit, in a sentence; empty where unknown."""
    memory, usable = target.memory_bytes, target.usable_bytes
    if memory is None or usable is None:
        return ""
    told = f"{size(usable)} are"
    if usable == memory:
        if target.platform == "tpu":
            return f"{told} what the device gives out."
        return (
            f"{told} what JAX's allocator gives out; XLA_PYTHON_CLIENT_MEM_FRACTION sets its share."
        )
    if usable != usable_bytes(memory, target.platform):
        return f"{told} where {target.name}'s compiler refuses a step: it keeps the rest."
    of_all = f"of its {size(memory)}"
    if target.platform in ("cpu", "tpu"):
        share = f"{told} {target_figures.USABLE_PERCENT} % {of_all}"
        return f"{share}: the rest is the program's own and other programs'."
    return f"{told} {_gpu_share(of_all)}"


def share_of_gpus(among: Iterable[Target]) -> str:
    """Returns the share of a GPU's memory that a step may take, in a sentence; empty where none of
    the targets is a GPU of which that is so."""
    if any(map(_is_shared, among)):
        return f"A step may take {_gpu_share('of a GPU')}"
    return ""


def _is_shared(target: Target) -> bool:
    memory, is_gpu = target.memory_bytes, target.platform not in ("cpu", "tpu")
    return is_gpu and memory is not None and target.usable_bytes == usable_bytes(memory, "cuda")


def _gpu_share(of_what: str) -> str:
    percent = target_figures.gpu_percent()
    whose = "what JAX takes by default" if percent == target_figures.GPU_PERCENT else "as it is set"
    return (
        f"{percent:g} % {of_what}, {whose}: {target_figures.FRACTION} sets another share, for JAX "
        "as for hloom."
    )


def device_kinds(name: str) -> tuple[str, ...]:
    """Returns JAX's names of a known device's kind, of all versions, e.g. "NVIDIA H100 80GB HBM3".

    Raises TargetError where the name is unknown, and for "cpu".
    """
    if name == "cpu":
        raise TargetError("target 'cpu' is no kind of device: XLA takes the host as it is.")
    return target_figures.device_kinds(_figures(name))


def load(name_or_path: str) -> Target:
    """Returns the target of that name, or the one that the file at that path describes.

    A text with a "/" or the ending ".txtpb" or ".toml" is a path; of the two files that describe a
    target, either may be named.

    Raises TargetError where the name is unknown, or where the figures cannot be read.
    """
    if name_or_path == "cpu":
        return Target()
    name = Path(name_or_path).stem if _is_path(name_or_path) else name_or_path
    return target_figures.target_of(name, _figures(name_or_path))


def _is_path(name_or_path: str) -> bool:
    return "/" in name_or_path or name_or_path.endswith((_SUFFIX, _FIGURES))


def _figures(name_or_path: str) -> dict[str, Any]:
    if _is_path(name_or_path):
        return target_figures.read(_figures_at(name_or_path))
    if name_or_path not in names():
        raise TargetError(
            f"unknown target '{name_or_path}'."
            + (
                did_you_mean(name_or_path, names())
                or f" Targets: {', '.join(names())}. A path of a description works too, such as "
                f"./{name_or_path}{_FIGURES}"
            )
        )
    return target_figures.read(resources.files(__name__).joinpath(name_or_path + _FIGURES))


def _figures_at(named: str) -> Path:
    path = Path(named)
    if not path.exists():
        raise TargetError(f"{path}: No such file or directory")
    if path.is_dir():
        raise TargetError(f"{named}: it is a folder: name the file NAME{_FIGURES} in it")
    figures = path.with_suffix(_FIGURES)
    if not figures.exists():
        raise TargetError(
            f"{path}: {figures.name} is not beside it, which has the figures that hloom plans "
            "with. Write one, with hloom/targets/h100_sxm.toml for an example."
        )
    return figures
