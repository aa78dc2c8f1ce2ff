"""Run attention in the fused kernel of the platform, wherever a program computes it.

Before::

    %s = stablehlo.dot_general %q, %k        // [batch, heads, queries, keys]
    %p = softmax of scale * %s + bias        // some 20 operations
    %o = stablehlo.dot_general %p, %v
    four products of the gradient, which read %p or its gradient

After::

    %o, %stats = stablehlo.composite "hloom.attention" %q, %k, %v
    %dq, %dk, %dv = stablehlo.composite "hloom.attention_gradient" %q, %k, %v, %o, %stats, %do

The weights are never in memory. On a CUDA GPU the marks become cuDNN's calls, as
``jax.nn.dot_product_attention(implementation="cudnn")`` makes them, on a TPU those of JAX's splash
attention, kernels of Pallas. A site is found by its
meaning, by evaluation at some coordinates. In 16 bits results differ in their rounding, so that
the pass runs only where a spec names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from ..cse import Cse
from ..drop_constraints import DropConstraints
from ..framework.base import NothingPlan, Pass
from ..framework.options import option
from ..framework.target import Target
from . import limits
from .plan import AttentionPlan, plan_attention
from .write import write_attentions


@dataclass(frozen=True)
class Attention(Pass):
    """Run attention in a fused kernel."""

    name: ClassVar[str] = "attention"
    summary: ClassVar[str] = "run attention in a fused kernel"
    example: ClassVar[str] = "attention,fit"
    requires: ClassVar[tuple[type[Pass], ...]] = (DropConstraints, Cse)

    kernel: str = option(
        "auto",
        doc="auto: the platform's; cudnn: cuDNN's; pallas: JAX's for TPUs; emulated: what the "
        "kernel computes, anywhere",
        choices=limits.KERNELS,
    )
    min_keys: int = option(256, doc="attention to fewer keys stays", minimum=1)
    cast: str = option(
        "off",
        doc="off: float32 stays; bf16: float32 is converted to bfloat16 for the kernel",
        choices=("off", "bf16"),
    )

    def plan(self, module: ir.Module, target: Target) -> AttentionPlan | NothingPlan:
        kernel = limits.kernel_of(self.kernel, target)
        if kernel is None:
            return NothingPlan(target.platform, limits.unserved(self.kernel, target))
        with module.context:
            return plan_attention(
                module, target, kernel=kernel, min_keys=self.min_keys, cast=self.cast
            )

    def apply(self, plan: AttentionPlan) -> None:
        if plan.module is not None:
            write_attentions(plan.module, plan.decided, emulated=plan.emulated)
