"""The table of hloom's FFI targets for XLA, with their handlers and state types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

PLATFORMS: Mapping[str, str] = MappingProxyType({"cpu": "cpu", "cuda": "CUDA"})
"""XLA's FFI names of hloom's platforms (a registration for "cuda" would have no effect)."""


@dataclass(frozen=True)
class StateType:
    """The C++ type of the state that a handler's `instantiate` creates and XLA keeps."""

    name: str
    """The type's name in XLA's registry; with a version, like a target."""
    type_id: str
    """The library's symbol of the type id, which XLA sets at registration."""
    type_info: str
    """The library's symbol of the type's description."""


@dataclass(frozen=True)
class Kernel:
    """One FFI target on one platform."""

    target: str
    """The custom call's target name: the mark and the version of its attributes and operands."""
    platform: str
    """A key of PLATFORMS."""
    stages: Mapping[str, str] = field(hash=False)
    """The library's symbols by FFI stage ("instantiate", "prepare", "initialize", "execute")."""
    state: StateType | None = None
    """The type of the state that its stages share."""


def _kernel(mark: str, platform: str, *stages: str, state: StateType | None = None) -> Kernel:
    symbol = f"hloom_{platform}_{mark.removeprefix('hloom.')}_v1"
    symbols = MappingProxyType({stage: f"{symbol}_{stage}" for stage in stages})
    return Kernel(f"{mark}.v1", platform, symbols, state)


def _state(platform: str, name: str) -> StateType:
    symbol = f"hloom_{platform}_{name}_type"
    return StateType(
        f"hloom.{platform}.{name}.v1", type_id=f"{symbol}_id", type_info=f"{symbol}_info"
    )


_CPU_CALL = _state("cpu", "call")
_CUDA_SITE = _state("cuda", "site")
_CPU_STAGES = ("instantiate", "execute")
_CUDA_STAGES = ("instantiate", "initialize", "execute")

KERNELS: tuple[Kernel, ...] = (
    _kernel("hloom.token", "cpu", "execute"),
    _kernel("hloom.tie", "cpu", "execute"),
    _kernel("hloom.after", "cpu", "execute"),
    _kernel("hloom.barrier", "cpu", *_CPU_STAGES, state=_CPU_CALL),
    _kernel("hloom.ragged_all_to_all", "cpu", *_CPU_STAGES, state=_CPU_CALL),
    _kernel("hloom.token", "cuda", "execute"),
    _kernel("hloom.barrier", "cuda", *_CUDA_STAGES, state=_CUDA_SITE),
    _kernel("hloom.ragged_all_to_all", "cuda", *_CUDA_STAGES, state=_CUDA_SITE),
)
"""Every target, in the order of registration."""


def kernel(target: str, platform: str) -> Kernel:
    """Returns the kernel of a target on a platform ("cpu", "cuda"); raises KeyError where it has
    none."""
    for candidate in KERNELS:
        if (candidate.target, candidate.platform) == (target, platform):
            return candidate
    raise KeyError(f"no kernel {target!r} for platform {platform!r}")


def targets(platform: str) -> frozenset[str]:
    """Every target of a platform."""
    return frozenset(each.target for each in KERNELS if each.platform == platform)
