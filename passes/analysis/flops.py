"""The floating-point operations of single StableHLO and CHLO operations."""

from __future__ import annotations

import math
from collections.abc import Callable

from jax.extend.mlir import ir

from hloom.passes.analysis.product_flops import product_flops
from hloom.passes.ir.tensor_sizes import TensorSizes

_FLOPS_BY_ELEMENT = {
    **dict.fromkeys(("divide", "remainder", "rsqrt", "sqrt"), 4),
    **dict.fromkeys(("cbrt", "cosine", "exponential", "exponential_minus_one", "log"), 8),
    **dict.fromkeys(("log_plus_one", "logistic", "sine"), 8),
    **dict.fromkeys(("atan2", "power", "tan", "tanh"), 16),
    **dict.fromkeys(("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh"), 16),
    **dict.fromkeys(("bessel_i1e", "erf", "erf_inv", "erfc"), 32),
    **dict.fromkeys(("digamma", "lgamma", "polygamma", "zeta"), 64),
    "rng_bit_generator": 32,
    "batch_norm_inference": 4,
    "batch_norm_training": 8,
    "batch_norm_grad": 16,
}
"""FLOPs for one element of the result; 1 for operations that are not here.

Divisions and roots are a special-function instruction with a correction or two, exponentials the
same with a range reduction, the others polynomials; a random word takes the rounds of Threefry."""

_NO_WORK = frozenset(
    f"stablehlo.{name}"
    for name in (
        "after_all bitcast_convert broadcast_in_dim composite concatenate constant convert "
        "create_token custom_call dynamic_gather dynamic_slice dynamic_update_slice gather "
        "get_tuple_element iota optimization_barrier pad reshape return reverse slice transpose "
        "tuple"
    ).split()
) | frozenset({"func.call", "func.return", "sdy.return", "sdy.sharding_constraint"})
"""Operations that only move data, and those of whose work nothing is known."""


def operation_flops(op: ir.Operation, sizes: TensorSizes) -> float:
    """FLOPs of one execution; a multiply-add counts as two.

    Of a loop or a conditional only what the operation does itself, which is nothing. Operations on
    values without a static size count as nothing.
    """
    name = op.name
    if name in _NO_WORK or not len(op.results):
        return 0.0
    product = product_flops(op)
    if product is not None:
        return product
    counter = _COUNTERS.get(name)
    if counter is not None:
        return float(counter(op, sizes))
    by_element = _FLOPS_BY_ELEMENT.get(name.split(".", 1)[1], 1)
    return float(by_element * sizes.of(op.results[0]).elements)


def _body(op: ir.Operation) -> int:
    """Operations in the region of a reduction, a sort or a scatter, but for its terminator."""
    return len(list(op.regions[0].blocks[0].operations)) - 1


def _window(op: ir.Operation) -> int:
    if "window_dimensions" not in op.attributes:
        return 1
    return math.prod(ir.DenseI64ArrayAttr(op.attributes["window_dimensions"]))


def _reduce(op: ir.Operation, sizes: TensorSizes) -> float:
    return sizes.of(op.operands[0]).elements * _body(op)


def _reduce_window(op: ir.Operation, sizes: TensorSizes) -> float:
    return sizes.of(op.results[0]).elements * _window(op) * _body(op)


def _select_and_scatter(op: ir.Operation, sizes: TensorSizes) -> float:
    """A comparison for each element of the window, then the addition."""
    return sizes.of(op.operands[1]).elements * (_window(op) + 1)


def _scatter(op: ir.Operation, sizes: TensorSizes) -> float:
    updates = op.operands[len(op.operands) - 1]
    return sizes.of(updates).elements * _body(op)


def _sort(op: ir.Operation, sizes: TensorSizes) -> float:
    axis = ir.IntegerAttr(op.attributes["dimension"]).value
    return _comparisons(op, axis, sizes) * _body(op)


def _top_k(op: ir.Operation, sizes: TensorSizes) -> float:
    return _comparisons(op, -1, sizes)


def _comparisons(op: ir.Operation, axis: int, sizes: TensorSizes) -> float:
    length = ir.ShapedType(op.operands[0].type).shape[axis]
    return sizes.of(op.operands[0]).elements * math.log2(max(2, length))


def _fft(op: ir.Operation, sizes: TensorSizes) -> float:
    length = math.prod(ir.DenseI64ArrayAttr(op.attributes["fft_length"]))
    return 5.0 * sizes.of(op.results[0]).elements * math.log2(max(2, length))


def _cholesky(op: ir.Operation, sizes: TensorSizes) -> float:
    return sizes.of(op.results[0]).elements * ir.ShapedType(op.results[0].type).shape[-1] / 3


def _triangular_solve(op: ir.Operation, sizes: TensorSizes) -> float:
    return sizes.of(op.results[0]).elements * ir.ShapedType(op.operands[0].type).shape[-1]


def _map(op: ir.Operation, sizes: TensorSizes) -> float:
    return sizes.of(op.results[0]).elements * _body(op)


def _nothing(op: ir.Operation, sizes: TensorSizes) -> float:
    return 0.0


_COUNTERS: dict[str, Callable[[ir.Operation, TensorSizes], float]] = {
    "chlo.top_k": _top_k,
    "sdy.manual_computation": _nothing,
    "stablehlo.case": _nothing,
    "stablehlo.cholesky": _cholesky,
    "stablehlo.fft": _fft,
    "stablehlo.if": _nothing,
    "stablehlo.map": _map,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.scatter": _scatter,
    "stablehlo.select_and_scatter": _select_and_scatter,
    "stablehlo.sort": _sort,
    "stablehlo.triangular_solve": _triangular_solve,
    "stablehlo.while": _nothing,
}
