"""Leaves the stacks of rewritten loops uninitialised where those of the original loops were."""

from __future__ import annotations

from jax.extend.mlir import ir

from ..framework.target import Target
from ..ir.marks import UNINITIALIZED, marks_in
from ..recompute.plan import RematPlan, apply_plan
from ..uninitialized_stacks import UninitializedStacks


def leaves_stacks(module: ir.Module) -> bool:
    """Whether a stack of the module starts uninitialised."""
    return any(True for _ in marks_in(module.operation, UNINITIALIZED))


def write_plan(module: ir.Module, plan: RematPlan) -> None:
    """Writes a plan's recomputation into a module. Rewritten loops fill their stacks; those that
    are proved to be overwritten start uninitialised if the module had such stacks before."""
    is_left = leaves_stacks(module)
    apply_plan(plan)
    if is_left:
        step = UninitializedStacks()
        step.apply(step.plan_after(module, Target(), ()))
