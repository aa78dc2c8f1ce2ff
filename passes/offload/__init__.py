"""Keep the residuals of scans in pinned memory of the host, and load them an iteration ahead.

The backward loop requests the next slice at the beginning of an iteration, so that the copy runs
beside its work.

Before::

    stablehlo.while(%i, %dx, %s = %stack) {
      %r = stablehlo.dynamic_slice %s, 11 - %i
      %1 = stablehlo.multiply %dx, %r
    }

After::

    stablehlo.while(%i, %dx, %s = %stack, %r = %last) {
      %h = stablehlo.dynamic_slice %s, max(10 - %i, 0)
      %next = stablehlo.custom_call @annotate_device_placement(%h) {device}
      %1 = stablehlo.multiply %dx, %r
    }

A stack moves where the link copies its slices in the time of the loops' own work, by the cost
model; two slices stay on the device. Others stay: a trip count that is not constant,
readers besides one backward loop, loops inside of loops. The results are the same.

Source: JAX's ``save_and_offload_only_these_names``, whose annotations the pass writes.
"""

# Modules: `candidates` (which stacks, what each costs, and what a loop's work hides: a store can
# span the work of the forward body that does not wait for the value), `plan`, `rewrite`.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from ..cse import Cse
from ..drop_constraints import DropConstraints
from ..framework.base import OTHERS, Pass
from ..framework.options import Bytes, option
from ..framework.target import Target
from ..free_constants import FreeConstants
from .candidates import offloadable
from .plan import OffloadPlan, choose_hidden, plan_offload
from .rewrite import apply_offload


@dataclass(frozen=True)
class Offload(Pass):
    """Keep the residuals of scans on the host."""

    name: ClassVar[str] = "offload"
    summary: ClassVar[str] = "keep the residuals of scans in the memory of the host"
    example: ClassVar[str] = "offload{min_bytes=256MiB}"
    requires: ClassVar[tuple[type[Pass], ...]] = (DropConstraints, Cse, FreeConstants)
    saves_memory: ClassVar[bool] = True
    not_on: ClassVar[Mapping[str, str]] = {
        "cuda": "",
        "cpu": "its memory is the host's",
        "tpu": "what copies to the host cost there is not known to hloom; the offloading "
        "policies of jax.checkpoint work",
        OTHERS: "what copies to the host cost there is not known to hloom",
    }

    min_bytes: Bytes = option(
        Bytes(64 * 2**20), doc="stacks that take less on a device stay there", minimum=1
    )
    exposed: float = option(
        0.0,
        doc="the share of the loops' time by which copies may lengthen a step, by the cost model",
        minimum=0,
    )

    def plan(self, module: ir.Module, target: Target) -> OffloadPlan:
        found = offloadable(module, target, self.min_bytes)
        return plan_offload(found, choose_hidden(found, self.exposed))

    def apply(self, plan: OffloadPlan) -> None:
        apply_offload(plan.decided)
