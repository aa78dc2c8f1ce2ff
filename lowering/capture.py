"""Lowers the capture regions of a module to XLA's compile options for this module.

XLA has no marker for a region. It selects work by its type, by a minimum size, and by the loops
that its own passes leave. The marks therefore become:

- the types of work that a graph may contain: XLA's default, loops and branches, and collectives if
  requested;
- the minimum size: ``min_ops`` of the regions. jaxlib before 0.12 counts a loop as one thunk, and
  makes no graphs inside a loop that is too small for one: a loop between two collectives that the
  partitioner inserted would not be captured. With a loop the minimum is therefore 1;
- no dynamic-slice annotator: that pass turns slices, among them those at a loop's counter, into
  copies by the host. No graph can contain such a copy, or a loop with one.

Measured on compiles for an H100 (2026-11-21): of the three passes that make dynamic-slice fusions
only the annotator had to go, and `xla_gpu_command_buffer_unroll_loops` captured no such loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jax
from jax.extend.mlir import ir

from hloom.passes.ir import marks

COMMAND_BUFFER_TYPES = "xla_gpu_enable_command_buffer"
MIN_GRAPH_SIZE = "xla_gpu_graph_min_graph_size"
DISABLED_PASSES = "xla_disable_hlo_passes"
"""XLA's option for disabled passes, a list, so that it is added to the user's."""

_CUDA = "cuda"


@dataclass(frozen=True)
class _Release:
    """The work that jaxlib's XLA captures, from one version on.

    Attributes:
      since: the first version.
      types: the types of work that a graph can contain.
      loop_types: loops and branches.
      collective_types: exchanges between devices.
      spoiling_passes: HLO passes that turn work that a graph can contain into work that it cannot.
      counts_in_loops: whether the size of a graph includes the work inside its loops.
    """

    since: tuple[int, int, int]
    types: tuple[str, ...]
    loop_types: tuple[str, ...] = ("WHILE", "CONDITIONAL")
    collective_types: tuple[str, ...] = ("COLLECTIVES",)
    spoiling_passes: tuple[str, ...] = ("dynamic-slice-annotator",)
    counts_in_loops: bool = False


_TYPES = ("FUSION", "CUBLAS", "CUBLASLT", "CUDNN", "CUSTOM_CALL", "DYNAMIC_SLICE_FUSION")

_RELEASES = (
    _Release(since=(0, 10, 2), types=_TYPES),
    _Release(since=(0, 12, 0), types=(*_TYPES, "COLLECTIVES_KERNEL"), counts_in_loops=True),
)
"""Oldest first. With `loop_types` the types are never fewer than XLA's default: some exchanges are
kernels of XLA's own since 0.12, which captures them whether or not collectives are captured."""


def compile_options(
    module: ir.Module, platform: str, version: tuple[int, ...] | None = None
) -> dict[str, str | int]:
    """XLA's compile options, by name, for the capture regions of a module.

    Empty if the module has no region, or the platform no graphs. Call it before the marks are
    lowered.

    Args:
      module: with its marks.
      platform: its name in JAX.
      version: of jaxlib; the installed one if None.
    """
    regions = list(_regions(module)) if platform == _CUDA else []
    if not regions:
        return {}
    release = _release(jax.__version_info__ if version is None else version)
    types = list(release.types)
    if any(region.loops for region in regions):
        types += release.loop_types
    if any(region.collectives for region in regions):
        types += release.collective_types
    return {
        COMMAND_BUFFER_TYPES: ",".join(types),
        MIN_GRAPH_SIZE: _min_size(regions, release),
        DISABLED_PASSES: ",".join(release.spoiling_passes),
    }


@dataclass(frozen=True)
class _Region:
    """The attributes of a mark, as `passes/capture/rewrite.py` writes them."""

    collectives: bool
    has_loops: bool
    loops: bool
    min_ops: int


def _min_size(regions: list[_Region], release: _Release) -> int:
    """The least number of kernels that XLA makes a graph of."""
    least = min(region.min_ops for region in regions)
    loops = any(region.has_loops and region.loops for region in regions)
    return 1 if loops and not release.counts_in_loops else least


def _release(version: tuple[int, ...]) -> _Release:
    """The newest release that is not newer than a version; the oldest, for one before all."""
    known = [release for release in _RELEASES if release.since <= version]
    return known[-1] if known else _RELEASES[0]


def _regions(module: ir.Module) -> Iterator[_Region]:
    for mark in marks.marks_in(module.operation, marks.CAPTURE_REGION):
        attributes = ir.DictAttr(mark.attributes["composite_attributes"])
        yield _Region(
            collectives=ir.BoolAttr(attributes["collectives"]).value,
            has_loops=ir.BoolAttr(attributes["has_loops"]).value,
            loops=ir.BoolAttr(attributes["loops"]).value,
            min_ops=ir.IntegerAttr(attributes["min_ops"]).value,
        )
