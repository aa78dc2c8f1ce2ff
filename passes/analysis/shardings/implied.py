"""Sharding constraints that propagation satisfies without them.

All of them are left out together, and propagation, run on a clone, must still satisfy each of them.
Where it does not, the constraints that do not hold are restored, those first that lead to others,
and propagation runs again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from jax.extend.mlir import ir

from ...ir import walk
from ...ir.op_facts import Category
from ...ir.ops import facts_of
from ...ir.shardings import CONSTRAINT, MeshAxis, ValueSharding, constraint_placement, devices_of
from ...ir.values import defining_op
from ..reach import reached
from .propagation import Propagated, Remembered, propagate, returned_shardings, values_of

_MOST_ROUNDS = 8
"""The most propagations until the rest is proved or empty; programs take one to three."""

_ROUNDS_BY_CAUSE = 5
"""The rounds of these that restore only constraints to which no other failing one leads."""


_MOST_LOOKED_THROUGH = 64
"""The most values before a constraint that are examined; a normalization has about twelve."""

_SUMS = frozenset({Category.CONTRACTION, Category.REDUCTION})
_LOOKED_AT = _SUMS | {Category.ELEMENTWISE, Category.MOVEMENT}
"""Operations that sum over devices, and those that each device does locally."""


def constraints_of(module: ir.Module) -> list[ir.Operation]:
    """Returns the sharding constraints of a program, in textual order, without those of functions
    that it calls.

    Empty without a ``main``, the only function that Shardy reads as the program: without one Shardy
    ends the process.
    """
    main = walk.functions(module).get("main")
    inside = () if main is None else walk.operations(main)
    return [op for op in inside if op.name == CONSTRAINT]


def implied_constraints(
    module: ir.Module, constraints: Sequence[ir.Operation]
) -> list[ir.Operation]:
    """Returns a module's constraints that change nothing if they are all dropped together.

    Without them propagation places their operands as they require, and the results of the program
    as it does with them; or their mesh has one device. An open dimension may be split further.
    Never implied are constraints that leave a sum, and those that name a single device; nor, where
    another product follows, those after a product or a reduction for which devices exchange parts:
    from these `remat` knows which values it may not recompute.
    """
    numbers = _IMPLIED.of(
        module, lambda: _numbers_of_implied(module, constraints), asked=len(constraints)
    )
    return [constraints[number] for number in numbers]


_IMPLIED: Remembered[tuple[int, ...]] = Remembered()
"""The numbers of a module's implied constraints, cached: each move of a plan, and each attempt,
requests them again for the module that it starts from."""


def _numbers_of_implied(module: ir.Module, constraints: Sequence[ir.Operation]) -> tuple[int, ...]:
    local = {each.results[0] for each in constraints if _device_count(each) == 1}
    candidates = [
        each for each in constraints if _device_count(each) > 1 and not _is_expressly_moved(each)
    ]
    implied = local | _proved(module, local, candidates)
    return tuple(n for n, each in enumerate(constraints) if each.results[0] in implied)


def _proved(
    module: ir.Module, local: Collection[ir.Value], candidates: Sequence[ir.Operation]
) -> set[ir.Value]:
    """Returns the results of the candidates that are implied; ``local`` ones are gone anyway."""
    wanted = {each.results[0]: constraint_placement(each) for each in candidates}
    implied = set(wanted)
    exchanges: set[ir.Value] | None = None
    for number in range(_MOST_ROUNDS):
        if not implied:
            break
        propagated = propagate(module, {*local, *implied}, as_xla_reads=True)
        found = _Placements(module, propagated, {*local, *implied})
        left = [each for each in candidates if each.results[0] in implied]
        wrong = {
            each.results[0]
            for each in left
            if not found.satisfy(each.operands[0], wanted[each.results[0]])
        }
        if wrong:
            implied -= _first(module, wrong) if number < _ROUNDS_BY_CAUSE else wrong
            continue
        if exchanges is None:
            read = _read_by_products(module)
            exchanges = {
                each.results[0]
                for each in left
                if each.results[0] in read and found.is_exchanged(each.operands[0])
            }
            if exchanges:
                implied -= exchanges
                continue
        return implied if _returns_as_before(module, propagated) else set()
    return set()


def _device_count(constraint: ir.Operation) -> int:
    return devices_of(constraint.attributes["sharding"], constraint)


def _is_expressly_moved(constraint: ir.Operation) -> bool:
    """Whether a constraint leaves a sum, or follows one with another sharding."""
    given = constraint.operands[0].owner
    if constraint_placement(constraint).unreduced:
        return True
    if isinstance(given, ir.Block) or given.operation.name != CONSTRAINT:
        return False
    return bool(given.operation.attributes["sharding"] != constraint.attributes["sharding"])


class _Placements:
    """The placements by propagation, by value."""

    def __init__(
        self, module: ir.Module, propagated: Propagated, dropped: Collection[ir.Value]
    ) -> None:
        self._dropped = dropped
        placed, values = propagated.placed, enumerate(values_of(module))
        self._by_value = {value: placed[number] for number, value in values if number in placed}

    def satisfy(self, operand: ir.Value, wanted: ValueSharding) -> bool:
        """Whether the operand of a constraint is placed as the constraint requires."""
        found = self._by_value.get(self._behind(operand), ())
        return bool(found) and all(placed.is_at(wanted) for placed in found)

    def is_exchanged(self, value: ir.Value) -> bool:
        """Whether a value is computed, locally on each device, from an exchanged value."""
        waiting, seen = [value], {value}
        while waiting and len(seen) < _MOST_LOOKED_THROUGH:
            op = defining_op(waiting.pop())
            category = None if op is None else facts_of(op.name).category
            if op is None or category not in _LOOKED_AT:
                continue
            if category in _SUMS:
                split = {axis for operand in op.operands for axis in self._axes_of(operand)}
                if not split <= self._axes_of(op.results[0]):
                    return True
                continue
            new = [operand for operand in op.operands if operand not in seen]
            seen.update(new)
            waiting += new
        return False

    def _behind(self, value: ir.Value) -> ir.Value:
        while value in self._dropped:
            value = ir.OpResult(value).owner.operation.operands[0]
        return value

    def _axes_of(self, value: ir.Value) -> set[MeshAxis]:
        """Returns the axes of the mesh that split a value."""
        found = self._by_value.get(self._behind(value), ())
        return {axis for placed in found for axes in placed.axes for axis in axes}


def _returns_as_before(module: ir.Module, propagated: Propagated) -> bool:
    """Whether the program's results are placed as with all constraints."""
    given = returned_shardings(module)
    if not any(sharding is None or "?" in sharding for sharding in given):
        return True  # the program states the placement
    return propagated.returned == propagate(module, as_xla_reads=True).returned


def _read_by_products(module: ir.Module) -> set[ir.Value]:
    """Returns the values that matrix products read, and those that these are computed from."""
    read = (
        operand
        for op in walk.operations(module.operation)
        if facts_of(op.name).category is Category.CONTRACTION
        for operand in op.operands
    )
    return reached(read, _sources)


def _sources(value: ir.Value) -> Sequence[ir.Value]:
    """Returns the values that a value is computed from, one step back."""
    op = defining_op(value)
    if op is None:
        argument: ir.BlockArgument = ir.BlockArgument(value)
        around, number = argument.owner.owner.operation, argument.arg_number
        if around.name == "stablehlo.while":
            return around.operands[number], walk.terminator(argument.owner).operands[number]
        return [*around.operands][number : number + 1]
    if not facts_of(op.name).holds_code:
        return list(op.operands)
    number = ir.OpResult(value).result_number
    returned = [
        walk.terminator(block).operands[number]
        for region in ([*op.regions][1:] if op.name == "stablehlo.while" else op.regions)
        for block in region.blocks
    ]
    return [*returned, *([*op.operands][number : number + 1])]


def _first(module: ir.Module, wrong: Collection[ir.Value]) -> set[ir.Value]:
    """Returns the failing constraints, by their results, that no other failing one leads to.

    A constraint on a value computed from constants holds as soon as its readers are placed right:
    it is among the first only if all of them are of that kind.
    """
    causes: dict[bool, set[ir.Value]] = {False: set(), True: set()}
    reached: set[ir.Value] = set()
    constant: set[ir.Value] = set()

    def visit(block: ir.Block) -> None:
        for op in (view.operation for view in block.operations):
            follows = any(operand in reached for operand in op.operands)
            if op.name == CONSTRAINT:
                of_constants = op.operands[0] in constant
                if op.results[0] in wrong and not follows:
                    causes[of_constants].add(op.results[0])
                follows = op.results[0] in wrong and not of_constants
            if all(operand in constant for operand in op.operands) and not op.regions:
                constant.update(op.results)
            for region in op.regions if facts_of(op.name).holds_code else ():
                for inner in region.blocks:
                    if len(inner.arguments) == len(op.operands):
                        pairs = zip(inner.arguments, op.operands, strict=True)
                        reached.update(mine for mine, given in pairs if given in reached)
                    visit(inner)
                    follows |= any(value in reached for value in walk.terminator(inner).operands)
            if follows:
                reached.update(op.results)

    for function in walk.functions(module).values():
        for region in function.regions:
            for block in region.blocks:
                visit(block)
    return causes[False] or causes[True]
