"""Cut a step into stages: programs for several devices, with the fewest bytes between them.

The pass cuts the joint program of one microbatch, its value and its gradients, for models whose
layers differ. Each stage is a forward and a backward program. ``hloom.stages`` runs them.

Before::

    func.func public @main(%v {hloom.parameter}, %w {hloom.parameter}, %x, %ct {hloom.cotangent})
        -> (..., ... {hloom.gradient}, ... {hloom.gradient}) { ... }

After::

    // with stages=2
    func.func public @main(%v, %w, %x, %ct) -> (...) {
      %0 = call @stage0_forward(%v, %x)
      %1 = call @stage1_forward(%w, %0)
      %2:2 = call @stage1_backward(%w, %0, %ct)
      %3 = call @stage0_backward(%x, %2#0)
      return %1, %3, %2#1
    }

A boundary is a minimum cut of the bytes that cross, near the points at which stages take the same
time. Scans over layers are cut between iterations. Within a stage ``split`` selects the residuals.
A step with an effect, or whose main path has fewer parts than stages, is an error that names it.
"""

# Modules, in the order in which a module of IR passes through them: `joint` reads the step, with
# `trips` and `rows` to cut scans, and `terms` for gradients that are sums; `flow` is the network of
# crossing values; `balance` selects the cut; `write` writes `programs`; `plan` reports the
# decisions.

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from hloom.passes.cse import Cse
from hloom.passes.drop_constraints import DropConstraints
from hloom.passes.framework.base import Pass
from hloom.passes.framework.options import option
from hloom.passes.framework.target import Target
from hloom.passes.free_constants import FreeConstants
from hloom.passes.ir import walk
from hloom.passes.ir.clone import replace_body
from hloom_steps.split.boundary import COTANGENT
from hloom_steps.stages.balance import EVEN, StageCut, StageCuts
from hloom_steps.stages.joint import PARAMETER, JointSignature
from hloom_steps.stages.plan import StagesPlan
from hloom_steps.stages.programs import StagePrograms as Programs
from hloom_steps.stages.write import stages_of

_MOST_CORRECTIONS = 2
"""The most times that an uneven step is cut again; each takes as long as the first cut."""


@dataclass(frozen=True)
class Stages(Pass):
    """Cut a step into stages."""

    name: ClassVar[str] = "stages"
    summary: ClassVar[str] = "cut a step into stages for several devices"
    example: ClassVar[str] = "stages{stages=4}"
    requires: ClassVar[tuple[type[Pass], ...]] = (DropConstraints, Cse, FreeConstants)
    once: ClassVar[bool] = True

    stages: int = option(2, doc="how many stages the step becomes", minimum=2)
    weights: bool = option(False, doc="whether gradients of parameters are programs of their own")

    remat: bool = option(True, doc="whether `remat` plans each stage before it is split")

    def plan(self, module: ir.Module, target: Target) -> StagesPlan:
        try:
            function = walk.entry_function(module)
        except walk.NoEntryError as error:
            return StagesPlan(refusal=str(error))
        signature = JointSignature.of(function)
        if not signature.cotangents or not signature.parameters:
            return StagesPlan(
                refusal=f"no argument of the program carries {PARAMETER}, or none {COTANGENT}, so "
                "that no part of it is known to be the backward pass"
            )
        if len(signature.parameters) != len(signature.gradients):
            return StagesPlan(
                refusal=f"{len(signature.parameters)} arguments carry {PARAMETER}, and "
                f"{len(signature.gradients)} results are gradients; wanted one for each"
            )
        return StagesPlan(self._even(StageCuts(module, target, self.stages), target), module)

    def _even(self, cuts: StageCuts, target: Target) -> Programs:
        """Returns the programs of the first cut; where these are uneven, those of the cut with the
        shortest longest stage."""
        cut: StageCut | None = cuts.first()
        tried: list[Programs] = []
        while cut is not None:
            found = stages_of(cut, target, weights=self.weights, remat=self.remat)
            tried.append(found)
            if found.balance <= 1 + EVEN or len(tried) > _MOST_CORRECTIONS:
                break
            cut = cuts.corrected([found.seconds(stage) for stage in range(found.count)])
        return min(tried, key=lambda each: each.longest)

    def apply(self, plan: StagesPlan) -> None:
        assert plan.module is not None
        assert plan.stages is not None
        replace_body(plan.module, plan.stages.code)
