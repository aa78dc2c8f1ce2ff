"""Integers that are known before the program runs: the row numbers that JAX's indexing makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..analysis.constants import ConstantValues, made_value
from ..ir import walk
from ..ir.values import defining_op

Numbers = np.ndarray[Any, np.dtype[Any]]

_MOST_ELEMENTS = 2**24
"""Larger values are not computed: no batch has so many rows."""


class KnownNumbers:
    """Integers that follow from constants alone, as arrays."""

    def __init__(self) -> None:
        self._constants = ConstantValues()
        self._known: dict[ir.Value, Numbers | None] = {}

    def of(self, value: ir.Value) -> Numbers | None:
        """The value's elements; None where they are not known."""
        if value not in self._known:
            self._known[value] = self._computed(value)
        return self._known[value]

    def component(self, vectors: ir.Value, axis: int, number: int) -> Numbers | None:
        """One number of each of the index vectors that lie along an axis; None where not known.

        The vectors' other numbers need not be known.
        """
        op = defining_op(made_value(vectors))
        if op is not None and op.name == "stablehlo.concatenate":
            if ir.IntegerAttr(op.attributes["dimension"]).value == axis:
                for part in op.operands:
                    length = ir.RankedTensorType(part.type).shape[axis]
                    if number < length:
                        return self.component(part, axis, number)
                    number -= length
        elif op is not None and op.name == "stablehlo.clamp":
            low, middle, high = (self._bound(each, axis, number) for each in op.operands)
            if low is None or middle is None or high is None:
                return None
            return _clamped(low, middle, high)
        found = self.of(vectors)
        return None if found is None else np.take(found, number, axis)

    def _bound(self, value: ir.Value, axis: int, number: int) -> Numbers | None:
        """The same of an operand of a clamp, which may be a number for all."""
        has_axes = ir.RankedTensorType(value.type).rank
        return self.component(value, axis, number) if has_axes else self.of(value)

    def _computed(self, value: ir.Value) -> Numbers | None:
        made: dict[ir.Value, Numbers] = {}
        for op in self._constants.chain(value) or ():
            inputs = [made[made_value(operand)] for operand in op.operands]
            found = _evaluated(op, inputs)
            if found is None:
                return None
            made[op.results[0]] = found
        return made.get(made_value(value))


def _evaluated(op: ir.Operation, inputs: Sequence[Numbers]) -> Numbers | None:
    """The result of an operation on integers; None where hloom does not compute it."""
    type_ = ir.RankedTensorType(op.results[0].type)
    dtype, shape = _dtype(type_.element_type), tuple(type_.shape)
    evaluate = _EVALUATED.get(op.name)
    if evaluate is None or dtype is None or math.prod(shape) > _MOST_ELEMENTS:
        return None
    with np.errstate(over="ignore"):
        found = evaluate(op, shape, *inputs)
    return None if found is None else found.astype(dtype)


def _dtype(element: ir.Type) -> np.dtype[Any] | None:
    """Integers of a byte or more and booleans; numpy has no others."""
    if not isinstance(element, ir.IntegerType):
        return None
    if element.width == 1:
        return np.dtype(bool)
    if element.width not in (8, 16, 32, 64):
        return None
    return np.dtype(f"{'uint' if element.is_unsigned else 'int'}{element.width}")


def _constant(op: ir.Operation, shape: Sequence[int]) -> Numbers | None:
    attribute = walk.readable_attributes(op)["value"]
    if not isinstance(attribute, ir.DenseIntElementsAttr):
        return None
    if attribute.is_splat:
        splat = attribute.get_splat_value()
        number = ir.IntegerAttr(splat).value if isinstance(splat, ir.IntegerAttr) else None
        return None if number is None else np.broadcast_to(np.asarray(number), shape)
    return np.asarray(attribute)


def _iota(op: ir.Operation, shape: Sequence[int]) -> Numbers:
    axis = ir.IntegerAttr(op.attributes["iota_dimension"]).value
    return np.broadcast_to(counting(len(shape), axis, shape[axis]), shape)


def counting(rank: int, axis: int, size: int) -> Numbers:
    """0, 1, 2, ... along an axis; the other axes are of one element."""
    return np.arange(size).reshape([size if each == axis else 1 for each in range(rank)])


def _broadcast(op: ir.Operation, shape: Sequence[int], operand: Numbers) -> Numbers:
    axes = walk.integers(op, "broadcast_dimensions")
    in_order = operand.transpose(np.argsort(axes))
    sizes = dict(zip(sorted(axes), in_order.shape, strict=True))
    return np.broadcast_to(
        in_order.reshape([sizes.get(axis, 1) for axis in range(len(shape))]), shape
    )


def _compared(op: ir.Operation, _: Sequence[int], one: Numbers, other: Numbers) -> Numbers:
    direction = stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value
    compare: Callable[[Numbers, Numbers], Numbers] = {
        "EQ": np.equal,
        "NE": np.not_equal,
        "LT": np.less,
        "LE": np.less_equal,
        "GT": np.greater,
        "GE": np.greater_equal,
    }[direction]
    return compare(one, other)


def _clamped(low: Numbers, middle: Numbers, high: Numbers) -> Numbers:
    return np.minimum(np.maximum(middle, low), high)


def _by(function: Callable[..., Numbers]) -> Callable[..., Numbers]:
    """Elementwise."""
    return lambda op, shape, *operands: function(*operands)


_EVALUATED: dict[str, Callable[..., Numbers | None]] = {
    "stablehlo.add": _by(np.add),
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.clamp": _by(_clamped),
    "stablehlo.compare": _compared,
    "stablehlo.constant": _constant,
    "stablehlo.convert": _by(np.asarray),
    "stablehlo.iota": _iota,
    "stablehlo.maximum": _by(np.maximum),
    "stablehlo.minimum": _by(np.minimum),
    "stablehlo.multiply": _by(np.multiply),
    "stablehlo.reshape": lambda op, shape, operand: operand.reshape(shape),
    "stablehlo.select": _by(np.where),
    "stablehlo.subtract": _by(np.subtract),
}
"""By operation its result, of numbers that are made into its type."""
