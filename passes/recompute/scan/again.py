"""Finds values that a backward body computes by itself, as under a checkpoint: clones may read
them."""

from __future__ import annotations

import math
from collections import defaultdict

from jax.extend.mlir import ir

from ...analysis.loops.paired import may_compute_again, paired
from ...analysis.loops.pairs import LoopPair
from ...analysis.program import Program
from ...analysis.purity import CHEAP_KINDS
from ...analysis.value_numbers import ValueNumbers
from ...ir import walk


def numbers_around() -> ValueNumbers:
    """Returns numbers of the values around loops: one object for all pairs of a block, since
    numbering them anew for each pair takes time quadratic in the number of pairs."""
    return ValueNumbers(through_constraints=True)


def computed_again(pair: LoopPair, graph: Program, around: ValueNumbers) -> dict[int, ir.Value]:
    """Maps values of a forward body to equal values of the backward body that are computed in time.

    Values that the forward body stacks are left out, and so are cheap ones: XLA fuses or merges
    them. In time is before every operation that may want the value: those that read a residual that
    is computed from it. A value with a sharding known to differ is not equal: its readers would
    need an exchange.
    """
    if not may_compute_again(pair):
        return {}
    numbers = paired(around, pair)
    ops = [view.operation for view in pair.backward.body.operations]
    place = {walk.key(op): number for number, op in enumerate(ops)}
    equal: defaultdict[int, list[tuple[int, ir.Value]]] = defaultdict(list)
    for number, op in enumerate(ops):
        for result in op.results:
            equal[numbers.of(result)].append((number, result))
    wanted = _wanted_from(pair, graph, place)
    lie_alike = graph.device.shardings.lie_alike
    stored = {numbers.of(residual.stored) for residual in pair.residuals}
    found: dict[int, ir.Value] = {}
    for position, kind in enumerate(graph.kinds):
        if kind in CHEAP_KINDS:
            continue
        for value in graph.results[position]:
            there = graph.values[value]
            number = numbers.of(there)
            if number in stored:
                continue
            same = next(
                (
                    one
                    for made, one in equal.get(number, ())
                    if made < wanted[value] and one.type == there.type and lie_alike(one, there)
                ),
                None,
            )
            if same is not None:
                found[value] = same
    return found


def _wanted_from(pair: LoopPair, graph: Program, place: dict[object, int]) -> list[float]:
    """Returns, by value of the forward body, the place of the first operation of the backward body
    that reads a residual computed from it; infinite where none does."""
    wanted = [math.inf] * len(graph.sizes)
    for residual in pair.residuals:
        stored = graph.index[residual.stored]
        for use in (use for read in residual.reads for use in read.uses):
            reader = walk.ancestor_in(pair.backward.body, use.owner.operation)
            wanted[stored] = min(wanted[stored], place[walk.key(reader)])
    for position in reversed(range(len(graph.ops))):
        made = min((wanted[value] for value in graph.results[position]), default=math.inf)
        for value in graph.operands[position]:
            wanted[value] = min(wanted[value], made)
    return wanted
