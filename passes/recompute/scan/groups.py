"""Finds the loops of a block that are planned together, since stacks connect them.

Two kinds of connection make one problem of several loops. Several loops may read the stacks of one
loop: it saves values for all of them. And a loop that reads stacks may stack for others itself
(second derivatives, inner steps of an optimizer): the recomputation of the last loop of such a
chain starts from the values that the first one stored, at the same slice. Clones may read values
that a backward body computes by itself, as under a checkpoint.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace

from jax.extend.mlir import ir

from ...analysis.autodiff import has_remat_name, is_rematerialized
from ...analysis.device import DeviceView
from ...analysis.loops.counted import affine_in
from ...analysis.loops.paired import may_compute_again, paired
from ...analysis.loops.pairs import LoopPair, closed, loop_pairs
from ...analysis.program import Program
from ...analysis.purity import CHEAP_KINDS
from ...analysis.value_numbers import ValueNumbers
from ...ir import walk
from .bodies import ScanBody, inner_pairs

PairsIn = Callable[[ir.Block], list[LoopPair]]
"""`loop_pairs`, cached where it is asked about one block from each loop in it."""


def scan_groups(
    block: ir.Block, min_bytes: int, device: DeviceView, pairs_in: PairsIn = loop_pairs
) -> list[list[ScanBody]]:
    """Returns the bodies of each group of loops of a block, those of earlier loops first."""
    free = _free(block, pairs_in)
    chosen = [_chosen(found) for found in free if _is_large(found, min_bytes, device)]
    around = numbers_around()
    return [_linked(_with_chains(group), device, around) for group in _connected(chosen)]


def _free(block: ir.Block, pairs_in: PairsIn) -> list[list[LoopPair]]:
    """Returns, by forward loop, pairs not rematerialized before that share no loop with outer ones.

    A stack for a loop around both is in memory in each iteration of that loop.
    """
    found = pairs_in(block)
    taken = _planned_from_outside(block, pairs_in) if found else set[Hashable]()
    by_forward: dict[Hashable, list[LoopPair]] = {}
    for pair in found:
        forward, backward = walk.key(pair.forward.op), walk.key(pair.backward.op)
        if not _is_done(pair) and forward not in taken and backward not in taken:
            by_forward.setdefault(forward, []).append(pair)
    return [pairs for each in by_forward.values() if (pairs := closed(each))]


def _is_done(pair: LoopPair) -> bool:
    return (
        has_remat_name(pair.forward.op)
        or has_remat_name(pair.backward.op)
        or is_rematerialized(pair.backward.body)
    )


def _planned_from_outside(block: ir.Block, pairs_in: PairsIn) -> set[Hashable]:
    """Returns the loops of a loop's body that are in pairs inside of a pair of loops."""
    loop = next(walk.ancestors(block), None)
    if loop is None or loop.name != "stablehlo.while":
        return set()
    return {
        walk.key(each.op)
        for outer in pairs_in(loop.block)
        if loop in (outer.forward.op, outer.backward.op) and not _is_done(outer)
        for pair in inner_pairs(outer)
        for each in (pair.forward, pair.backward)
    }


def _is_large(pairs: Sequence[LoopPair], min_bytes: int, device: DeviceView) -> bool:
    """Whether the pairs have a large enough residual that may be dropped, over all iterations."""
    return any(
        (device.bytes_of(residual.stored) or 0) * max(pair.forward.trip_count, 1) >= min_bytes
        for pair in pairs
        for residual in pair.residuals
    )


def _chosen(pairs: list[LoopPair]) -> list[LoopPair]:
    """Returns the pairs of a forward loop to plan: all, or only the one that has pairs inside."""
    if len(pairs) > 1:
        for pair in sorted(pairs, key=lambda pair: not pair.reversed_):
            if (alone := closed([pair])) and inner_pairs(alone[0]):
                return alone
    return pairs


def _connected(by_forward: Iterable[list[LoopPair]]) -> list[list[list[LoopPair]]]:
    """Returns the pairs of each forward loop, in groups that share no loop."""
    groups: list[tuple[set[Hashable], list[list[LoopPair]]]] = []
    for pairs in by_forward:
        loops = {walk.key(loop.op) for p in pairs for loop in (p.forward, p.backward)}
        joined = [pairs]
        apart = []
        for others, group in groups:
            if loops & others:
                loops |= others
                joined = group + joined
            else:
                apart.append((others, group))
        groups = [*apart, (loops, joined)]
    return [sorted(group, key=_Place) for _, group in groups]


@functools.total_ordering
class _Place:
    """The position of the forward loop of some pairs in its block."""

    def __init__(self, pairs: list[LoopPair]) -> None:
        self.loop = pairs[0].forward.op

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Place) and self.loop == other.loop

    def __lt__(self, other: _Place) -> bool:
        return self.loop.is_before_in_block(other.loop)


def _with_chains(group: list[list[LoopPair]]) -> list[list[LoopPair]]:
    """Returns the group with pairs of the first and the last loop of each chain.

    These pairs have no residual of their own.
    """
    for middle in reversed(group):
        for first in group:
            into = _between(first, middle[0].forward.op)
            if into is None or (len(first) == 1 and inner_pairs(first[0])):
                continue
            for last in middle:
                missing = _between(first, last.backward.op) is None
                if missing and _stays_in_step(into, last):
                    over = replace(into, backward=last.backward, index=last.index, residuals=())
                    turned = into.reversed_ != last.reversed_
                    first.append(replace(over, reversed_=turned))
    return group


def _between(pairs: Iterable[LoopPair], backward: ir.Operation) -> LoopPair | None:
    return next((pair for pair in pairs if pair.backward.op == backward), None)


def _stays_in_step(into: LoopPair, last: LoopPair) -> bool:
    """Whether a loop writes at the index at which it reads: the slices of a chain are one index.

    ``into`` is the pair in which it reads, ``last`` the one in which it writes.
    """
    middle = last.forward
    if into.forward.is_open or middle.is_open:
        return False
    read = affine_in(into.index, middle.body.arguments[middle.counter])
    return read == (last.slope, last.offset) and into.index.type == last.index.type


def _linked(
    group: Sequence[list[LoopPair]], device: DeviceView, around: ValueNumbers
) -> list[ScanBody]:
    """Returns the bodies of a group, with the links between them."""
    bodies = [ScanBody(tuple(pairs), device) for pairs in group]
    if len(bodies) == 1 and len(bodies[0].pairs) == 1 and not bodies[0].children:
        bodies[0].again = computed_again(bodies[0].pairs[0], bodies[0].graph, around)
    by_loop = {walk.key(body.forward.op): body for body in bodies}
    for first in bodies:
        for into in first.pairs:
            middle = by_loop.get(walk.key(into.backward.op))
            if middle is not None:
                _link(first, into, middle)
    return bodies


def _link(first: ScanBody, into: LoopPair, middle: ScanBody) -> None:
    """Records the values of the first loop that the middle loop of a chain reads."""
    lasts = [(last, _between(first.pairs, last.backward.op)) for last in middle.pairs]
    in_step = all(
        over is not None and over.index == last.index and _stays_in_step(into, last)
        for last, over in lasts
    )
    for residual in into.residuals:
        for read in residual.reads:
            value = middle.graph.index[read]
            if in_step:
                middle.links[value] = first, first.graph.index[residual.stored]
            else:
                middle.held.add(value)


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
