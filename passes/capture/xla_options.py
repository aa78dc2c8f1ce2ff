"""XLA's compile options for the capture regions of a module.

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

import jax
from jax.extend.mlir import ir

from ..ir import marks

COMMAND_BUFFER_TYPES = "xla_gpu_enable_command_buffer"

_TYPES = ("FUSION", "CUBLAS", "CUBLASLT", "CUDNN", "CUSTOM_CALL", "DYNAMIC_SLICE_FUSION")
_TYPES_SINCE_0_12 = (*_TYPES, "COLLECTIVES_KERNEL")
"""The work that a graph may contain. With loops the types are never fewer than XLA's default: some
exchanges are kernels of XLA's own since 0.12, which captures them whether or not collectives are
captured."""

_LOOPS, _COLLECTIVES = ("WHILE", "CONDITIONAL"), ("COLLECTIVES",)


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
    found = marks.marks_in(module.operation, marks.CAPTURE_REGION) if platform == "cuda" else ()
    regions = [ir.DictAttr(mark.attributes["composite_attributes"]) for mark in found]
    if not regions:
        return {}
    is_newer = (jax.__version_info__ if version is None else version) >= (0, 12)
    types = list(_TYPES_SINCE_0_12 if is_newer else _TYPES)
    if any(_has(region, "loops") for region in regions):
        types += _LOOPS
    if any(_has(region, "collectives") for region in regions):
        types += _COLLECTIVES
    with_loops = any(_has(region, "has_loops") and _has(region, "loops") for region in regions)
    least = min(ir.IntegerAttr(region["min_ops"]).value for region in regions)
    return {
        COMMAND_BUFFER_TYPES: ",".join(types),
        "xla_gpu_graph_min_graph_size": 1 if with_loops and not is_newer else least,
        "xla_disable_hlo_passes": "dynamic-slice-annotator",
    }


def _has(region: ir.DictAttr, attribute: str) -> bool:
    """Whether a mark has a flag that `rewrite` writes."""
    return bool(ir.BoolAttr(region[attribute]).value)
