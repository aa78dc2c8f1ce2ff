"""Loops that JAX's ``scan`` makes: counted ``stablehlo.while`` operations and what they carry.

A scan counts from 0 to its length in one integer carry. An operand that the body returns unchanged
is invariant. A stacked output is a carry that the body only writes, one slice an iteration, with
``dynamic_update_slice`` at the counter, or counting down from the end in a reversed scan.
"""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis.walk import attribute_names, terminator


@dataclass(frozen=True)
class Stack:
    """A stacked output of a loop: every iteration stores ``value`` at slope * counter + offset.

    ``number`` is the operand, argument and result of the loop that carries it.
    """

    number: int
    value: ir.Value
    update: ir.Operation
    slope: int
    offset: int


@dataclass(frozen=True)
class CountedLoop:
    """A while loop with a counter that runs 0, 1, …, trips - 1."""

    op: ir.Operation
    counter: int
    trips: int
    invariant: frozenset[int]
    stacks: tuple[Stack, ...]

    @property
    def body(self) -> ir.Block:
        return self.op.regions[1].blocks[0]

    @property
    def returned(self) -> ir.Operation:
        """The terminator of the body."""
        return terminator(self.body)


_PER_CARRY = frozenset({"sdy.sharding", "mhlo.sharding"})


def has_attributes_by_carry(loop: ir.Operation) -> bool:
    """Whether attributes of the loop speak of its carries one by one, so that none may go."""
    return not _PER_CARRY.isdisjoint(attribute_names(loop))


def counted_loop(op: ir.Operation) -> CountedLoop | None:
    """What the loop counts and carries; None where it is not a counted loop we can rebuild."""
    if op.name != "stablehlo.while" or has_attributes_by_carry(op):
        return None
    condition, body = op.regions[0].blocks[0], op.regions[1].blocks[0]
    found = _counter(op, condition, body)
    if found is None:
        return None
    counter, trips = found
    arguments, returned = list(body.arguments), terminator(body)
    invariant = frozenset(
        number for number, argument in enumerate(arguments) if returned.operands[number] == argument
    )
    stacks = [
        stack
        for number in range(len(arguments))
        if not any(True for _ in condition.arguments[number].uses)
        and (stack := _stack(number, arguments, returned, counter, trips)) is not None
    ]
    return CountedLoop(op, counter, trips, invariant, tuple(stacks))


def constant_int(value: ir.Value) -> int | None:
    """The integer that a scalar constant holds; None where the value is not one."""
    op = defining_op(value)
    if op is None or op.name != "stablehlo.constant":
        return None
    attribute = op.attributes["value"]
    if not isinstance(attribute, ir.DenseIntElementsAttr) or not attribute.is_splat:
        return None
    if list(ir.RankedTensorType(value.type).shape):
        return None
    return ir.IntegerAttr(attribute.get_splat_value()).value


def defining_op(value: ir.Value) -> ir.Operation | None:
    """The operation that makes the value; None for a block argument."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


_INDEX_ARITHMETIC = frozenset(
    {"stablehlo.add", "stablehlo.multiply", "stablehlo.negate", "stablehlo.subtract"}
)

_DEEPEST_INDEX = 8
"""How many operations of index arithmetic are looked through; JAX's scans have two."""


def affine_in(
    value: ir.Value, variable: ir.Value, depth: int = _DEEPEST_INDEX
) -> tuple[int, int] | None:
    """(slope, offset) where value = slope * variable + offset; None where it is not of that form.

    Follows additions, subtractions, negations and products with scalar integer constants, at most
    ``depth`` of them one behind the other.
    """
    if value == variable:
        return 1, 0
    constant = constant_int(value)
    if constant is not None:
        return 0, constant
    op = defining_op(value)
    if op is None or not depth:
        return None
    if op.name not in _INDEX_ARITHMETIC:
        return None
    parts = [affine_in(operand, variable, depth - 1) for operand in op.operands]
    if op.name == "stablehlo.negate":
        return None if parts[0] is None else (-parts[0][0], -parts[0][1])
    if parts[0] is None or parts[1] is None:
        return None
    (a, b), (c, d) = parts[0], parts[1]
    if op.name == "stablehlo.add":
        return a + c, b + d
    if op.name == "stablehlo.subtract":
        return a - c, b - d
    return (a * d + b * c, b * d) if 0 in (a, c) else None


def _counter(op: ir.Operation, condition: ir.Block, body: ir.Block) -> tuple[int, int] | None:
    """Which carry counts up by one from zero, and to which constant."""
    compare = defining_op(terminator(condition).operands[0])
    if compare is None or compare.name != "stablehlo.compare":
        return None
    if "LT" not in str(compare.attributes["comparison_direction"]):
        return None
    counted, bound = compare.operands
    limit = _bound(op, condition, bound)
    if limit is None or limit < 0 or not isinstance(counted.owner, ir.Block):
        return None
    arguments: list[ir.Value] = list(condition.arguments)
    if counted not in arguments:
        return None
    number = arguments.index(counted)
    step = affine_in(terminator(body).operands[number], body.arguments[number])
    if step != (1, 1) or constant_int(op.operands[number]) != 0:
        return None
    return number, limit


def _bound(op: ir.Operation, condition: ir.Block, bound: ir.Value) -> int | None:
    """The loop's limit: a constant, or an invariant carry that starts as one."""
    arguments: list[ir.Value] = list(condition.arguments)
    if bound in arguments:
        number = arguments.index(bound)
        body = op.regions[1].blocks[0]
        if terminator(body).operands[number] != body.arguments[number]:
            return None
        return constant_int(op.operands[number])
    return constant_int(bound)


def _stack(
    number: int,
    arguments: list[ir.Value],
    returned: ir.Operation,
    counter: int,
    trips: int,
) -> Stack | None:
    """The stacked output carried at this place, where there is one."""
    update = defining_op(returned.operands[number])
    if update is None or update.name != "stablehlo.dynamic_update_slice":
        return None
    carried, slice_, first, *rest = update.operands
    line = affine_in(first, arguments[counter])
    if carried != arguments[number] or line not in ((1, 0), (-1, trips - 1)):
        return None
    if any(constant_int(start) != 0 for start in rest):
        return None
    if len(list(carried.uses)) != 1 or len(list(update.results[0].uses)) != 1:
        return None
    shape = list(ir.RankedTensorType(carried.type).shape)
    if shape[0] != trips or list(ir.RankedTensorType(slice_.type).shape) != [1, *shape[1:]]:
        return None
    return Stack(number, _without_leading_axis(slice_, update.block), update, *line)


def _without_leading_axis(slice_: ir.Value, body: ir.Block) -> ir.Value:
    """The value that ``body`` reshapes or broadcasts to get ``slice_``; else ``slice_`` itself."""
    op = defining_op(slice_)
    if (
        op is None
        or op.block != body
        or op.name not in ("stablehlo.reshape", "stablehlo.broadcast_in_dim")
    ):
        return slice_
    inner = ir.RankedTensorType(op.operands[0].type)
    if [1, *inner.shape] != list(ir.RankedTensorType(slice_.type).shape):
        return slice_
    if op.name == "stablehlo.broadcast_in_dim":
        axes = list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
        if axes != list(range(1, 1 + len(inner.shape))):
            return slice_
    return op.operands[0]


def counted_loops(block: ir.Block) -> list[CountedLoop]:
    """The counted loops that stand directly in a block, in order."""
    found = (counted_loop(view.operation) for view in block.operations)
    return [loop for loop in found if loop is not None]
