"""Put barriers around kernels that access their peers' memory, and one order through all of them.

A kernel that reads its peers' buffers may start only once these are there, and nothing may be
written to a buffer that a peer still reads. Which kernels do that, and what each needs, says the
attribute ``hloom.collective`` of the custom call (a frontend attribute will do, as JAX's
``set_xla_metadata`` writes it), or `hloom.declare_collective`:

- ``entry``: a barrier before it;
- ``exit=after``: a barrier behind it, before anything reads its results;
- ``exit=module``: one before the program ends, or the iteration of the loop around it;
- ``groups=[[0,1],[2,3]]``: the partitions that are peers, all of them where nothing is said.

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

A barrier meets only the peers of its kernel, and it is left out where one is there already: at the
barrier of another kernel, when nothing between the two needs a second one, or at one of XLA's
collectives over the same partitions or more, of a kind from which nobody leaves before all have
come: a reduction, a gather, an all-to-all. Beside such a collective stand pins, which keep
buffers where they are and wait for nobody.

Two barriers that nothing orders may be met in different orders by two devices, and then both wait
for ever; so may a barrier and one of XLA's collectives. Therefore one token goes through all of
them, in the order of the text: through loops as one more carry, through conditionals, manual
computations and the calls that are left as one more result. It is data, since XLA keeps no other
order. ``jax.lax.ragged_all_to_all`` becomes part of that order as well.

Nothing changes in a program without such kernels; XLA keeps its own collectives in order. What
XLA's partitioner adds outside of ``jax.shard_map`` is not there yet when this pass runs, and is in
no order with the rest.

Source: XLA's collective kernels synchronize at entry and exit in this way; the fewest barriers are
the fewest points that stab all intervals, by the greedy rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jax.extend.mlir import ir

from hloom.passes.barriers.collect import SyncProgram, has_marks, read_sync_program
from hloom.passes.barriers.intervals import Role
from hloom.passes.barriers.plan import BarriersPlan
from hloom.passes.barriers.rewrite import apply_plan
from hloom.passes.barriers.solve import Wanted, plan_barriers
from hloom.passes.framework.base import Pass, Target
from hloom.passes.framework.options import Duration, option
from hloom.passes.inline import Inline


@dataclass(frozen=True)
class Barriers(Pass):
    """Put barriers around kernels that access their peers, and everything in one order."""

    name: ClassVar[str] = "barriers"
    summary: ClassVar[str] = "let kernels that access other devices wait for them, in one order"
    example: ClassVar[str] = "barriers{timeout=60s}"
    requires: ClassVar[tuple[type[Pass], ...]] = (Inline,)
    once: ClassVar[bool] = True

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
