"""Carries of loops that are sums."""

from __future__ import annotations

from collections.abc import Mapping

from jax.extend.mlir import ir

from .counted import CountedLoop


def additions(loop: CountedLoop, number: int) -> Mapping[ir.Value, int] | None:
    """Returns the additions of a carry that the body only adds to.

    They map the result of each to the operand that is the partial sum. None for another carry.
    """
    found: dict[ir.Value, int] = {}
    value: ir.Value = loop.body.arguments[number]
    while True:
        uses = list(value.uses)
        if len(uses) != 1:
            return None
        [use] = uses
        op = use.owner.operation
        if op == loop.returned:
            return found if use.operand_number == number and found else None
        if op.name != "stablehlo.add" or op.block != loop.body:
            return None
        value = op.results[0]
        found[value] = use.operand_number
