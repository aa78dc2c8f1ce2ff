"""Drop the sharding constraints that say what Shardy's propagation says anyway.

On a mesh of explicit axes JAX writes a constraint after every operation, which separates
operations that analyses match together.

Before::

    %0 = stablehlo.tanh %x : tensor<8x4xf32>              // %x: <@mesh, [{"d"}, {}]>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"d"}, {}]> : tensor<8x4xf32>
    %2 = sdy.sharding_constraint %1 <@mesh, [{}, {}]> : tensor<8x4xf32>

After::

    %0 = stablehlo.tanh %x : tensor<8x4xf32>
    %2 = sdy.sharding_constraint %0 <@mesh, [{}, {}]> : tensor<8x4xf32>

A constraint stays that moves data, leaves a sum to be done, names a single device, or is in a
function that is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from .analysis.shardings.implied import constraints_of, implied_constraints
from .framework.base import Pass, PlanBase
from .framework.tables import Fact
from .framework.target import Target
from .framework.text import pluralize
from .inline import Inline
from .ir.erase import replace


@dataclass(frozen=True)
class DropConstraintsPlan(PlanBase):
    """The constraints to drop, and the number of all constraints."""

    dropped: tuple[ir.Operation, ...]
    count: int

    @property
    def empty(self) -> bool:
        return not self.dropped

    def summary(self) -> str:
        of = pluralize(self.count, "sharding constraint")
        return f"{len(self.dropped)} of {of} dropped: propagation says the same"

    def facts(self) -> tuple[Fact, ...]:
        dropped = Fact("sharding constraints dropped", len(self.dropped))
        return (dropped, Fact("sharding constraints", self.count))


@dataclass(frozen=True)
class DropConstraints(Pass):
    """Drop every sharding constraint that propagation satisfies without it."""

    name: ClassVar[str] = "drop-constraints"
    summary: ClassVar[str] = "drop sharding constraints that propagation implies"
    example: ClassVar[str] = "drop-constraints"
    requires: ClassVar[tuple[type[Pass], ...]] = (Inline,)
    preparation: ClassVar[bool] = True

    def plan(self, module: ir.Module, target: Target) -> DropConstraintsPlan:
        constraints = constraints_of(module)
        dropped = tuple(implied_constraints(module, constraints))
        return DropConstraintsPlan(dropped, len(constraints))

    def apply(self, plan: DropConstraintsPlan) -> None:
        for constraint in plan.dropped:
            replace(constraint, constraint.operands)
