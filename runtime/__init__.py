"""The kernels that hloom brings to XLA.

None exists yet: the table is empty, so every mark is lowered by inlining its decomposition.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

KERNELS: Mapping[str, Mapping[str, str]] = MappingProxyType({})
"""By platform ("cpu", "cuda"), then by mark ("hloom.…"): the FFI target that serves the mark."""


def kernel_target(platform: str, mark: str) -> str | None:
    """The FFI target registered for a mark on a platform; None where no kernel serves it."""
    return KERNELS.get(platform, {}).get(mark)
