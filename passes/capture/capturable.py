"""Decides which operations of a program a CUDA graph can hold, and gives reasons for the others.

A graph holds work that the device does without the host: kernels, copies on the device, calls of
libraries that only launch kernels, and loops and branches that consist of such work. Which
operations become such work was measured on compiles for an H100, with jaxlib 0.10.2 and 0.12.0.1
(2026-11-21): tests/passes/capture/test_h100.py holds XLA to it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from jax.extend.mlir import ir

from ..analysis.loops.counted import trip_count_of
from ..ir.collectives import is_collective
from ..ir.custom_calls import OWN, PLACEMENT, is_host_callback, is_typed_ffi, target_of
from ..ir.ops import facts_of
from ..ir.walk import values_read

LOOPS = ("auto", "on", "off")
"""Loops and branches in graphs: those that the host would have to read the end of, all, none."""


@dataclass(frozen=True)
class Rules:
    """The operations that a graph may hold although XLA leaves them out by default.

    Attributes:
      loops: loops and branches, as conditional nodes: one of `LOOPS`.
      collectives: exchanges between devices.
    """

    loops: str = "auto"
    collectives: bool = False

    @property
    def inside(self) -> Rules:
        """Returns the rules inside of a loop or branch that is captured: any loop is."""
        return dataclasses.replace(self, loops="on") if self.loops == "auto" else self


@dataclass(frozen=True)
class CaptureObstacle:
    """The reason why an operation is not captured.

    Attributes:
      op: the operation itself, or the first one inside it that cannot be captured.
      reason: the reason for users, e.g. "a host callback".
    """

    op: ir.Operation
    reason: str


_NO_WORK = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"})
"""Targets of custom calls that only inform XLA and become no kernels."""

HOST_COPY = "a copy between device and host"
"""Why a placement is not captured, nor any loop with one."""


def obstacle(op: ir.Operation, rules: Rules) -> CaptureObstacle | None:
    """Returns why the operation, with all inside it, is not captured; None where it is."""
    reason = _reason(op, rules)
    if reason is not None:
        return CaptureObstacle(op, reason)
    facts = facts_of(op.name)
    if not facts.holds_code:
        return None
    inside = rules.inside if facts.branches else rules
    for region in op.regions:
        for block in region.blocks:
            for view in block.operations:
                found = obstacle(view.operation, inside)
                if found is not None:
                    return found
    if rules.loops == "auto" and trip_count_of(op) is not None:
        return CaptureObstacle(op, "a counted loop, which runs without the host, and loops=auto")
    return None


def _reason(op: ir.Operation, rules: Rules) -> str | None:
    """Returns why the operation itself is not captured, whatever is inside it."""
    if is_collective(op):
        return None if rules.collectives else "a collective, and collectives=off"
    if (target := target_of(op)) is not None:
        return _reason_of_custom_call(op, target)
    facts = facts_of(op.name)
    if facts.no_capture is not None:
        return facts.no_capture
    if facts.branches and rules.loops == "off":
        return "a loop or branch, and loops=off"
    # The operations of a region of code are checked one by one.
    read = op.operands if facts.holds_code else values_read(op)
    for value in (*read, *op.results):
        if not _can_pass(value.type):
            return f"a value of type {value.type}"
    types = [r.type for r in op.results if isinstance(r.type, ir.RankedTensorType)]
    if not all(type_.has_static_shape for type_ in types):
        return "a dynamic shape"
    return None


def _can_pass(type_: ir.Type) -> bool:
    """Whether a value can go into a composite, or come out of one: a future or an index cannot."""
    if isinstance(type_, ir.RankedTensorType):
        return not isinstance(type_.element_type, ir.IndexType)
    return isinstance(type_, ir.TupleType) or str(type_) == "!stablehlo.token"


def _reason_of_custom_call(op: ir.Operation, target: str) -> str | None:
    if target == PLACEMENT:
        return HOST_COPY
    # hloom's own kernels have the command-buffer trait.
    if target in _NO_WORK or target.startswith(("xla.sdy.", OWN)):
        return None
    if is_host_callback(op):
        return "a host callback"
    if not is_typed_ffi(op):
        return f"a legacy custom call, @{target}"
    return f"a custom call that is not known to have the command-buffer trait, @{target}"
