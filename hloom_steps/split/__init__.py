"""Split a step into a forward and a backward program, with the fewest bytes between them.

A differentiated function runs as two programs where other work runs between them: stages of a
pipeline, several losses over one forward pass, gradients on demand. No compiler can then free the
values that the forward program passes to the backward program: each is written to memory, and held.
This pass selects these *residuals*, by a minimum cut.

Before::

    func.func public @main(%w: tensor<8x8xf32>, %x: tensor<4x8xf32>,
                           %ct: tensor<4x8xf32> {hloom.cotangent}) -> (...) {
      %0 = stablehlo.dot_general %x, %w
      %1 = stablehlo.tanh %0
      %2 = stablehlo.multiply %1, %1
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
    func.func private @forward(%w, %x) -> (..., ... {hloom.residual = "subtract model.py:3"}) {
      %0 = stablehlo.dot_general %x, %w
      %1 = stablehlo.tanh %0
      %2 = stablehlo.multiply %1, %1
      %3 = stablehlo.subtract %one, %2
      return %1, %3
    }
    func.func private @backward(%x, %3 {hloom.residual = "subtract model.py:3"}, %ct) -> ... {
      %4 = stablehlo.multiply %ct, %3
      %5 = stablehlo.dot_general %x, %4
      return %5
    }

The backward program contains all operations that depend on an argument with the attribute
``hloom.cotangent``, and returns the results with ``hloom.gradient``: data flow alone decides, not
names. Arguments and constants are no residuals, since the caller has them: the backward program
takes the arguments that it reads. Cheap work (elementwise operations, conversions, reductions) is
recomputed where that leaves fewer bytes to cross; matrix products and other expensive work are not,
unless ``residuals`` bounds the bytes: then as little of it as meets the bound, in seconds by a
model of the device. Under a bound a scan may also stack fewer values, which its backward loop
recomputes. Bytes are those of one device, since sharded values stay sharded.

Where results carry ``hloom.weight_gradient``, two backward functions are written: ``@backward_x``
returns the other gradients, and ``@backward_w`` those of weights. Each matrix product is in one of
them, and a second minimum cut selects the values that the first passes to the second. A backward
loop that computes both kinds of gradients is divided.

The bytes of a boundary are a sum, not a peak, so that the cut is the optimum. ``remat`` before this
pass decides which values scans stack, and where the backward program recomputes the others.

A program with an effect or a callback to Python is an error that names it: two programs would run
the effect twice, or out of order. A bound that no boundary meets is an error, too. `hloom.split`
runs the two programs from JAX.

The package, in the order in which a module passes through it: ``boundary`` finds the operations
that depend on cotangents, and cuts; ``merge`` removes barriers that keep equal work apart, and
``scans`` reduces the stacks of loops; ``choose`` selects the cut; ``backward_loops`` and ``divide``
divide the backward half; ``plan`` reports the decisions; ``rewrite`` writes the functions. ``flow``
and ``copies`` serve several.

Source: the minimum cut between the two graphs of PyTorch's AOTAutograd (Hu et al., 2022).
"""

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
        doc="what the residuals may take of one device; without it the fewest bytes with which no "
        "expensive work is done again",
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
