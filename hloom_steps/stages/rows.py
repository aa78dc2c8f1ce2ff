"""Reads rows of stacks, parts of a value's leading axis, as close to their computation as possible.

Where a stack is a concatenation of loops' parts, its rows are one of these; rows of a converted
value are converted rows. So a stage reads a slice of a stacked parameter.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from hloom.passes.ir import walk
from hloom.passes.ir.build import typed
from hloom.passes.ir.ops import BARRIER
from hloom.passes.ir.values import defining_op, shape_of

CONCATENATE, SLICE = "stablehlo.concatenate", "stablehlo.slice"

_ROW_BY_ROW = frozenset({"stablehlo.convert", "stablehlo.negate"})


class RowReader:
    """Writes rows of values at the insertion point; the same rows are written once."""

    def __init__(self) -> None:
        self._known: dict[tuple[ir.Value, int, int], ir.Value] = {}

    def rows(self, value: ir.Value, start: int, stop: int) -> ir.Value:
        """The rows of a value from ``start`` to ``stop``, exclusive."""
        if (start, stop) == (0, shape_of(value)[0]):
            return value
        key = value, start, stop
        if key not in self._known:
            self._known[key] = self._written(value, start, stop)
        return self._known[key]

    def _written(self, value: ir.Value, start: int, stop: int) -> ir.Value:
        op = defining_op(value)
        if op is not None and op.name == CONCATENATE and axis_of(op) == 0:
            pieces = _pieces(op, start, stop)
            return concatenated([self.rows(value, *rows) for value, *rows in pieces])
        if op is not None and op.name == BARRIER:
            # A barrier orders work of one program, and these rows are in several.
            return self.rows(op.operands[ir.OpResult(value).result_number], start, stop)
        if op is not None and does_each_row_alone(op):
            inner = self.rows(op.operands[0], start, stop)
            return with_operand(op, inner, [stop - start, *shape_of(value)[1:]])
        shape = shape_of(value)
        ends = [stop, *shape[1:]]
        starts = [start] + [0] * (len(shape) - 1)
        return stablehlo.SliceOp(value, starts, ends, [1] * len(shape)).result


def does_each_row_alone(op: ir.Operation) -> bool:
    """Whether an operation of one operand treats each of its rows alike and by itself."""
    if op.name == "stablehlo.reshape":
        return shape_of(op.operands[0])[:1] == shape_of(op.results[0])[:1]
    if op.name == "stablehlo.transpose":
        return walk.integers(op, "permutation")[0] == 0
    return op.name in _ROW_BY_ROW


def with_operand(op: ir.Operation, operand: ir.Value, shape: Sequence[int]) -> ir.Value:
    """Applies an operation to another operand, with a result of another shape."""
    made = ir.Operation.create(
        op.name,
        results=[typed(op.results[0], shape)],
        operands=[operand],
        attributes=walk.attributes(op),
        loc=op.location,
    )
    return made.results[0]


def axis_of(concatenate: ir.Operation) -> int:
    """Returns the axis of a concatenation."""
    return ir.IntegerAttr(concatenate.attributes["dimension"]).value


def concatenated(pieces: Sequence[ir.Value]) -> ir.Value:
    """Concatenates stacks along their leading axis."""
    if len(pieces) == 1:
        return pieces[0]
    rows = sum(shape_of(piece)[0] for piece in pieces)
    type_ = typed(pieces[0], [rows, *shape_of(pieces[0])[1:]])
    made = ir.Operation.create(
        CONCATENATE,
        results=[type_],
        operands=list(pieces),
        attributes={"dimension": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0)},
    )
    return made.results[0]


def _pieces(op: ir.Operation, start: int, stop: int) -> list[tuple[ir.Value, int, int]]:
    """Yields the operands of a concatenation that contain some of these rows, each with its own row
    range."""
    found, at = [], 0
    for operand in op.operands:
        rows = shape_of(operand)[0]
        first, last = max(start - at, 0), min(stop - at, rows)
        if first < last:
            found.append((operand, first, last))
        at += rows
    return found


def parameter_rows(op: ir.Operation, block: ir.Block) -> tuple[int, int, int] | None:
    """Returns the number of the block's argument that an operation slices, and the row range."""
    rows = sliced_rows(op)
    if rows is None:
        return None
    source = op.operands[0]
    if not isinstance(source.owner, ir.Block) or source.owner != block:
        return None
    return ir.BlockArgument(source).arg_number, *rows


def sliced_rows(op: ir.Operation) -> tuple[int, int] | None:
    """Returns the rows of its operand that an operation slices; None where it slices none."""
    if op.name != SLICE:
        return None
    starts, stops, strides = (
        walk.integers(op, name) for name in ("start_indices", "limit_indices", "strides")
    )
    shape = shape_of(op.operands[0])
    if not shape or any(starts[1:]) or stops[1:] != shape[1:] or any(s != 1 for s in strides):
        return None
    return starts[0], stops[0]
