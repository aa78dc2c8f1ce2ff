"""Writes operations at the insertion point: constants, other forms of a value, slices, reductions
and counted loops.

Types follow from operands. A form that a value already has adds no operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from .values import element_of, shape_of

COUNTER_BITS = 32
"""The bits of the integers that loops count in."""

Combiner = Callable[[ir.Value, ir.Value], ir.Value]
"""Writes the combination of two elements, as `stablehlo.add` does."""


def typed(
    like: ir.Value | ir.Type, shape: Sequence[int] | None = None, *, element: ir.Type | None = None
) -> ir.RankedTensorType:
    """Returns the type of a value, or a type, with another shape or another type of elements."""
    shape = shape_of(like) if shape is None else shape
    return ir.RankedTensorType.get(shape, element or element_of(like))


def counter_type(shape: Sequence[int] = ()) -> ir.RankedTensorType:
    """Returns the type of a scalar, or a tensor, of the integers that loops count in."""
    return ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(COUNTER_BITS))


def constant(type_: ir.Type, number: int) -> ir.Value:
    """Returns an integer everywhere in a tensor type."""
    value = ir.IntegerAttr.get(element_of(type_), number)
    return stablehlo.constant(ir.DenseElementsAttr.get_splat(type_, value))


def counter(number: int) -> ir.Value:
    """Returns a scalar constant of the type that loops count in."""
    return constant(counter_type(), number)


def integer_like(value: ir.Value, integer: int) -> ir.Value:
    """Returns a scalar constant of the value's integer type."""
    return stablehlo.constant(ir.Attribute.parse(f"dense<{integer}> : {value.type}"))


def zeros(type_: ir.Type) -> ir.Value:
    """Returns a tensor of zeros, converted for a type without a zero."""
    return zeros_in_steps(type_)[-1].results[0]


def zeros_in_steps(type_: ir.Type) -> list[ir.Operation]:
    """Returns the operations that compute `zeros`, the tensor last."""
    element = element_of(type_)
    scalar = ir.RankedTensorType.get([], element)
    steps: list[ir.OpView] = []
    if isinstance(element, ir.IntegerType):
        steps.append(_scalar(scalar, "false" if element.width == 1 else "0"))
    else:
        # Converted: the bindings cannot make complex constants, and f8E8M0FNU has no zero.
        steps.append(_scalar(ir.RankedTensorType.get([], ir.F32Type.get()), "0.0"))
        if steps[-1].results[0].type != scalar:
            steps.append(stablehlo.ConvertOp(scalar, steps[-1].results[0]))
    steps.append(stablehlo.BroadcastInDimOp(type_, steps[-1].results[0], []))
    return [step.operation for step in steps]


def _scalar(type_: ir.Type, text: str) -> ir.OpView:
    return stablehlo.ConstantOp(ir.Attribute.parse(f"dense<{text}> : {type_}"))


def iota(shape: Sequence[int], axis: int) -> ir.Value:
    """Returns the numbers from 0 on along an axis, of the type that loops count in."""
    return stablehlo.iota(counter_type(shape), axis)


def reshaped(value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """Returns the same elements in another shape."""
    return (
        value if shape_of(value) == list(shape) else stablehlo.reshape(typed(value, shape), value)
    )


def first_element(value: ir.Value) -> ir.Value:
    """Returns the first element, a scalar."""
    rank = len(shape_of(value))
    corner = stablehlo.slice(value, [0] * rank, [1] * rank, [1] * rank) if rank else value
    return reshaped(corner, [])


def converted(value: ir.Value, element: ir.Type) -> ir.Value:
    """Returns the value with elements of another type."""
    if element_of(value) == element:
        return value
    return stablehlo.convert(typed(value, element=element), value)


def broadcast(value: ir.Value, shape: Sequence[int], axes: Sequence[int]) -> ir.Value:
    """Returns the value repeated in a shape; ``axes`` are those of the shape that its own are."""
    return stablehlo.broadcast_in_dim(typed(value, shape), value, axes)


def compare(left: ir.Value, right: ir.Value, direction: str) -> ir.Value:
    """Returns the comparison of two values; ``direction`` is one of EQ, NE, GE, GT, LE, LT."""
    return stablehlo.compare(left, right, stablehlo.ComparisonDirectionAttr.get(direction))


def reduce(value: ir.Value, axes: Sequence[int], start: ir.Value, combine: Combiner) -> ir.Value:
    """Returns the elements along some axes combined; ``start`` is a scalar that changes nothing."""
    left = [size for axis, size in enumerate(shape_of(value)) if axis not in axes]
    made = stablehlo.ReduceOp([typed(value, left)], [value], [start], axes).operation
    block = made.regions[0].blocks.append(start.type, start.type, arg_locs=[made.location] * 2)
    with ir.InsertionPoint(block):
        stablehlo.ReturnOp([combine(*block.arguments)])
    return made.results[0]


@dataclass(frozen=True)
class Box:
    """A part of a value.

    Attributes:
      bounds: by axis, its start, a scalar, and its length. Along other axes it is whole.
      zero: its start along the other axes, a scalar; written where it is None.
    """

    bounds: Mapping[int, tuple[ir.Value, int]]
    zero: ir.Value | None = None

    def type_in(self, whole: ir.Type) -> ir.RankedTensorType:
        """Returns the type of this part of a value of some type."""
        shape = shape_of(whole)
        for axis, (_, length) in self.bounds.items():
            shape[axis] = length
        return typed(whole, shape)

    def slice(self, value: ir.Value) -> ir.Value:
        """Returns this part of a value."""
        sizes = self.type_in(value.type).shape
        return stablehlo.dynamic_slice(value, self._starts(len(sizes)), sizes)

    def update(self, value: ir.Value, part: ir.Value) -> ir.Value:
        """Returns the value with another part."""
        return stablehlo.dynamic_update_slice(value, part, self._starts(len(shape_of(value))))

    def _starts(self, rank: int) -> list[ir.Value]:
        zero = counter(0) if self.zero is None else self.zero
        return [self.bounds.get(axis, (zero, 0))[0] for axis in range(rank)]


def slice_of_stack(stack: ir.Value, index: ir.Value) -> ir.Value:
    """Returns the slice of a stack at an index, with a first axis of one element."""
    return Box({0: (index, 1)}, integer_like(index, 0)).slice(stack)


def counted_while(
    trips: int,
    starts: Sequence[ir.Value],
    body: Callable[[ir.Value, Sequence[ir.Value]], Sequence[ir.Value]],
) -> Sequence[ir.Value]:
    """Writes a `stablehlo.while` of a constant trip count; returns its final carries.

    Args:
      trips: the trip count.
      starts: the initial carries: a zero of the type that it counts in, then the others.
      body: writes an iteration from the count and the carries; returns their next values.
    """
    types = [start.type for start in starts]
    made = stablehlo.WhileOp(types, starts).operation
    locations = [made.location] * len(types)
    condition = made.regions[0].blocks.append(*types, arg_locs=locations)
    with ir.InsertionPoint(condition):
        count = condition.arguments[0]
        stablehlo.ReturnOp([compare(count, integer_like(count, trips), "LT")])
    block = made.regions[1].blocks.append(*types, arg_locs=locations)
    with ir.InsertionPoint(block):
        count, *carried = block.arguments
        returned = body(count, carried)
        stablehlo.ReturnOp([stablehlo.add(count, integer_like(count, 1)), *returned])
    return [*made.results][1:]


def splat(type_: ir.Type, number: float) -> ir.Value:
    """Returns a floating-point number everywhere in a tensor type."""
    value = ir.FloatAttr.get(element_of(type_), number)
    return stablehlo.constant(ir.DenseElementsAttr.get_splat(type_, value))


def transposed(value: ir.Value, order: Sequence[int]) -> ir.Value:
    """Returns the value with its axes in another order."""
    is_same = list(order) == list(range(len(order)))
    return value if is_same else stablehlo.transpose(value, list(order))


def einsum(letters: str, left: ir.Value, right: ir.Value) -> ir.Value:
    """Returns a product by the letters of its axes, e.g. "btnh,bsnh->bnts"."""
    operands, _, result = letters.partition("->")
    mine, theirs = operands.split(",")
    shared = [letter for letter in mine if letter in theirs]
    batch = [letter for letter in shared if letter in result]
    summed = [letter for letter in shared if letter not in result]
    made = batch + [each for each in mine + theirs if each not in shared]
    sizes = dict(zip(mine + theirs, shape_of(left) + shape_of(right), strict=True))
    numbers = stablehlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=[mine.index(letter) for letter in batch],
        rhs_batching_dimensions=[theirs.index(letter) for letter in batch],
        lhs_contracting_dimensions=[mine.index(letter) for letter in summed],
        rhs_contracting_dimensions=[theirs.index(letter) for letter in summed],
    )
    type_ = typed(left, [sizes[letter] for letter in made])
    product = stablehlo.dot_general(type_, left, right, numbers)
    return transposed(product, [made.index(letter) for letter in result])
