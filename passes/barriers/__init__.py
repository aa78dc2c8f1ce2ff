"""Put barriers around kernels that access their peers' memory, and order all synchronization.

A kernel that reads its peers' buffers may start only after the peers have written them, and a
buffer may be reused only after all peers have read it. The attribute ``hloom.collective`` of a
custom call states the kernel's needs (also as a frontend attribute, which JAX's
``set_xla_metadata`` writes); `hloom.declare_collective` states them for all calls of a target:

- ``entry``: a barrier before the kernel;
- ``exit=after``: a barrier after the kernel, before anything reads its results;
- ``exit=module``: a barrier before the end of the program, or of the iteration of the loop around;
- ``groups=[[0,1],[2,3]]``: the partitions that are peers; all partitions if left out.

Before::

    %0 = stablehlo.custom_call @write(%x) {hloom.collective = "entry exit=after"}
    %1 = "stablehlo.all_reduce"(%0)
    return %1

After::

    %t = stablehlo.composite "hloom.token"
    %0:2 = stablehlo.composite "hloom.barrier" %t, %x {kind = "entry"}
    %1 = stablehlo.custom_call @write(%0#1) {hloom.collective = "entry exit=after"}
    %2:2 = stablehlo.composite "hloom.barrier" %0#0, %1, %0#1 {kind = "exit"}
    %3 = stablehlo.composite "hloom.add_dependency" %2#0, %2#1
    %4 = "stablehlo.all_reduce"(%3)
    %5 = stablehlo.composite "hloom.after_all" %2#0, %4
    return %4

A barrier synchronizes only the peers of its kernel. It is left out if another operation
synchronizes them at that point: the barrier of another kernel, or one of XLA's collectives over at
least these partitions of a kind that no partition leaves before all have arrived (a reduction, a
gather, an all-to-all). Next to such a collective the pass places a pin: a barrier of each partition
alone, which keeps buffers in place and does not wait.

Two devices may run two unordered barriers, or a barrier and one of XLA's collectives, in different
orders, and then deadlock. Therefore one token passes through all of them in program order: through
loops as a carry, through conditionals, manual computations and remaining calls as an operand or a
result. The token is data, because data dependencies are the only order that XLA keeps.
``jax.lax.ragged_all_to_all`` becomes part of this order as well.

A program without such kernels does not change: XLA orders its own collectives. Collectives that
XLA's partitioner inserts outside of ``jax.shard_map`` do not exist yet when this pass runs, and
stay unordered.

The package, in the order in which a module passes through it:

- ``collect``: the kernels and collectives of each block, as nested sequences;
- ``placement``: each block's needs from its kernels, the fewest barrier positions for them, and the
  pins next to collectives;
- ``plan``: the barriers as a plan, for users and dumps;
- ``rewrite``: the plan, written into the module.

Source: XLA's collective kernels synchronize at entry and exit in this way; the fewest barriers are
the fewest points that stab all intervals, by the greedy rule.
"""

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
        doc="what is in one order with the kernels: all of XLA's collectives, or only barriers and "
        "kernels, where you know that the two never wait for each other",
        choices=("all", "barriers"),
    )
    timeout: Duration = option(
        Duration(60_000),
        doc="how long a device waits for the others at a barrier before it is an error, or, where "
        "a GPU waits, a warning",
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
