"""Gather values after the elementwise work on them, where that makes them smaller.

A value that is quantised after an all-gather crosses the links in its wide type; in ``shard_map``
no pass of XLA changes that.

Before::

    %0 = stablehlo.all_gather %x : (tensor<8x4xbf16>) -> tensor<64x4xbf16>
    %1 = stablehlo.divide %0, broadcast(%scale) : tensor<64x4xbf16>
    %2 = stablehlo.convert %1 : tensor<64x4xf8E4M3FN>

After::

    %1 = stablehlo.divide %x, broadcast(%scale) : tensor<8x4xbf16>
    %2 = stablehlo.convert %1 : tensor<8x4xf8E4M3FN>
    %3 = stablehlo.all_gather %2 : (tensor<8x4xf8E4M3FN>) -> tensor<64x4xf8E4M3FN>

What is gathered has the same bits. Sums stay, since their rounding would change, and so does work
whose other operands differ between devices.
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
