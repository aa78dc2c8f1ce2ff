"""The devices that hloom can plan and compile for on a machine without them.

Each `<name>.toml` here has the figures that hloom's passes plan with. XLA's description of the
device depends on its platform: for a GPU the `<name>.txtpb` beside it, a `GpuTargetConfigProto` in
text form, as `jax.experimental.topologies.get_topology_desc(target_config=…)` takes it; for a TPU
the name of a topology, which the figures give.
"""

from __future__ import annotations

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
    "TargetError", "device_kinds", "limit_reason", "load", "names", "share_of_gpus", "usable_bytes",
]  # fmt: skip

DESCRIPTION, FIGURES = ".txtpb", ".toml"
"""The endings of the two files of a target."""


def names() -> tuple[str, ...]:
    """Returns every target known by name, sorted: "cpu", and one for each file of figures here."""
    described = (
        entry.name.removesuffix(FIGURES)
        for entry in resources.files(__name__).iterdir()
        if entry.name.endswith(FIGURES)
    )
    return tuple(sorted(("cpu", *described)))


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
    return target_figures.device_kinds(figures_of(name))


def load(name_or_path: str) -> Target:
    """Returns the target of that name, or the one that the file at that path describes.

    A text with a "/" or the ending ".txtpb" or ".toml" is a path; of the two files that describe a
    target, either may be named.

    Raises TargetError where the name is unknown, or where the figures cannot be read.
    """
    if name_or_path == "cpu":
        return Target()
    name = Path(name_or_path).stem if is_path(name_or_path) else name_or_path
    return target_figures.target_of(name, figures_of(name_or_path))


def is_path(name_or_path: str) -> bool:
    """Whether a target is named by a path."""
    return "/" in name_or_path or name_or_path.endswith((DESCRIPTION, FIGURES))


def figures_of(name_or_path: str) -> dict[str, Any]:
    """Returns the figures of a known target or of a file; raises TargetError as `load` does."""
    if is_path(name_or_path):
        return target_figures.read(_figures_at(name_or_path))
    if name_or_path not in names():
        raise TargetError(
            f"unknown target '{name_or_path}'."
            + (
                did_you_mean(name_or_path, names())
                or f" Targets: {', '.join(names())}. A path of a description works too, such as "
                f"./{name_or_path}{FIGURES}"
            )
        )
    return target_figures.read(resources.files(__name__).joinpath(name_or_path + FIGURES))


def _figures_at(named: str) -> Path:
    path = Path(named)
    if not path.exists():
        raise TargetError(f"{path}: No such file or directory")
    if path.is_dir():
        raise TargetError(f"{named}: it is a folder: name the file NAME{FIGURES} in it")
    figures = path.with_suffix(FIGURES)
    if not figures.exists():
        raise TargetError(
            f"{path}: {figures.name} is not beside it, which has the figures that hloom plans "
            "with. Write one, with hloom/targets/h100_sxm.toml for an example."
        )
    return figures
