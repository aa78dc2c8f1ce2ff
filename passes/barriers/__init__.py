"""Put barriers around kernels that access their peers' memory, and order all synchronization.

The attribute ``hloom.collective`` of a custom call, or ``hloom.declare_collective`` for all calls
of a target, states what the kernel needs: ``entry``, ``exit=after`` or ``exit=module``, and
``groups=[[0,1],[2,3]]``.

Before::

    %0 = stablehlo.custom_call @write(%x) {hloom.collective = "entry exit=after"}
    %1 = "stablehlo.all_reduce"(%0)

After::

    %t = stablehlo.composite "hloom.token"
    %0:2 = stablehlo.composite "hloom.barrier" %t, %x {kind = "entry"}
    %1 = stablehlo.custom_call @write(%0#1) {hloom.collective = "entry exit=after"}
    %2:2 = stablehlo.composite "hloom.barrier" %0#0, %1, %0#1 {kind = "exit"}
    %3 = stablehlo.composite "hloom.add_dependency" %2#0, %2#1
    %4 = "stablehlo.all_reduce"(%3)

A barrier is left out where another operation synchronizes its peers. One token orders all barriers
and all of XLA's collectives, but those that XLA's partitioner inserts outside of
``jax.shard_map``. A program without such kernels is unchanged.
"""

# Modules, in the order in which a module of IR passes through them: `collect` reads the kernels and
# collectives of each block; `placement` finds the fewest barriers, and pins (barriers of one
# partition that keep buffers in place) next to collectives; `plan` reports them; `rewrite` writes
# them. XLA keeps no order but that of data, so the token is a carry of loops and an operand of
# calls.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from ..framework.base import Pass
from ..framework.options import Duration, option
from ..framework.target import Target
from ..inline import Inline
from .collect import Role, SyncProgram, has_marks, read_sync_program
from .placement import Wanted, plan_barriers
from .plan import BarriersPlan
from .rewrite import apply_plan


@dataclass(frozen=True)
class Barriers(Pass):
    """Put barriers around kernels that access their peers, and order all synchronization."""

    name: ClassVar[str] = "barriers"
    summary: ClassVar[str] = "let kernels that access other devices wait, in one order"
    example: ClassVar[str] = "barriers{timeout=60s}"
    requires: ClassVar[tuple[type[Pass], ...]] = (Inline,)
    once: ClassVar[bool] = True
    not_on: ClassVar[Mapping[str, str]] = {
        "tpu": "XLA:TPU starts the collectives of a program in one order, the same on every "
        "device, and kernels there wait for their peers by semaphores of their own"
    }

    entry: bool = option(True, doc="put barriers before kernels that need one")
    exit: bool = option(True, doc="put barriers behind kernels that need one")
    post_module: bool = option(
        True, doc="put a barrier at the end where a kernel lets its exit wait until then"
    )
    order: str = option(
        "all",
        doc="what is ordered with the kernels: all of XLA's collectives, or barriers alone, where "
        "you know that the two never wait for each other",
        choices=("all", "barriers"),
    )
    timeout: Duration = option(
        Duration(60_000),
        doc="the wait at a barrier after which it is an error, or, in a GPU's kernel, a warning",
        minimum=1,
    )

    def plan(self, module: ir.Module, target: Target) -> BarriersPlan:
        if has_marks(module):
            return BarriersPlan(module, SyncProgram(1, ()), ())
        program = read_sync_program(module, ordered_collectives=self.order)
        if not program.sequences:
            return BarriersPlan(module, program, ())
        wanted = {Role.ENTRY: self.entry, Role.EXIT: self.exit, Role.MODULE: self.post_module}
        roles = frozenset(role for role, is_wanted in wanted.items() if is_wanted)
        return plan_barriers(module, program, Wanted(roles, self.timeout))

    def apply(self, plan: BarriersPlan) -> None:
        apply_plan(plan)
