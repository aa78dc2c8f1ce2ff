"""Exchange in steps beside the products that wait for it, or that it waits for.

Under tensor parallelism a device waits for its peers before a layer's first product and after its
last one. In `shard_map` XLA runs nothing beside these exchanges. In parts, a product uses one while
the next one comes.

Before::

    %0 = stablehlo.all_gather %x, dim = 0 : (tensor<1024x64xbf16>) -> tensor<8192x64xbf16>
    %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0]

After::

    %1 = stablehlo.collective_permute %x, from the device above
    %2 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : tensor<1024x128xbf16>
    %3 = stablehlo.dynamic_update_slice %whole, %2, at this device's rows
    %4 = stablehlo.collective_permute %1, from the device above
    %5 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] : tensor<1024x128xbf16>
    %6, %7 = stablehlo.optimization_barrier %4, %5
    ...

A product that is summed and scattered computes the terms of one part while the sum of another one
moves. An all-reduce is both: its sum is scattered, and the result gathered. Elementwise work
between exchange and product is done on parts. Operations that read all parts together are a product
that contracts the gathered axis, and the one that saves the gathered value for the backward pass.

Short rings are unrolled, in long ones an iteration moves a part beside a product. The barriers hold
the order: XLA:GPU honours them until it has scheduled, and lets every part move before the first
product without them. Gathers give the same bits; sums are added up in another order.

Source: Wang et al., "Overlap Communication with Dependent Computation via Decomposition in Large
Deep Learning Models" (ASPLOS 2023), which XLA does to automatic programs as windowed einsum.
"""

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
        512,
        doc="an exchange is left whole where a step's product would have fewer rows: small "
        "products lose more than is hidden",
        minimum=1,
    )
    steps: int | None = option(
        None,
        doc="products that each one becomes, a multiple of the devices that exchange; otherwise as "
        "many as these",
        minimum=2,
    )
    unroll: int = option(
        16,
        doc="products of a ring that stand in the program one by one; a ring of more is a loop, "
        "and goes one way",
        minimum=2,
    )
    directions: str = option(
        "one",
        doc="one: parts move around the ring one way, which fills both ways of links to a switch; "
        "both: half of them move the other way, where each link is to one neighbour",
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
