"""Leaves the stacks of rewritten loops uninitialised where those of the original loops were."""

from __future__ import annotations

from collections.abc import Iterable

from jax.extend.mlir import ir

from ..framework.target import Target
from ..ir import walk
from ..ir.marks import UNINITIALIZED, mark_name
from ..recompute.plan import RematPlan, apply_plan
from ..uninitialized_stacks import UninitializedStacks


def leaves_stacks(operations: Iterable[ir.Operation]) -> bool:
    """Whether a stack of a module's operations starts uninitialised."""
    return any(mark_name(op) == UNINITIALIZED for op in operations)


def write_plan(module: ir.Module, plan: RematPlan) -> None:
    """Writes a plan's recomputation into a module. Rewritten loops fill their stacks; those that
    are proved to be overwritten start uninitialised if the module had such stacks before."""
    is_left = leaves_stacks(walk.operations(module.operation))
    apply_plan(plan)
    if is_left:
        step = UninitializedStacks()
        step.apply(step.plan_after(module, Target(), ()))
