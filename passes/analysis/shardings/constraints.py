"""Sharding constraints that provably move no data: their operands already have the sharding.

At any other constraint XLA's partitioner may insert a collective. It does so on the result of a
matrix product whose contracted axis is sharded (an all-reduce or a reduce-scatter), and wherever a
value has another sharding (an all-gather, an all-to-all).
"""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.mlir import ir

from ...ir import walk
from ...ir.op_facts import Category
from ...ir.ops import facts_of
from ...ir.shardings import (
    CONSTRAINT,
    MeshAxis,
    ValueSharding,
    argument_placement,
    constraint_placement,
    devices_of,
)
from ...ir.values import defining_op
from ..signatures import signature_of
from ..signatures.signature import Signature

Split = tuple[MeshAxis, ...] | None
"""The axes of the mesh that split a dimension; None where the value is constant along it, so that
every device has every part of it."""

_MOST_LOOKED_THROUGH = 128
"""The most operations before a constraint that are examined; a normalization has about twelve, and
one after a router of experts seventy."""


def moves_nothing(constraint: ir.Operation, splits: SplitSearch | None = None) -> bool:
    """Whether a sharding constraint provably leaves all data on the device where it is.

    True where its mesh has one device; and where each device computes its part of the operand
    locally, from constants, from arguments of the program with that sharding and from results of
    other constraints to it: by elementwise operations, movements, reductions, windows and sorts
    along axes that are not split, and matrix products whose sums are not. A product may gather an
    operand: one contracted along an axis of the mesh that the result is split along, as FSDP's
    weights are. The constraint may also split further: each device already has its part of that.

    ``splits`` has what was found for other constraints of the module, which was not edited since.
    """
    if devices_of(constraint.attributes["sharding"], constraint) == 1:
        return True
    wanted = _splits_of_constraint(constraint)
    found = None if wanted is None else (splits or SplitSearch()).of(constraint.operands[0])
    return wanted is not None and found is not None and _is_part_of(wanted, found)


def moves_a_parameter(constraint: ir.Operation) -> bool:
    """Whether a sharding constraint of a loop's body moves a value that no iteration changes.

    Examples are a layer's parameters, sliced out of their stack. The constraint gathers at most, as
    its operand is no sum; and each device has its part of the operand in the backward pass too.
    """
    if constraint_placement(constraint).unreduced:
        return False
    value = constraint.operands[0]
    for _ in range(_MOST_LOOKED_THROUGH):
        op = defining_op(value)
        if op is None:
            return _is_invariant(ir.BlockArgument(value))
        # A slice's indices are scalars.
        wide = [each for each in op.operands if ir.ShapedType(each.type).rank]
        if len(wide) != 1 or not _is_local(op):
            return False
        [value] = wide
    return False


def _is_local(op: ir.Operation) -> bool:
    """Whether each device computes its part of the result from its part of the one operand."""
    facts = facts_of(op.name)
    return op.name == CONSTRAINT or facts.is_fusible or facts.category is Category.MOVEMENT


def _is_invariant(argument: ir.BlockArgument) -> bool:
    """Whether a block is the body of a loop whose iterations return the argument unchanged."""
    if argument.owner.owner.operation.name != "stablehlo.while":
        return False
    return bool(walk.terminator(argument.owner).operands[argument.arg_number] == argument)


class SplitSearch:
    """Finds how values are split, from the values that they are computed from.

    The module may not be edited while it is used: values that several constraints are computed from
    are examined once.
    """

    def __init__(self) -> None:
        self._left = 0
        self._known: dict[ir.Value, tuple[Split, ...] | None] = {}

    def of(self, value: ir.Value) -> tuple[Split, ...] | None:
        """Returns the split of each dimension; None where it is not known, takes a collective, or
        takes too many operations to find."""
        before, self._left = len(self._known), _MOST_LOOKED_THROUGH
        found = self._splits_at(value)
        if self._left < 0:
            self._forget(before)  # another search may reach them by fewer operations
        return found

    def _forget(self, before: int) -> None:
        """Forgets what was found since that many values were known."""
        for value in list(self._known)[before:]:
            del self._known[value]

    def _splits_at(self, value: ir.Value) -> tuple[Split, ...] | None:
        """Returns what `of` does, within the operations that are left."""
        if value not in self._known:
            self._left -= 1
            self._known[value] = self._find(value) if self._left >= 0 else None
        return self._known[value]

    def _find(self, value: ir.Value) -> tuple[Split, ...] | None:
        if not isinstance(value.type, ir.RankedTensorType):
            return None
        if isinstance(value.owner, ir.Block):
            return self._of_argument(ir.BlockArgument(value))
        op = value.owner.operation
        facts = facts_of(op.name)
        if facts.is_constant:
            return (None,) * value.type.rank
        if op.name == CONSTRAINT:
            return _splits_of_constraint(op)
        is_elementwise = facts.category is Category.ELEMENTWISE and facts.is_fusible
        is_known = op.name in _SUMS or op.name in _BY_ROWS
        if not (is_elementwise or is_known or facts.category is Category.MOVEMENT):
            return None
        signature = signature_of(op)
        if signature is None or any(made != signature.results[0] for made in signature.results):
            return None
        given: list[tuple[Split, ...]] = []
        for operand, axes in zip(op.operands, signature.operands, strict=True):
            # Scalars, as a slice's indices, are on all devices.
            found = self._splits_at(operand) if axes or is_elementwise else ()
            if found is None:
                return None
            given.append(found)
        return _result(signature, given, sums_split=op.name in _PRODUCTS)

    def _of_argument(self, argument: ir.BlockArgument) -> tuple[Split, ...] | None:
        """Returns the splits of a function's argument, or of a carry that keeps its first ones."""
        loop = argument.owner.owner.operation
        if loop.name != "stablehlo.while":
            placement = argument_placement(argument)
            return None if placement is None else _splits(placement)
        number = argument.arg_number
        start = self._splits_at(loop.operands[number])
        if start is None:
            return None
        # The result of an iteration is examined as if its operands were split like the start.
        before = len(self._known)
        self._known[argument] = start
        body = loop.regions[1].blocks[0]
        self._known[body.arguments[number]] = start
        if self._splits_at(walk.terminator(body).operands[number]) == start:
            return start
        self._forget(before)
        return None


_PRODUCTS = frozenset({"stablehlo.dot", "stablehlo.dot_general"})
_SUMS = _PRODUCTS | {"stablehlo.reduce"}
_BY_ROWS = frozenset({"chlo.top_k", "stablehlo.reduce_window", "stablehlo.sort"})
"""Operations that each device does locally where no axis is split that they choose, sum or sort
along, such as a router's choice of experts and its ranks."""


def _splits_of_constraint(constraint: ir.Operation) -> tuple[Split, ...] | None:
    if not devices_of(constraint.attributes["sharding"], constraint):
        return None
    return _splits(constraint_placement(constraint))


def _splits(placement: ValueSharding) -> tuple[Split, ...] | None:
    """Returns the splits of a placement; None where a dimension is open, or a sum is left."""
    return placement.axes if all(placement.closed) and not placement.unreduced else None


def _is_part_of(wanted: Sequence[Split], found: Sequence[Split]) -> bool:
    """Whether the part of each device by ``found`` contains its part by ``wanted``."""
    used = {axis.name for split in found for axis in split or ()}
    for here, there in zip(found, wanted, strict=True):
        if here is None:
            continue
        further = () if there is None else there[len(here) :]
        if there is None or there[: len(here)] != here:
            return False
        if any(axis.name in used for axis in further):
            return False  # the further axis splits another dimension so far
    return True


def _result(
    signature: Signature, given: Sequence[Sequence[Split]], *, sums_split: bool
) -> tuple[Split, ...] | None:
    """Returns the splits of an operation's result, whose operands are split as given.

    None where devices must exchange data: operands are split differently, or the operation needs
    all of a split dimension, or sums over one. With ``sums_split`` it may sum over one that is
    split like its result: an operand is gathered.
    """
    made = signature.results[0]
    new = signature.made - signature.read
    by_factor: dict[int, Split] = {}
    summed: set[str] = set()
    for axes, splits in zip(signature.operands, given, strict=True):
        for number, (axis, split) in enumerate(zip(axes, splits, strict=True)):
            if split is None:
                continue
            if split and len(axis) != 1:
                return None
            factors = signature.made.intersection(axis)
            if len(factors) < len(axis):
                summed.update(each.name for each in split)
                # A slice, or a concatenation, is split like its operands.
                if len(axes) == len(made):
                    factors |= new.intersection(made[number])
            for factor in factors:
                if by_factor.setdefault(factor, split) != split:
                    return None
    result: list[Split] = []
    for axis in made:
        found = {by_factor.get(factor) for factor in axis} - {None}
        if len(axis) > 1 and found - {()}:
            return None
        result.append(next(iter(found), None))
    names = [each.name for split in result for each in split or ()]
    if len(set(names)) < len(names) or not summed <= (set(names) if sums_split else set()):
        return None
    return tuple(result)
