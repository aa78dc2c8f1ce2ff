"""What kind of work an operation is: free, cheap to do again, or never to be done again."""

from __future__ import annotations

import enum
from collections.abc import Callable

from jax.extend.mlir import ir

from hloom.passes.analysis.sharding_constraints import CONSTRAINT, moves_nothing


class Kind(enum.StrEnum):
    """How an operation may be treated by rematerialization."""

    CONSTANT = "constant"
    """No operand that holds data: a constant or an iota. Costs nothing to have again."""
    CHEAP = "cheap"
    """Pure, and as fast as reading its operands and writing its results."""
    REDUCTION = "reduction"
    """Pure and cheap, but reads much more than it writes."""
    EXPENSIVE = "expensive"
    """Pure, but worth its time: done again only where that is weighed against memory."""
    OPAQUE = "opaque"
    """Everything else: a collective, ordered, with side effects, or unknown."""


_CONSTANTS = frozenset({"stablehlo.constant", "stablehlo.iota"})

_ELEMENTWISE = frozenset(
    f"stablehlo.{name}"
    for name in (
        "abs add and atan2 bitcast_convert cbrt ceil clamp compare complex convert cosine "
        "count_leading_zeros divide exponential exponential_minus_one floor imag is_finite log "
        "log_plus_one logistic maximum minimum multiply negate not or popcnt power real "
        "reduce_precision remainder round_nearest_afz round_nearest_even rsqrt select shift_left "
        "shift_right_arithmetic shift_right_logical sign sine sqrt subtract tan tanh xor"
    ).split()
) | frozenset(
    f"chlo.{name}"
    for name in (
        "acos acosh asin asinh atan atanh bessel_i1e conj cosh digamma erf erf_inv erfc "
        "is_inf is_neg_inf is_pos_inf lgamma next_after polygamma sinh square tan zeta"
    ).split()
)

_MOVEMENT = frozenset(
    {
        "stablehlo.broadcast_in_dim",
        "stablehlo.concatenate",
        "stablehlo.dynamic_slice",
        "stablehlo.pad",
        "stablehlo.reshape",
        "stablehlo.reverse",
        "stablehlo.slice",
        "stablehlo.transpose",
    }
)

FUSIBLE = _ELEMENTWISE | _MOVEMENT
"""Names of the operations that a compiler fuses into whoever reads them."""

_REDUCTIONS = frozenset({"stablehlo.reduce"})

_EXPENSIVE = frozenset(
    f"stablehlo.{name}"
    for name in (
        "batch_norm_grad batch_norm_inference batch_norm_training cholesky convolution dot "
        "dot_general dynamic_gather dynamic_update_slice fft gather map reduce_window "
        "rng_bit_generator scatter select_and_scatter sort triangular_solve"
    ).split()
) | frozenset({"chlo.ragged_dot", "chlo.top_k"})

BRANCHING = frozenset({"stablehlo.case", "stablehlo.if", "stablehlo.while"})
"""Names of the operations whose regions are parts of the program."""


def kind_of(op: ir.Operation) -> Kind:
    """The kind of an operation; anything not known to be pure and cheap is OPAQUE."""
    name = op.name
    if name in _CONSTANTS:
        return Kind.CONSTANT
    if name in _ELEMENTWISE or name in _MOVEMENT:
        return Kind.CHEAP
    if name in _REDUCTIONS and _is_plain_reduction(op):
        return Kind.REDUCTION
    if name == CONSTRAINT:
        return Kind.CHEAP if moves_nothing(op, _ELEMENTWISE) else Kind.OPAQUE
    if name in _EXPENSIVE or name in _REDUCTIONS:
        return Kind.EXPENSIVE if _is_pure_inside(op) else Kind.OPAQUE
    if name in BRANCHING:
        return Kind.EXPENSIVE if _is_pure_inside(op) else Kind.OPAQUE
    return Kind.OPAQUE


CHEAP_KINDS = frozenset({Kind.CONSTANT, Kind.CHEAP, Kind.REDUCTION})
"""Kinds of work that are always worth doing again for the memory of their results."""


def is_cheap(op: ir.Operation) -> bool:
    """Whether the operation is pure, and cheap to do a second time."""
    return kind_of(op) in CHEAP_KINDS


def is_pure(op: ir.Operation) -> bool:
    """Whether the operation may stand a second time in the program."""
    return kind_of(op) is not Kind.OPAQUE


def may_go(op: ir.Operation) -> bool:
    """Whether the operation may be left out of the program where nothing reads its results."""
    if op.name == CONSTRAINT or (op.name in BRANCHING and _all_inside(op, may_go)):
        return True
    return is_pure(op)


def _is_pure_inside(op: ir.Operation) -> bool:
    """Whether everything in the operation's regions may be done again."""
    return _all_inside(op, is_pure)


def _all_inside(op: ir.Operation, holds: Callable[[ir.Operation], bool]) -> bool:
    """Whether something holds for everything in the operation's regions."""
    return all(
        holds(inner) or inner.name == "stablehlo.return"
        for region in op.regions
        for block in region.blocks
        for inner in (view.operation for view in block.operations)
    )


def is_table(op: ir.Operation) -> bool:
    """Whether the operation is a constant that spells out its elements.

    Cloning one would spell them out again in the program that XLA reads.
    """
    if op.name != "stablehlo.constant":
        return False
    try:
        elements = op.attributes["value"]
    except TypeError:  # the bindings cannot read dense elements of complex type
        return not _is_scalar(op)
    return not (isinstance(elements, ir.DenseElementsAttr) and elements.is_splat)


def _is_scalar(op: ir.Operation) -> bool:
    return ir.RankedTensorType(op.results[0].type).rank == 0


def _is_plain_reduction(op: ir.Operation) -> bool:
    """A reduction whose body is cheap itself and uses nothing from outside."""
    block = op.regions[0].blocks[0]
    inside: set[ir.Value] = set(block.arguments)
    *body, terminator = [view.operation for view in block.operations]
    for inner in body:
        if kind_of(inner) not in (Kind.CONSTANT, Kind.CHEAP):
            return False
        if not inside.issuperset(inner.operands):
            return False
        inside.update(inner.results)
    return inside.issuperset(terminator.operands)
