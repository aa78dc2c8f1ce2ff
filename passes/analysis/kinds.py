"""What kind of work an operation is: free, cheap to do again, or never to be done again."""

from __future__ import annotations

import enum

from jax.extend.mlir import ir


class Kind(enum.Enum):
    """How an operation may be treated by rematerialization."""

    CONSTANT = "constant"
    """No operand that holds data: a constant or an iota. Costs nothing to have again."""
    CHEAP = "cheap"
    """Pure, and as fast as reading its operands and writing its results."""
    REDUCTION = "reduction"
    """Pure and cheap, but reads much more than it writes."""
    OPAQUE = "opaque"
    """Everything else: expensive, ordered, with side effects, or unknown."""


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

_REDUCTIONS = frozenset({"stablehlo.reduce"})


def kind_of(op: ir.Operation) -> Kind:
    """The kind of an operation; anything not known to be pure and cheap is OPAQUE."""
    name = op.name
    if name in _CONSTANTS:
        return Kind.CONSTANT
    if name in _ELEMENTWISE or name in _MOVEMENT:
        return Kind.CHEAP
    if name in _REDUCTIONS and _is_plain_reduction(op):
        return Kind.REDUCTION
    if name == "sdy.sharding_constraint" and _is_of_cheap_work(op):
        return Kind.CHEAP
    return Kind.OPAQUE


def is_recomputable(op: ir.Operation) -> bool:
    """Whether the operation is pure and may stand a second time in the program."""
    return kind_of(op) is not Kind.OPAQUE


def _is_of_cheap_work(constraint: ir.Operation) -> bool:
    """Whether a sharding constraint is on the result of cheap work.

    That result mostly has the sharding already. A constraint on a matrix product or an argument
    may be where a collective moves data, which must not happen twice.
    """
    owner = constraint.operands[0].owner
    return not isinstance(owner, ir.Block) and kind_of(owner.operation) is not Kind.OPAQUE


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
