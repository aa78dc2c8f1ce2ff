"""A module as XLA passes it to Shardy's propagation: with rewrites that change the result.

- A broadcast that only adds axes of one element is a reshape, through which Shardy propagates
  sooner.
- A carry that a loop does not change is read from outside of it. Else a use in the loop may place
  it otherwise than its operation.
- A product that sums nothing is a multiplication of broadcasts.
- Operations are in post-order: an operand right before its first reader. Where two placements of a
  value are equally good, Shardy keeps the one that it finds first.

Source: XLA's dumps of Shardy's input, with jax 0.10.2 and 0.12.0.1, 2026-11-25.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ...ir import moves, walk
from ...ir.erase import erase
from ...ir.products import ProductAxes

NUMBER = "hloom.number"
"""The discardable attribute that identifies an operation after Shardy's passes, which clone
constants and insert operations."""


def number_of(op: ir.Operation) -> int | None:
    """Returns the number in the module's text of an operation of its propagated clone.

    None for one that Shardy added. Shardy clones constants: several may have one number.
    """
    given = op.attributes
    return ir.IntegerAttr(given[NUMBER]).value if NUMBER in given else None


@dataclass(frozen=True)
class CarriedUse:
    """The use of a loop's carry by an operation, by the numbers of both.

    Attributes:
      reader, operand: the numbers of the operation and of its operand.
      loop, carry: the numbers of the loop and of its carry.
      region: the region whose argument was read; None for a result of the loop.
    """

    reader: int
    operand: int
    loop: int
    carry: int
    region: int | None


def read_as_by_xla(clone: ir.Module) -> tuple[CarriedUse, ...]:
    """Rewrites a clone whose operations have numbers, in place.

    Returns the uses that `carry_again` has to restore, so that values in loops have placements.
    """
    uses: list[CarriedUse] = []
    for op in list(walk.operations(clone.operation)):
        if op.name == "stablehlo.broadcast_in_dim":
            _as_reshape(op)
        elif op.name == "stablehlo.dot_general":
            _as_multiplication(op)
        elif op.name == "stablehlo.while":
            uses += _read_from_outside(op)
    for block in walk.code_blocks(clone.operation):
        _put_in_post_order(block)
    return tuple(uses)


def carry_again(clone: ir.Module, uses: Iterable[CarriedUse]) -> None:
    """Restores the uses of loops' carries, in place."""
    by_reader: dict[int, list[CarriedUse]] = defaultdict(list)
    for use in uses:
        by_reader[use.reader].append(use)
    loops: dict[int, ir.Operation] = {}
    for op in walk.operations(clone.operation) if by_reader else ():
        number = number_of(op)
        if number is None:
            continue
        if op.name == "stablehlo.while":
            loops[number] = op
        for use in by_reader.get(number, ()):
            loop = loops[use.loop]
            of_loop = loop.results if use.region is None else _arguments(loop, use.region)
            op.operands[use.operand] = of_loop[use.carry]


def _read_from_outside(loop: ir.Operation) -> Iterable[CarriedUse]:
    number = number_of(loop)
    assert number is not None
    body = loop.regions[1].blocks[0]
    end = walk.terminator(body)
    for carry, argument in enumerate(body.arguments):
        if end.operands[carry] != argument:
            continue
        read: list[tuple[int | None, ir.Value]] = [(None, loop.results[carry])]
        read += [(region, _arguments(loop, region)[carry]) for region in (0, 1)]
        for region, value in read:
            for use in list(value.uses):
                reader = use.owner.operation
                reader_number = number_of(reader)
                if reader != end and reader_number is not None:
                    at = use.operand_number
                    yield CarriedUse(reader_number, at, number, carry, region)
                    reader.operands[at] = loop.operands[carry]


def _arguments(loop: ir.Operation, region: int) -> ir.BlockArgumentList:
    return loop.regions[region].blocks[0].arguments


def _as_reshape(broadcast: ir.Operation) -> None:
    given, made = (
        ir.RankedTensorType(each[0].type) for each in (broadcast.operands, broadcast.results)
    )
    axes = list(ir.DenseI64ArrayAttr(broadcast.attributes["broadcast_dimensions"]))
    if not (given.has_static_shape and made.has_static_shape) or axes != sorted(axes):
        return
    if math.prod(given.shape) == math.prod(made.shape):
        with ir.InsertionPoint(broadcast):
            reshape = stablehlo.ReshapeOp(made, broadcast.operands[0]).operation
        reshape.attributes[NUMBER] = broadcast.attributes[NUMBER]
        broadcast.results[0].replace_all_uses_with(reshape.results[0])
        erase(broadcast)


def _put_in_post_order(block: ir.Block) -> None:
    """Orders a block's operations as in XLA's text: each right after its operands."""
    operations = [view.operation for view in block.operations]
    makers: dict[ir.Value, int] = {v: n for n, op in enumerate(operations) for v in op.results}
    last = len(operations) - 1
    done = [False] * len(operations)
    order: list[ir.Operation] = []
    for first in (last, *range(last)):
        stack: list[tuple[int, bool]] = [(first, False)]
        while stack:
            number, is_read = stack.pop()
            op = operations[number]
            if is_read and number != last:
                order.append(op)
            if done[number]:
                continue
            done[number] = True
            stack.append((number, True))
            read = walk.values_read(op) if len(op.regions) else op.operands
            stack += reversed([(makers[value], False) for value in read if value in makers])
    moves.reorder(block, order)


def _as_multiplication(product: ir.Operation) -> None:
    axes = ProductAxes.of(product)
    made = ir.RankedTensorType(product.results[0].type)
    if axes.left.contracted or not made.has_static_shape:
        return
    batch = range(len(axes.left.batch))
    start = len(batch)
    spread = []
    with ir.InsertionPoint(product):
        for operand, given in zip(product.operands, (axes.left, axes.right), strict=True):
            free = range(start, start := start + len(given.free))
            places = dict(zip((*given.batch, *given.free), (*batch, *free), strict=True))
            type_ = ir.RankedTensorType(operand.type)
            whole = ir.RankedTensorType.get(made.shape, type_.element_type)
            dimensions = ir.DenseI64ArrayAttr.get([places[axis] for axis in range(type_.rank)])
            spread.append(stablehlo.BroadcastInDimOp(whole, operand, dimensions).result)
        if any(ir.RankedTensorType(each.type).element_type != made.element_type for each in spread):
            spread = [stablehlo.ConvertOp(made, each).result for each in spread]
        multiplied = stablehlo.MulOp(*spread).operation
    multiplied.attributes[NUMBER] = product.attributes[NUMBER]
    product.results[0].replace_all_uses_with(multiplied.results[0])
    erase(product)
