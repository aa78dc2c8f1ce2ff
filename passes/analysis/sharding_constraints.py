"""Sharding constraints that provably move no data: of what is sharded just so already.

Everywhere else a constraint may be where XLA's partitioner puts a collective. It does so on the
result of a matrix product whose contracted axis is sharded (an all-reduce or a reduce-scatter), and
wherever a value has another sharding (an all-gather, an all-to-all).
"""

from __future__ import annotations

import math
import re

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy, stablehlo

from ..ir import mesh, walk
from ..ir.op_facts import Category
from ..ir.ops import facts_of

CONSTRAINT = "sdy.sharding_constraint"
"""The operation that a sharding constraint is."""

_Placement = tuple[str | None, ...]
"""By dimension of a value the axes that it is split along, as text, with their mesh; None where the
value is the same all along the dimension, so that every device has what it may be asked for."""

_NAME = re.compile(r'"[^"]*"')
"""An axis in a placement's text. A part of one counts as all of it."""

_MOST_LOOKED_THROUGH = 64
"""Operations behind a constraint that are looked at; a normalization has about twelve."""


def moves_nothing(constraint: ir.Operation) -> bool:
    """Whether a sharding constraint provably leaves all data on the device where it is.

    So it is where its mesh is of one device; and where its operand is made, on each device by
    itself, from constants, from arguments of the program of that sharding and from results of other
    constraints to it: by elementwise operations, broadcasts, transposes, reshapes that drop or
    add axes of one element, slices, concatenations and reductions along axes that are not split,
    and matrix products whose sums are not. A product may gather an operand for itself: what is
    contracted along an axis of the mesh that its result is split along, as FSDP's weights are.
    """
    sharding = sdy.TensorShardingAttr(constraint.attributes["sharding"])
    if _devices(sharding, constraint) == 1:
        return True
    wanted = _placement_of(sharding)
    if wanted is None:
        return False
    found = _Search().placement(constraint.operands[0])
    return found is not None and _merged(found, wanted) == wanted


class _Search:
    """Finds how values are sharded, by what they are made of."""

    def __init__(self) -> None:
        self._left = _MOST_LOOKED_THROUGH
        self._known: dict[ir.Value, _Placement | None] = {}

    def placement(self, value: ir.Value) -> _Placement | None:
        """How a value is sharded; None where that is not known, or takes a collective to make."""
        if value not in self._known:
            self._left -= 1
            self._known[value] = self._find(value) if self._left >= 0 else None
        return self._known[value]

    def _find(self, value: ir.Value) -> _Placement | None:
        type_, owner = value.type, value.owner
        if not isinstance(type_, ir.RankedTensorType):
            return None
        if isinstance(owner, ir.Block):
            return self._of_argument(ir.BlockArgument(value))
        op = owner.operation
        facts = facts_of(op.name)
        if op.name == "stablehlo.dot_general":
            left, right = (self.placement(operand) for operand in op.operands)
            return None if left is None or right is None else _product(op, left, right)
        if op.name == "stablehlo.concatenate":
            return self._of_concatenate(op)
        if facts.is_constant:
            return (None,) * type_.rank
        if op.name == CONSTRAINT:
            return _placement_of(sdy.TensorShardingAttr(op.attributes["sharding"]))
        if facts.category is Category.ELEMENTWISE and facts.is_fusible:
            return self._of_elementwise(op, type_.rank)
        rule = {
            "stablehlo.broadcast_in_dim": _broadcast,
            "stablehlo.dynamic_slice": _sliced,
            "stablehlo.reduce": _reduced,
            "stablehlo.reshape": _reshaped,
            "stablehlo.slice": _sliced,
            "stablehlo.transpose": _transposed,
        }.get(op.name)
        operand = self.placement(op.operands[0]) if rule is not None else None
        return None if rule is None or operand is None else rule(op, operand)

    def _of_argument(self, argument: ir.BlockArgument) -> _Placement | None:
        """The sharding of a function's argument; a loop's starts and goes on with the same one."""
        loop = argument.owner.owner.operation
        if loop.name != "stablehlo.while":
            return _of_argument(argument)
        number = argument.arg_number
        start = self.placement(loop.operands[number])
        if start is None:
            return None
        # What comes of an iteration is looked at as if what it is made from is like the start.
        self._known[argument] = start
        body = loop.regions[1].blocks[0]
        self._known[body.arguments[number]] = start
        return start if self.placement(walk.terminator(body).operands[number]) == start else None

    def _of_concatenate(self, op: ir.Operation) -> _Placement | None:
        """Parts that are put together along an axis that none of them is split along."""
        axis = ir.IntegerAttr(op.attributes["dimension"]).value
        first, *others = [self.placement(operand) for operand in op.operands]
        alike = first is not None and all(other == first for other in others)
        return first if first is not None and alike and not _is_split(first[axis]) else None

    def _of_elementwise(self, op: ir.Operation, rank: int) -> _Placement | None:
        """Operands of no dimension, such as a clamp's bounds, are the same on all devices."""
        merged: _Placement | None = (None,) * rank
        for operand in op.operands:
            found = self.placement(operand)
            if found is None or merged is None:
                return None
            if len(found) == rank:
                merged = _merged(merged, found)
        return merged


def _merged(one: _Placement, other: _Placement) -> _Placement | None:
    """What two values that are read together are sharded like; None where they differ."""
    pairs = list(zip(one, other, strict=True))
    if any(here is not None and there is not None and here != there for here, there in pairs):
        return None
    return tuple(there if here is None else here for here, there in pairs)


def _broadcast(op: ir.Operation, operand: _Placement) -> _Placement | None:
    shape = ir.ShapedType(op.operands[0].type).shape
    placed: list[str | None] = [None] * ir.ShapedType(op.results[0].type).rank
    axes = ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"])
    for size, axis, split in zip(shape, axes, operand, strict=True):
        if size > 1:
            placed[axis] = split
    return tuple(placed)


def _transposed(op: ir.Operation, operand: _Placement) -> _Placement | None:
    return tuple(operand[axis] for axis in ir.DenseI64ArrayAttr(op.attributes["permutation"]))


def _reduced(op: ir.Operation, operand: _Placement) -> _Placement | None:
    """A sum along an axis that is split is an all-reduce. Of one operand: JAX has seldom more."""
    axes = set(ir.DenseI64ArrayAttr(op.attributes["dimensions"]))
    if len(op.results) > 1 or any(_is_split(operand[axis]) for axis in axes):
        return None
    return tuple(split for axis, split in enumerate(operand) if axis not in axes)


def _sliced(op: ir.Operation, operand: _Placement) -> _Placement | None:
    """Along an axis that is split, a slice may be of what another device has."""
    before, after = (ir.ShapedType(v.type).shape for v in (op.operands[0], op.results[0]))
    axes = zip(before, after, operand, strict=True)
    return None if any(old != new and _is_split(split) for old, new, split in axes) else operand


def _product(op: ir.Operation, left: _Placement, right: _Placement) -> _Placement | None:
    """A sum along an axis that is split is an all-reduce, unless the result is split by it."""
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    sides = (
        (left, numbers.lhs_batching_dimensions, numbers.lhs_contracting_dimensions),
        (right, numbers.rhs_batching_dimensions, numbers.rhs_contracting_dimensions),
    )
    batches = [tuple(side[axis] for axis in batching) for side, batching, _ in sides]
    merged = _merged(batches[0], batches[1])
    if merged is None:
        return None
    placed = [*merged]
    for side, batching, contracting in sides:
        own = {*batching, *contracting}
        placed += [split for axis, split in enumerate(side) if axis not in own]
    made = [name for split in placed for name in _names(split)]
    summed = {
        name
        for side, _, contracting in sides
        for axis in contracting
        for name in _names(side[axis])
    }
    return tuple(placed) if len(set(made)) == len(made) and summed <= set(made) else None


def _reshaped(op: ir.Operation, operand: _Placement) -> _Placement | None:
    before, after = (ir.ShapedType(v.type).shape for v in (op.operands[0], op.results[0]))
    if [size for size in before if size != 1] != [size for size in after if size != 1]:
        return None
    splits = iter([split for size, split in zip(before, operand, strict=True) if size != 1])
    return tuple(None if size == 1 else next(splits) for size in after)


def _is_split(split: str | None) -> bool:
    return split is not None and not split.endswith("{}")


def _names(split: str | None) -> list[str]:
    """The axes of a mesh that a dimension is split along."""
    return [] if split is None else _NAME.findall(split)


def _placement_of(sharding: sdy.TensorShardingAttr) -> _Placement | None:
    """None where the sharding leaves something open, or a sum to be done."""
    if "?" in str(sharding) or "unreduced" in str(sharding):
        return None
    named = sharding.mesh_or_ref
    return tuple(f"{named}{_axes(each)}" for each in sharding.dimension_shardings)


def _axes(dimension: ir.Attribute) -> str:
    return f"{{{', '.join(map(str, sdy.DimensionShardingAttr(dimension).axes))}}}"


def _of_argument(argument: ir.BlockArgument) -> _Placement | None:
    """The sharding of a function's argument; arguments of loops and the like are not followed."""
    function = argument.owner.owner.operation
    attributes = walk.readable_attributes(function).get("arg_attrs")
    if function.name != "func.func" or attributes is None:
        return None
    described = ir.DictAttr(ir.ArrayAttr(attributes)[argument.arg_number])
    if "sdy.sharding" not in described:
        return None
    return _placement_of(sdy.TensorShardingAttr(described["sdy.sharding"]))


def is_split_argument(argument: ir.BlockArgument) -> bool:
    """Whether a value is a function's argument that is split along an axis of a mesh."""
    found = _of_argument(argument)
    return found is not None and any(map(_is_split, found))


def _devices(sharding: sdy.TensorShardingAttr, op: ir.Operation) -> int | None:
    """How many devices the mesh of a sharding has; None where the module has no such mesh."""
    found = mesh.resolved(sharding.mesh_or_ref, op)
    return None if found is None else math.prod(mesh.axis_sizes(found).values())
