"""Keep the residuals of scans in pinned memory of the host, and load them an iteration ahead.

The forward loop of a scan stacks its residuals, a slice a layer, and the backward loop reads them
slice by slice. This pass moves such stacks to the host's memory. The backward loop carries the
slice that it works on, and at the beginning of each iteration requests that of the next one: the
copy then runs beside the work of an iteration, whereas a copy loaded in the iteration that reads it
is mostly waited for.

Before::

    %stack = stablehlo.while(%i, %x, %s = %zeros) {
      %r = stablehlo.tanh %0 : tensor<8192x4096xbf16>
      %s1 = stablehlo.dynamic_update_slice %s, %r, %i
    }
    stablehlo.while(%i, %dx, %s = %stack) {
      %r = stablehlo.dynamic_slice %s, 11 - %i
      %1 = stablehlo.multiply %dx, %r
    }

After::

    %stack, %last = stablehlo.while(%i, %x, %s = %zeros, %r0 = %zero) {
      %r = stablehlo.tanh %0 : tensor<8192x4096xbf16>
      %h = stablehlo.custom_call @annotate_device_placement(%r) {pinned_host}
      %s1 = stablehlo.dynamic_update_slice %s, %h, %i
    }
    stablehlo.while(%i, %dx, %s = %stack, %r = %last) {
      %h = stablehlo.dynamic_slice %s, max(10 - %i, 0)
      %next = stablehlo.custom_call @annotate_device_placement(%h) {device}
      %1 = stablehlo.multiply %dx, %r
    }

A stack goes to the host only where the link moves its slices in the time of the loops' own work, by
the cost model: a store can span the work of the forward body that does not wait for the value,
largest are taken first. ``exposed`` allows for more.

On the device each such stack leaves two slices: the one in use, and the next.

Stacks stay on the device, and the plan says why, where the trip count is not constant, where
anything but one backward loop reads them, where that does not begin with the slice that was stored
last, and in loops inside other loops. Programs for other targets than a GPU whose link is known are
unchanged. The operations that compute stay the same.

No CUDA graph holds a copy between device and host: ``capture`` leaves loops with such stacks out,
and says so.

The package: ``candidates`` (which stacks, what each costs, and what a loop's work hides), ``plan``,
``rewrite``.

Source: JAX's ``save_and_offload_only_these_names``, whose annotations the pass writes.
"""

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
        doc="the share of the loops' time by which copies may lengthen a step, by the cost "
        "model; 0 takes only stacks whose copies are hidden",
        minimum=0,
    )

    def plan(self, module: ir.Module, target: Target) -> OffloadPlan:
        found = offloadable(module, target, self.min_bytes)
        return plan_offload(found, choose_hidden(found, self.exposed))

    def apply(self, plan: OffloadPlan) -> None:
        apply_offload(plan.decided)
