"""Merges operations that run again with those that ran first.

In straight-line code a barrier separates the two (`merge_across_barriers`). Among loops the merged
ones are forward loops that run again only to stack residuals (`take_places`): a checkpoint around a
scan runs the scan once for its result alone, and once more in the backward pass, where it stacks
the values that the backward loop reads. The second loop computes all results of the first one. It
replaces the first one, and values in its own place equal its results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from jax.extend.mlir import ir

from ..analysis.autodiff import has_remat_name
from ..analysis.loops.counted import invariant_carries, trip_count_of
from ..analysis.purity import erase_unread, is_cheap
from ..analysis.value_numbers import ValueNumbers, has_no_effect
from ..ir import walk
from ..ir.clone import remap_operands
from ..ir.erase import erase
from ..ir.ops import BARRIER, facts_of
from ..ir.values import defining_op, is_read


def barriers_in(block: ir.Block) -> list[ir.Operation]:
    """Returns the optimization barriers of a block."""
    return [view.operation for view in block.operations if view.operation.name == BARRIER]


def merge_across_barriers(block: ir.Block) -> list[ir.Operation]:
    """Lets readers of a second computation read the first one.

    Returns the operations that replace those that ran again. Where only cheap work runs again
    nothing is done. XLA merges equal operations that no barrier separates.
    """
    if not barriers_in(block):
        return []
    numbers, apart = ValueNumbers(), ValueNumbers(through_barriers=False)
    first: dict[int, ir.Operation] = {}
    merged: list[tuple[ir.Operation, ir.Operation]] = []
    for view in block.operations:
        op = view.operation
        if not len(op.results) or not has_no_effect(op) or numbers.same(op.results[0]) is not None:
            continue
        earlier = first.setdefault(numbers.of(op.results[0]), op)
        if earlier != op and apart.of(op.results[0]) != apart.of(earlier.results[0]):
            merged.append((op, earlier))
    if all(is_cheap(op) for op, _ in merged):
        return []
    bypass([op for op, _ in merged], block)
    for op, earlier in merged:
        for result, same in zip(op.results, earlier.results, strict=True):
            result.replace_all_uses_with(same)
    kept = [earlier for _, earlier in merged]
    erase_unread([op for op, _ in merged], has_no_effect)
    return kept


def bypass(ops: Collection[ir.Operation], block: ir.Block) -> None:
    """Removes the barriers of a block that some operations read through."""
    crossed: dict[ir.Value, ir.Operation] = {}
    for op in ops:
        for value in walk.values_read(op):
            while (made := defining_op(value)) is not None and made.name == BARRIER:
                if made.block == block:
                    crossed[made.results[0]] = made
                value = made.operands[ir.OpResult(value).result_number]
    for barrier in crossed.values():
        for result, operand in zip(barrier.results, barrier.operands, strict=True):
            result.replace_all_uses_with(operand)
    erase(*crossed.values())


def take_places(
    first: ir.Block, again: ir.Block, numbers: ValueNumbers
) -> list[tuple[ir.Operation, ir.Operation]]:
    """Replaces loops of ``first`` by clones of loops of ``again`` that do all of their work.

    Returns each loop of ``again`` with its clone, which is in the first loop's place. Where the
    blocks are one, the loop that runs again is the later one. The numbers become invalid where
    there is such a loop.
    """
    done, gone = [], []
    earlier = _loops(first)
    for loop in reversed(_loops(again)):
        for candidate in earlier:
            if candidate == loop or not _is_before(candidate, loop):
                continue
            partners = _partners(candidate, loop, numbers)
            clone = None if partners is None else _clone_before(candidate, loop, numbers)
            if partners is None or clone is None:
                continue
            for number, partner in partners.items():
                candidate.results[number].replace_all_uses_with(clone.results[partner])
            earlier.remove(candidate)
            gone.append(candidate)
            done.append((loop, clone))
            break
    # Only now: the bindings identify values by their address, which a new one may get.
    erase(*gone)
    return done


def _loops(block: ir.Block) -> list[ir.Operation]:
    return [
        view.operation
        for view in block.operations
        if view.operation.name == "stablehlo.while"
        and has_no_effect(view.operation)
        and not has_remat_name(view.operation)
        and trip_count_of(view.operation)
    ]


def _is_before(one: ir.Operation, other: ir.Operation) -> bool:
    return one.block != other.block or one.is_before_in_block(other)


def _partners(
    part: ir.Operation, whole: ir.Operation, numbers: ValueNumbers
) -> dict[int, int] | None:
    """Returns, by result of a loop that is read, the result of another one that it equals.

    None where a result has none, and where the other loop has no more results than the first one.
    """
    read = [n for n, result in enumerate(part.results) if is_read(result)]
    if not read or len(whole.results) <= len(part.results):
        return None
    types = {result.type for result in whole.results}
    if any(part.results[number].type not in types for number in read):
        return None
    if trip_count_of(part) != trip_count_of(whole):
        return None
    return _equal_carries(part, whole, read, numbers)


def _equal_carries(
    part: ir.Operation, whole: ir.Operation, read: Iterable[int], numbers: ValueNumbers
) -> dict[int, int] | None:
    """Returns, by carry of a loop that is ``read``, one of another loop that equals it in every
    iteration; None where one has none.

    An invariant one equals its initial value. Other carries that start equal are assumed to stay
    so, until one iteration separates some of them.
    """
    loops, count = (part, whole), len(part.operands)
    classes = [numbers.of(operand) for loop in loops for operand in loop.operands]
    around: ValueNumbers | None = None
    bodies = [loop.regions[1].blocks[0] for loop in loops]
    arguments = [argument for body in bodies for argument in body.arguments]
    returned = [value for body in bodies for value in walk.terminator(body).operands]
    while {classes[number] for number in read} <= {*classes[count:]}:
        if around is None:
            around = numbers.copy()
            for loop, body in zip(loops, bodies, strict=True):
                for number in invariant_carries(loop):
                    around.equate(body.arguments[number], loop.operands[number])
        inside = around.copy()
        first: dict[int, ir.Value] = {}
        for argument, same in zip(arguments, classes, strict=True):
            inside.equate(argument, first.setdefault(same, argument))
        finer: dict[tuple[int, int], int] = {}
        split = [
            finer.setdefault((same, inside.of(value)), len(finer))
            for same, value in zip(classes, returned, strict=True)
        ]
        if len(finer) == len(set(classes)):
            return {number: classes.index(classes[number], count) - count for number in read}
        classes = split
    return None


def _clone_before(
    anchor: ir.Operation, loop: ir.Operation, numbers: ValueNumbers
) -> ir.Operation | None:
    """Returns a clone of a loop at an earlier place, from equal operands there, if any."""
    there = _values_before(anchor, numbers)
    known: dict[ir.Value, ir.Value] = {}
    made: list[ir.Operation] = []
    for value in dict.fromkeys(walk.values_read(loop)):
        if not _provide(value, there, numbers, made, known):
            return None
    with ir.InsertionPoint(anchor):
        for op in [*made, loop]:
            clone = op.clone().operation
            remap_operands(clone, known)
            known.update(zip(op.results, clone.results, strict=True))
    return clone


def _values_before(anchor: ir.Operation, numbers: ValueNumbers) -> dict[int, ir.Value]:
    """Returns, by number, the values of a block that an operation of it can read."""
    there: dict[int, ir.Value] = {}
    for argument in anchor.block.arguments:
        there.setdefault(numbers.of(argument), argument)
    for value in _results_before(anchor):
        there.setdefault(numbers.of(value), value)
    return there


def _results_before(anchor: ir.Operation) -> Iterable[ir.Value]:
    for view in anchor.block.operations:
        if view.operation == anchor:
            return
        yield from view.operation.results


def _provide(
    value: ir.Value,
    there: dict[int, ir.Value],
    numbers: ValueNumbers,
    made: list[ir.Operation],
    known: dict[ir.Value, ir.Value],
) -> bool:
    """Whether a value is available at the earlier place: it exists, or is a constant to clone."""
    if value in known:
        return True
    found = there.get(numbers.of(value))
    if found is not None:
        known[value] = found
        return True
    op = defining_op(value)
    if op is None or not facts_of(op.name).light:
        return False
    if not all(_provide(operand, there, numbers, made, known) for operand in op.operands):
        return False
    if op not in made:
        made.append(op)
    return True
