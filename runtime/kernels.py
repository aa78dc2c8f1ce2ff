"""The table of what hloom brings to XLA: every FFI target, its handlers, and its state type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

PLATFORMS: Mapping[str, str] = MappingProxyType({"cpu": "cpu", "cuda": "CUDA"})
"""By platform in hloom, the name under which XLA's FFI knows it ("cuda" would be lost)."""


@dataclass(frozen=True)
class StateType:
    """A C++ type that a handler's `instantiate` makes and XLA keeps with the executable."""

    name: str
    """Names it to XLA, once a process: it carries a version like a target."""
    type_id: str
    """The library's symbol of the id, which XLA fills in at registration."""
    type_info: str
    """The library's symbol of the type's description."""


@dataclass(frozen=True)
class Kernel:
    """One FFI target on one platform."""

    target: str
    """What a custom call names: the mark, and the version of its attributes and operands."""
    platform: str
    """A key of PLATFORMS."""
    stages: Mapping[str, str] = field(hash=False)
    """By FFI stage ("instantiate", "prepare", "initialize", "execute"): the library's symbol."""
    state: StateType | None = None
    """The type of the state that its stages share."""


def _cpu(mark: str) -> Kernel:
    symbol = f"hloom_cpu_{mark.removeprefix('hloom.')}_v1"
    return Kernel(f"{mark}.v1", "cpu", MappingProxyType({"execute": f"{symbol}_execute"}))


def _cuda(mark: str, *stages: str, state: StateType | None = None) -> Kernel:
    symbol = f"hloom_cuda_{mark.removeprefix('hloom.')}_v1"
    return Kernel(
        f"{mark}.v1",
        "cuda",
        MappingProxyType({stage: f"{symbol}_{stage}" for stage in stages}),
        state,
    )


_CUDA_SITE = StateType(
    "hloom.cuda.site.v1", type_id="hloom_cuda_site_type_id", type_info="hloom_cuda_site_type_info"
)
_CUDA_STAGES = ("instantiate", "initialize", "execute")

KERNELS: tuple[Kernel, ...] = (
    _cpu("hloom.token"),
    _cpu("hloom.tie"),
    _cpu("hloom.after"),
    _cpu("hloom.barrier"),
    _cpu("hloom.ragged_all_to_all"),
    _cuda("hloom.token", "execute"),
    _cuda("hloom.barrier", *_CUDA_STAGES, state=_CUDA_SITE),
    _cuda("hloom.ragged_all_to_all", *_CUDA_STAGES, state=_CUDA_SITE),
)
"""Every target. Order is the order of registration."""


def kernel(target: str, platform: str) -> Kernel:
    """The kernel of a target on a platform ("cpu", "cuda"); raises KeyError where there is none."""
    for candidate in KERNELS:
        if (candidate.target, candidate.platform) == (target, platform):
            return candidate
    raise KeyError(f"no kernel {target!r} for platform {platform!r}")


def targets(platform: str) -> frozenset[str]:
    """Every target that there is on a platform."""
    return frozenset(each.target for each in KERNELS if each.platform == platform)
