"""Lowers a barrier on the CPU between devices of several processes to an exchange of tokens.

Before:

    %t1, %y = stablehlo.composite "hloom.barrier" %t0, %x {…}

After, for groups of four:

    %after = stablehlo.composite "hloom.after_all" %t0, %x
    %row = stablehlo.broadcast_in_dim %after : tensor<4xui32>
    %all = "stablehlo.all_to_all"(%row) : tensor<4xui32>
    %t1 = stablehlo.reduce(%all) applies stablehlo.maximum
    %y = stablehlo.composite "hloom.add_dependency" %t1, %x

An all-reduce would suffice for the order. But XLA's transport (gloo) reports a dead process only to
the processes that receive from it, and an all-reduce is a ring: a process whose neighbour is alive
would wait for half an hour. In an all-to-all every process receives from every other one, so that
all of them fail as soon as one is killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from hloom.passes.ir.build import broadcast, compare, constant, reduce
from hloom.passes.ir.build_collectives import exchanged
from hloom.passes.ir.marks import MarkBuilder, Rendezvous

from .kernel_calls import Choice, Decomposition, Rewrite, Site


def choose_barrier(site: Site, where: Rendezvous) -> Choice:
    """The exchange; the barrier's decomposition if no all-to-all can express it."""
    if not site.is_manual:
        return Decomposition("an all-reduce of the token: the partitioner has yet to split")
    if any(member < 0 for group in where.groups for member in group):
        return Decomposition("an all-reduce of the token: the groups differ in size")
    return Rewrite(
        "an exchange of tokens, between processes, that waits as long as XLA's collectives do",
        partial(_exchange, site, where),
    )


def _exchange(site: Site, where: Rendezvous, mark: ir.Operation) -> Sequence[ir.Value]:
    token, *values = mark.operands
    passed = values[: len(mark.results) - 1]
    with ir.InsertionPoint(mark):
        token = MarkBuilder(site.module).after_all(token, values)
        if len(where.groups[0]) > 1:
            token = _largest(token, where)
        return [token, *MarkBuilder(site.module).add_dependency(token, passed)]


def _largest(token: ir.Value, where: Rendezvous) -> ir.Value:
    """Returns the largest token of the members, which all send theirs to all."""
    row = [len(where.groups[0])]
    zero = constant(token.type, 0)
    # XLA cannot prove that a member sends the same to all others, so it removes nothing.
    never = compare(token, zero, "NE")
    mine = broadcast(stablehlo.partition_id(), row, [])
    different = stablehlo.add(mine, stablehlo.iota(mine.type, 0))
    sent = stablehlo.select(never, different, broadcast(token, row, []))
    return reduce(exchanged(sent, where.groups, where.channel), [0], zero, stablehlo.maximum)
