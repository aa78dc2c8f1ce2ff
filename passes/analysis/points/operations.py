"""The operations that the evaluator passes questions through, and what they compute."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ...ir.ops import BARRIER
from ...ir.products import sums_nothing
from ...ir.shardings import CONSTRAINT
from ...ir.types import float_format
from ...ir.values import defining_op, element_of, shape_of
from ..value_numbers import keeps_precision
from .leaves import Numbers


class How(enum.Enum):
    """How the evaluator passes a question through an operation."""

    SAME = "same"
    ELEMENTWISE = "elementwise"
    SPREAD = "spread"
    """A movement after which each element of the operand is at one or several places."""
    PART = "part"
    """A movement that drops, adds, joins or reverses elements."""
    CONSTANT = "constant"
    IOTA = "iota"
    REDUCTION = "reduction"
    SCALED = "scaled"
    """A matrix product that sums nothing, one of whose operands has no axis of its own: each
    element of the other is multiplied by one number."""


def quotient(left: Numbers, right: Numbers) -> Numbers:
    """Returns quotients of integers, rounded towards zero."""
    found: Numbers = np.sign(left) * np.sign(right) * (np.abs(left) // np.maximum(np.abs(right), 1))
    return found


UNARY: Mapping[str, Callable[[Numbers], Numbers]] = {
    "stablehlo.abs": np.abs,
    "stablehlo.cbrt": np.cbrt,
    "stablehlo.ceil": np.ceil,
    "stablehlo.cosine": np.cos,
    "stablehlo.exponential": np.exp,
    "stablehlo.exponential_minus_one": np.expm1,
    "stablehlo.floor": np.floor,
    "stablehlo.is_finite": np.isfinite,
    "stablehlo.log": np.log,
    "stablehlo.log_plus_one": np.log1p,
    "stablehlo.logistic": lambda x: 1 / (1 + np.exp(-x)),
    "stablehlo.negate": np.negative,
    "stablehlo.not": np.invert,
    "stablehlo.rsqrt": lambda x: 1 / np.sqrt(x),
    "stablehlo.sign": np.sign,
    "stablehlo.sine": np.sin,
    "stablehlo.sqrt": np.sqrt,
    "stablehlo.tanh": np.tanh,
}

BINARY: Mapping[str, Callable[[Any, Any], Numbers]] = {
    "stablehlo.add": np.add,
    "stablehlo.and": np.bitwise_and,
    "stablehlo.divide": np.divide,
    "stablehlo.maximum": np.maximum,
    "stablehlo.minimum": np.minimum,
    "stablehlo.multiply": np.multiply,
    "stablehlo.or": np.bitwise_or,
    "stablehlo.power": np.power,
    "stablehlo.subtract": np.subtract,
    "stablehlo.xor": np.bitwise_xor,
}

_OF_BOOLEANS = frozenset(f"stablehlo.{name}" for name in ("and", "not", "or", "xor"))
_OF_INTEGERS = _OF_BOOLEANS | {
    f"stablehlo.{name}"
    for name in ("abs", "add", "divide", "maximum", "minimum", "multiply", "negate", "subtract")
}
"""Arithmetic that is followed in booleans and in integers; floats have all but the bitwise."""

COMPARISONS: Mapping[str, Callable[[Any, Any], Numbers]] = {
    "EQ": np.equal,
    "GE": np.greater_equal,
    "GT": np.greater,
    "LE": np.less_equal,
    "LT": np.less,
    "NE": np.not_equal,
}

REDUCTIONS: Mapping[str, np.ufunc] = {
    "stablehlo.add": np.add,
    "stablehlo.and": np.logical_and,
    "stablehlo.maximum": np.maximum,
    "stablehlo.minimum": np.minimum,
    "stablehlo.multiply": np.multiply,
    "stablehlo.or": np.logical_or,
}

EXPONENTIALS = frozenset(
    {"stablehlo.exponential", "stablehlo.exponential_minus_one", "stablehlo.power"}
)

_SPREADS = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.transpose"})
_PARTS = frozenset(
    {"stablehlo.concatenate", "stablehlo.pad", "stablehlo.reverse", "stablehlo.slice"}
)
_OTHERS = frozenset({"stablehlo.clamp", "stablehlo.convert", "stablehlo.select"})


def how(op: ir.Operation) -> How | None:
    """Returns how the evaluator passes a question through an operation; None for one whose results
    are leaves."""
    name = op.name
    if name in (BARRIER, CONSTRAINT):
        return How.SAME
    if name == "stablehlo.reduce_precision":
        return How.SAME if keeps_precision(op) else None
    if not all(_is_followed(value) for value in (*op.operands, *op.results)):
        return None
    return _how(op, name)


def _is_readable(attribute: ir.Attribute) -> bool:
    """Whether the evaluator reads a constant's elements: not several integers of 2 or 4 bits."""
    if not isinstance(attribute, ir.DenseElementsAttr):
        return False
    dense = ir.DenseElementsAttr(attribute)
    element = ir.ShapedType(dense.type).element_type
    return dense.is_splat or not isinstance(element, ir.IntegerType) or element.width not in (2, 4)


def _how(op: ir.Operation, name: str) -> How | None:
    if name in _SPREADS:
        return How.SPREAD
    if name in _PARTS:
        return How.PART
    if name == "stablehlo.constant":
        return How.CONSTANT if _is_readable(op.attributes["value"]) else None
    if name == "stablehlo.iota":
        return How.IOTA
    if name == "stablehlo.compare":
        kind = str(op.attributes["compare_type"]) if "compare_type" in op.attributes else ""
        return None if "TOTALORDER" in kind else How.ELEMENTWISE
    if name in _OTHERS:
        return How.ELEMENTWISE
    if name in UNARY or name in BINARY:
        return How.ELEMENTWISE if _has_arithmetic(op, name) else None
    if name == "stablehlo.dot_general":
        return How.SCALED if _scales(op) else None
    if name == "stablehlo.reduce":
        return How.REDUCTION if reduction_of(op) is not None else None
    return None


def _scales(op: ir.Operation) -> bool:
    size = math.prod(shape_of(op.results[0]))
    is_whole = any(math.prod(shape_of(operand)) == size for operand in op.operands)
    return is_whole and sums_nothing(op) and is_of_floats(op.results[0])


def _has_arithmetic(op: ir.Operation, name: str) -> bool:
    element = element_of(op.operands[0])
    if isinstance(element, ir.IntegerType):
        return name in (_OF_BOOLEANS if element.width == 1 else _OF_INTEGERS)
    return name not in _OF_BOOLEANS


def reduction_of(op: ir.Operation) -> np.ufunc | None:
    """Returns what a reduction of one operand combines elements with; None for another."""
    if len(op.results) != 1:
        return None
    block = op.regions[0].blocks[0]
    body = [view.operation for view in block.operations]
    if len(body) != 2 or {*body[0].operands} != {*block.arguments}:
        return None
    is_boolean = is_of_booleans(op.operands[0])
    name = body[0].name
    if is_boolean and name not in ("stablehlo.and", "stablehlo.or"):
        return None
    if not is_boolean and name in ("stablehlo.and", "stablehlo.or"):
        return None
    return REDUCTIONS.get(name)


def is_of_sums(op: ir.Operation | None) -> bool:
    """Whether an operation is a matrix product that is more than a scaling."""
    return op is not None and op.name == "stablehlo.dot_general" and how(op) is None


def is_splat(op: ir.Operation) -> bool:
    """Whether the elements of a constant are one number."""
    return ir.DenseElementsAttr(op.attributes["value"]).is_splat


def direction_of(op: ir.Operation) -> str:
    """Returns the direction of a comparison, e.g. "GE"."""
    return stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value


def is_of_floats(value: ir.Value) -> bool:
    """Whether the elements of a value are floating-point numbers."""
    return isinstance(element_of(value), ir.FloatType)


def is_of_booleans(value: ir.Value) -> bool:
    """Whether the elements of a value are booleans."""
    element = element_of(value)
    return isinstance(element, ir.IntegerType) and element.width == 1


def _is_followed(value: ir.Value) -> bool:
    """Whether a value's elements are floats of 16 bits and more, integers or booleans."""
    type_ = value.type
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return False
    element = type_.element_type
    return isinstance(element, ir.IntegerType) or float_format(element) is not None


def wrapped(numbers: Numbers, value: ir.Value) -> Numbers:
    """Returns integers as their type holds them, and other numbers unchanged."""
    element = element_of(value)
    if not isinstance(element, ir.IntegerType) or element.width in (1, 64):
        return numbers
    span = 1 << element.width
    if element.is_unsigned:
        return numbers % span
    half = span >> 1
    return (numbers + half) % span - half


def same_operand(value: ir.Value) -> ir.Value | None:
    """Returns the operand that a value equals, of a barrier or of a sharding constraint; None for
    another value."""
    op = defining_op(value)
    if op is None or how(op) is not How.SAME:
        return None
    return op.operands[ir.OpResult(value).result_number]
