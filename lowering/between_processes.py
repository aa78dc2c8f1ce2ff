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

from hloom.passes.ir.marks import MarkBuilder, Rendezvous

from .kernel_calls import Choice, Decomposition, Rewrite, Site, paste


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
        [token] = paste(mark, _exchange_text(where), [token])
    with ir.InsertionPoint(mark):
        return [token, *MarkBuilder(site.module).add_dependency(token, passed)]


def _exchange_text(where: Rendezvous) -> str:
    members = len(where.groups[0])
    rows = ", ".join(f"[{', '.join(map(str, group))}]" for group in where.groups)
    row = f"tensor<{members}xui32>"
    # XLA cannot prove that a member sends the same to all others, so it removes nothing.
    return f"""
func.func private @exchange(%token: tensor<ui32>) -> tensor<ui32> {{
  %zero = stablehlo.constant dense<0> : tensor<ui32>
  %never = stablehlo.compare NE, %token, %zero : (tensor<ui32>, tensor<ui32>) -> tensor<i1>
  %partition = stablehlo.partition_id : tensor<ui32>
  %mine = stablehlo.broadcast_in_dim %partition, dims = [] : (tensor<ui32>) -> {row}
  %numbers = stablehlo.iota dim = 0 : {row}
  %different = stablehlo.add %mine, %numbers : {row}
  %tokens = stablehlo.broadcast_in_dim %token, dims = [] : (tensor<ui32>) -> {row}
  %sent = stablehlo.select %never, %different, %tokens : tensor<i1>, {row}
  %received = "stablehlo.all_to_all"(%sent) <{{
    channel_handle = #stablehlo.channel_handle<handle = {where.channel}, type = 1>,
    concat_dimension = 0 : i64, split_count = {members} : i64, split_dimension = 0 : i64,
    replica_groups = dense<[{rows}]> : tensor<{len(where.groups)}x{members}xi64>
  }}> : ({row}) -> {row}
  %all = stablehlo.reduce(%received init: %zero) applies stablehlo.maximum
    across dimensions = [0] : ({row}, tensor<ui32>) -> tensor<ui32>
  return %all : tensor<ui32>
}}"""
