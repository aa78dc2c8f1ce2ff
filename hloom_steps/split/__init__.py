"""Split a step into a forward and a backward program, with the fewest bytes between them.

Each value that the forward program passes on is written to memory, and held. The pass selects
these *residuals* by a minimum cut. ``hloom.split`` runs the two programs from JAX.

Before::

    func.func public @main(%w, %x, %ct {hloom.cotangent}) -> (...) {
      %1 = stablehlo.tanh %0
      %3 = stablehlo.subtract %one, %2
      %4 = stablehlo.multiply %ct, %3
      %5 = stablehlo.dot_general %x, %4
      return %1, %5
    }

After::

    func.func public @main(%w, %x, %ct) -> (...) {
      %0:2 = call @forward(%w, %x)
      %1 = call @backward(%x, %0#1, %ct)
      return %0#0, %1
    }
    func.func private @backward(%x, %3 {hloom.residual = "subtract model.py:3"}, %ct) { ... }

The backward program has the operations that depend on an argument with ``hloom.cotangent``, and
returns the results with ``hloom.gradient``. Cheap work is recomputed where fewer bytes then cross;
matrix products only under ``residuals``. Results with ``hloom.weight_gradient`` make two backward
functions. An effect, or a bound that no boundary meets, is an error.

Source: the minimum cut between the two graphs of PyTorch's AOTAutograd (Hu et al., 2022).
"""

# Modules, in the order in which a module of IR passes through them: `boundary` finds the operations
# that depend on cotangents, and cuts; `merge` removes barriers that keep equal work apart, and
# `scans` reduces the stacks of loops; `choose` selects the cut; `backward_loops` and `divide`
# divide the backward half; `plan` reports the decisions; `rewrite` writes the functions. `flow` and
# `copies` serve several.

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from hloom.passes.cse import Cse
from hloom.passes.drop_constraints import DropConstraints
from hloom.passes.framework.base import Pass
from hloom.passes.framework.options import Bytes, option
from hloom.passes.framework.target import Target
from hloom.passes.free_constants import FreeConstants
from hloom.passes.ir import walk
from hloom_steps.split.boundary import COTANGENT, GRADIENT, WEIGHT_GRADIENT, Marks, marked
from hloom_steps.split.choose import Step
from hloom_steps.split.plan import SplitPlan
from hloom_steps.split.rewrite import apply_split

BEFORE = ("remat", "off")
"""The default passes before this one: ``remat`` decides which values scans stack, and where the
backward program recomputes the others. Under a bound, which the split may meet only through the
scans' stacks, the step is also planned without it, and the better plan is used."""


@dataclass(frozen=True)
class Split(Pass):
    """Split a step into a forward and a backward function."""

    name: ClassVar[str] = "split"
    summary: ClassVar[str] = "split a step into a forward and a backward program"
    example: ClassVar[str] = "remat,split{residuals=2GiB}"
    requires: ClassVar[tuple[type[Pass], ...]] = (DropConstraints, Cse, FreeConstants)
    once: ClassVar[bool] = True

    residuals: Bytes | None = option(
        None,
        doc="the most bytes of residuals on one device; by default the fewest without expensive "
        "work done again",
        minimum=0,
    )

    def plan(self, module: ir.Module, target: Target) -> SplitPlan:
        try:
            function = walk.entry_function(module)
        except walk.NoEntryError as error:
            return SplitPlan(refusal=str(error))
        cotangents = marked(function, "arg_attrs", COTANGENT)
        if not cotangents:
            return SplitPlan(
                refusal=f"no argument of the program carries {COTANGENT}, so that no part of it "
                "is known to be the backward pass"
            )
        weights = marked(function, "res_attrs", WEIGHT_GRADIENT)
        gradients = sorted({*marked(function, "res_attrs", GRADIENT), *weights})
        step = Step(module, target, Marks(cotangents, gradients, weights))
        if self.residuals is None:
            return step.cheapest()
        return step.bounded(self.residuals)

    def apply(self, plan: SplitPlan) -> None:
        apply_split(plan)
