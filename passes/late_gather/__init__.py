"""Gather values after the elementwise work on them, where that makes them smaller.

A value that is quantised after an all-gather crosses the links in its wide type, and each device
does the work of all. Elementwise work commutes with a gather bit for bit, and so does a maximum.

Before::

    %0 = stablehlo.all_gather %x : (tensor<8x4xbf16>) -> tensor<64x4xbf16>
    %1 = stablehlo.reduce(%0) maximum : tensor<bf16>
    %2 = stablehlo.divide %0, broadcast(%1) : tensor<64x4xbf16>
    %3 = stablehlo.convert %2 : tensor<64x4xf8E4M3FN>

After::

    %0 = stablehlo.reduce(%x) maximum : tensor<bf16>
    %1 = stablehlo.all_gather %0 : (tensor<1xbf16>) -> tensor<8xbf16>
    %2 = stablehlo.reduce(%1) maximum : tensor<bf16>
    %3 = stablehlo.divide %x, broadcast(%2) : tensor<8x4xbf16>
    %4 = stablehlo.convert %3 : tensor<8x4xf8E4M3FN>
    %5 = stablehlo.all_gather %4 : (tensor<8x4xf8E4M3FN>) -> tensor<64x4xf8E4M3FN>

The values after a gather that take the fewest bytes together are gathered instead: a minimum cut.
Where some work does not change the bytes, the gather comes after it. Sums stay: in parts they are
rounded differently. The other operands of the work must be the same on all devices of the group: a
scale that each device has of its own has another meaning after the gather. Maxima of parts are
gathered and combined, rather than reduced by NCCL, whose maximum drops NaNs.

In automatic programs XLA's partitioner does the same. Inside of `shard_map` no pass of XLA does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from ..framework.base import Pass
from ..framework.options import Bytes, option
from ..framework.target import Target
from ..inline import Inline
from .plan import LateGatherPlan, plan_late_gathers
from .rewrite import gather_late


@dataclass(frozen=True)
class LateGather(Pass):
    """Gather values after the elementwise work on them."""

    name: ClassVar[str] = "late-gather"
    summary: ClassVar[str] = "gather values after quantisation, not before"
    example: ClassVar[str] = "late-gather{min_bytes=16MiB}"
    requires: ClassVar[tuple[type[Pass], ...]] = (Inline,)
    not_on: ClassVar[Mapping[str, str]] = {"cpu": "its devices share one memory"}

    min_bytes: Bytes = option(
        Bytes(2**20), doc="gathers that give less on a device stay", minimum=1
    )

    def plan(self, module: ir.Module, target: Target) -> LateGatherPlan:
        return plan_late_gathers(module, self.min_bytes)

    def apply(self, plan: LateGatherPlan) -> None:
        for each in plan.decided:
            gather_late(each)
