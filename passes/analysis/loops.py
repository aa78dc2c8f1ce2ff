"""Loops that JAX's ``scan`` makes: counted ``stablehlo.while`` operations and what they carry.

A scan counts from 0 to its length in one integer carry. An operand that the body returns unchanged
is invariant. A stacked output is a carry that the body only writes, one slice an iteration, with
``dynamic_update_slice`` at the counter, or counting down from the end in a reversed scan.
"""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis.walk import attribute_names


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
        return list(self.body.operations)[-1].operation


_PER_CARRY = frozenset({"sdy.sharding", "mhlo.sharding"})
"""Attributes of a loop that speak of each carry, and so of a certain number of them."""


def counted_loop(op: ir.Operation) -> CountedLoop | None:
    """What the loop counts and carries; None where it is not a counted loop we can rebuild."""
    if op.name != "stablehlo.while" or not _PER_CARRY.isdisjoint(attribute_names(op)):
        return None
    condition, body = op.regions[0].blocks[0], op.regions[1].blocks[0]
    found = _counter(op, condition, body)
    if found is None:
        return None
    counter, trips = found
    arguments, returned = list(body.arguments), _terminator(body)
    invariant = frozenset(
        number for number, argument in enumerate(arguments) if returned.operands[number] == argument
    )
    stacks = [
        stack
        for number in range(len(arguments))
        if (stack := _stack(number, arguments, returned, counter, trips)) is not None
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
    return int(attribute.get_splat_value().value)


def defining_op(value: ir.Value) -> ir.Operation | None:
    """The operation that makes the value; None for a block argument."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def affine_in(value: ir.Value, variable: ir.Value) -> tuple[int, int] | None:
    """(slope, offset) where value = slope * variable + offset; None where it is not of that form.

    Follows additions, subtractions, negations and products with scalar integer constants.
    """
    if value == variable:
        return 1, 0
    constant = constant_int(value)
    if constant is not None:
        return 0, constant
    op = defining_op(value)
    if op is None:
        return None
    parts = [affine_in(operand, variable) for operand in op.operands]
    if op.name == "stablehlo.negate" and parts[0]:
        return -parts[0][0], -parts[0][1]
    if len(parts) != 2 or parts[0] is None or parts[1] is None:
        return None
    (a, b), (c, d) = parts[0], parts[1]
    if op.name == "stablehlo.add":
        return a + c, b + d
    if op.name == "stablehlo.subtract":
        return a - c, b - d
    if op.name == "stablehlo.multiply" and 0 in (a, c):
        return a * d + b * c, b * d
    return None


def _terminator(block: ir.Block) -> ir.Operation:
    return list(block.operations)[-1].operation


def _counter(
    op: ir.Operation, condition: ir.Block, body: ir.Block
) -> tuple[int, int] | None:
    """Which carry counts up by one from zero, and to which constant."""
    compare = defining_op(_terminator(condition).operands[0])
    if compare is None or compare.name != "stablehlo.compare":
        return None
    if "LT" not in str(compare.attributes["comparison_direction"]):
        return None
    counted, bound = compare.operands
    limit = _bound(op, condition, bound)
    if limit is None or limit < 0 or not isinstance(counted.owner, ir.Block):
        return None
    arguments = list(condition.arguments)
    if counted not in arguments:
        return None
    number = arguments.index(counted)
    step = affine_in(_terminator(body).operands[number], body.arguments[number])
    if step != (1, 1) or constant_int(op.operands[number]) != 0:
        return None
    return number, limit


def _bound(op: ir.Operation, condition: ir.Block, bound: ir.Value) -> int | None:
    """The loop's limit: a constant, or an invariant carry that starts as one."""
    arguments = list(condition.arguments)
    if bound in arguments:
        number = arguments.index(bound)
        body = op.regions[1].blocks[0]
        if _terminator(body).operands[number] != body.arguments[number]:
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
    return Stack(number, _without_leading_axis(slice_), update, *line)


def _without_leading_axis(slice_: ir.Value) -> ir.Value:
    """The value whose reshape or broadcast to a leading axis of 1 is ``slice_``; else itself."""
    op = defining_op(slice_)
    if op is None or op.name not in ("stablehlo.reshape", "stablehlo.broadcast_in_dim"):
        return slice_
    inner = ir.RankedTensorType(op.operands[0].type)
    if [1, *inner.shape] != list(ir.RankedTensorType(slice_.type).shape):
        return slice_
    if op.name == "stablehlo.broadcast_in_dim":
        axes = list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
        if axes != list(range(1, 1 + len(inner.shape))):
            return slice_
    return op.operands[0]


@dataclass(frozen=True)
class Link:
    """A stack that a backward loop reads, one slice an iteration, and nothing else does.

    In each iteration the backward body's ``reads`` are what ``stored`` was in the forward body;
    all have the same type.
    """

    stack: Stack
    stored: ir.Value
    reads: tuple[ir.Value, ...]
    operands: tuple[int, ...]
    """The backward loop's operands that the stack comes in by."""


@dataclass(frozen=True)
class LoopPair:
    """A forward loop and the backward loop that reads its stacks slice by slice.

    ``index`` is the value of the backward body that says where in the stacks it reads; always a
    place that the forward loop wrote, in the iteration with index = slope * counter + offset.
    ``reversed_`` says whether the backward loop goes through the iterations from last to first.
    """

    forward: CountedLoop
    backward: CountedLoop
    index: ir.Value
    slope: int
    offset: int
    reversed_: bool
    links: tuple[Link, ...]


def loop_pair(forward: CountedLoop, backward: CountedLoop) -> LoopPair | None:
    """The pair that two loops of one block form, where the second reads stacks of the first."""
    found = [
        (stack, slices, operands)
        for stack in forward.stacks
        for slices, operands in [_slices(forward.op.results[stack.number], backward)]
        if slices
    ]
    if not found:
        return None
    index = found[0][1][0].operands[1]
    line = affine_in(index, backward.body.arguments[backward.counter])
    if line is None or index.type != forward.body.arguments[forward.counter].type:
        return None
    slope, offset = line
    last = offset + slope * (backward.trips - 1)
    if abs(slope) != 1 or not (0 <= offset < forward.trips and 0 <= last < forward.trips):
        return None
    writes = found[0][0]
    links = tuple(
        _link(stack, slices, operands)
        for stack, slices, operands in found
        if all(slice_.operands[1] == index for slice_ in slices) and stack.slope == writes.slope
    )
    return LoopPair(
        forward, backward, index, writes.slope, writes.offset, slope == -writes.slope, links
    )


def _slices(stack: ir.Value, loop: CountedLoop) -> tuple[list[ir.Operation], tuple[int, ...]]:
    """The slices of a stack in the loop's body, and its operands; none where it is read otherwise.
    """
    slices: list[ir.Operation] = []
    operands: list[int] = []
    returned, body = loop.returned, loop.body
    for use in stack.uses:
        number = use.operand_number
        if use.owner.operation != loop.op or number not in loop.invariant:
            return [], ()
        in_condition = loop.op.regions[0].blocks[0].arguments[number].uses
        if any(True for _ in (*loop.op.results[number].uses, *in_condition)):
            return [], ()
        operands.append(number)
        for inner in body.arguments[number].uses:
            reader = inner.owner.operation
            if reader == returned:
                continue
            if not _is_slice(reader, body.arguments[number]) or reader.block != body:
                return [], ()
            slices.append(reader)
    return slices, tuple(operands)


def _is_slice(op: ir.Operation, stack: ir.Value) -> bool:
    """Whether the operation reads one whole slice of the stack at some index."""
    if op.name != "stablehlo.dynamic_slice" or op.operands[0] != stack:
        return False
    shape = list(ir.RankedTensorType(stack.type).shape)
    if list(ir.RankedTensorType(op.results[0].type).shape) != [1, *shape[1:]]:
        return False
    return all(constant_int(start) == 0 for start in list(op.operands)[2:])


def _link(stack: Stack, slices: list[ir.Operation], operands: tuple[int, ...]) -> Link:
    reads = [_squeezed(slice_.results[0]) for slice_ in slices]
    if all(read.type == stack.value.type for read in reads):
        return Link(stack, stack.value, tuple(reads), operands)
    raw = tuple(slice_.results[0] for slice_ in slices)
    return Link(stack, stack.update.operands[1], raw, operands)


def _squeezed(slice_: ir.Value) -> ir.Value:
    """The slice without its leading axis, where that is all that is read of it."""
    users = [use.owner.operation for use in slice_.uses]
    if len(users) == 1 and users[0].name == "stablehlo.reshape":
        squeezed = users[0].results[0]
        shape = list(ir.RankedTensorType(slice_.type).shape)
        if list(ir.RankedTensorType(squeezed.type).shape) == shape[1:]:
            return squeezed
    return slice_


def counted_loops(block: ir.Block) -> list[CountedLoop]:
    """The counted loops that stand directly in a block, in order."""
    found = (counted_loop(view.operation) for view in block.operations)
    return [loop for loop in found if loop is not None]


def loop_pairs(block: ir.Block) -> list[LoopPair]:
    """All pairs of a forward and a backward loop that stand directly in a block."""
    loops = {loop.op: loop for loop in counted_loops(block)}
    pairs = []
    for forward in loops.values():
        results = [forward.op.results[stack.number] for stack in forward.stacks]
        readers = dict.fromkeys(use.owner.operation for result in results for use in result.uses)
        for reader in readers:
            if reader in loops and (pair := loop_pair(forward, loops[reader])) is not None:
                pairs.append(pair)
    return pairs
