"""Exchange in steps beside the products that wait for it, or that it waits for.

In ``shard_map`` XLA runs nothing beside the exchanges of tensor parallelism.

Before::

    %0 = stablehlo.all_gather %x, dim = 0 : (tensor<1024x64xbf16>) -> tensor<8192x64xbf16>
    %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0]

After::

    %1 = stablehlo.collective_permute %x, from the device above
    %2 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : tensor<1024x128xbf16>
    %3 = stablehlo.dynamic_update_slice %whole, %2, at this device's rows
    ...

A product that is summed and scattered computes the terms of one part while the sum of another one
moves. Gathers give the same bits; sums are added up in another order.

Source: Wang et al., "Overlap Communication with Dependent Computation" (ASPLOS 2023).
"""

# XLA:GPU honours the barriers until it has scheduled, and lets every part move before the first
# product without them. A product that contracts the gathered axis, and one that saves the gathered
# value for the backward pass, read all parts together.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from ..framework.base import OTHERS, Pass
from ..framework.options import Bytes, option
from ..framework.target import Target
from ..inline import Inline
from ..late_gather import LateGather
from .plan import Limits, OverlapPlan, plan_rings
from .write import write_ring


@dataclass(frozen=True)
class Overlap(Pass):
    """Exchange in steps beside products."""

    name: ClassVar[str] = "overlap"
    summary: ClassVar[str] = "exchange in steps, beside the matrix products"
    example: ClassVar[str] = "overlap{min_bytes=16MiB}"
    requires: ClassVar[tuple[type[Pass], ...]] = (Inline, LateGather)
    not_on: ClassVar[Mapping[str, str]] = {
        "cuda": "",
        "cpu": "its devices share one memory, and XLA:CPU runs nothing beside an exchange",
        "tpu": "XLA does this for TPUs by itself",
        OTHERS: "it is not known whether exchanges run beside products there",
    }

    min_bytes: Bytes = option(
        Bytes(32 * 2**20), doc="values that take less on a device are exchanged whole", minimum=1
    )
    min_rows: int = option(
        512, doc="an exchange is left whole where a step's product would have fewer rows", minimum=1
    )
    steps: int | None = option(
        None,
        doc="products that one becomes, a multiple of the devices that exchange, by default these",
        minimum=2,
    )
    unroll: int = option(
        16, doc="the most products of a ring that is written out; longer rings are loops", minimum=2
    )
    directions: str = option(
        "one",
        doc="one: parts move around the ring one way, for links to a switch; both: half of them "
        "move the other way, for links between neighbours",
        choices=("one", "both"),
    )

    def plan(self, module: ir.Module, target: Target) -> OverlapPlan:
        limits = Limits(
            self.min_bytes, self.min_rows, self.steps, self.unroll, self.directions == "both"
        )
        return plan_rings(module, limits, target)

    def apply(self, plan: OverlapPlan) -> None:
        for ring in plan.decided:
            write_ring(ring, both=plan.both)
