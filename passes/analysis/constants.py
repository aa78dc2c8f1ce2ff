"""Values that follow from constants alone, seen through the invariant carries of loops, and large
values that follow from small ones."""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.mlir import ir

from ..ir import walk
from ..ir.ops import BARRIER, facts_of
from ..ir.shardings import CONSTRAINT
from ..ir.types import tensor_bytes
from ..ir.values import defining_op
from .reach import settled
from .shardings.constraints import moves_nothing

LONGEST_CHAIN = 32
"""The most operations that compute a value which counts as a constant."""

_COMPLEX_ZERO = "dense<(0.000000e+00,0.000000e+00)>"
"""The text of a complex zero in a constant."""


class ConstantValues:
    """The values of a module that are constants, iotas, splats, or light work on these alone."""

    def __init__(self) -> None:
        self._chains: dict[ir.Value, tuple[ir.Operation, ...] | None] = {}

    def chain(self, value: ir.Value) -> tuple[ir.Operation, ...] | None:
        """Returns the operations that make the value, in an order to clone them; None if not
        constant.

        An invariant argument of a loop's body equals the operand it starts as. A value that takes
        more than 32 operations counts as no constant, whichever value is requested first.
        """
        return settled(self._chains, value, self._needs, self._joined)

    def _needs(self, value: ir.Value) -> tuple[ir.Value, ...]:
        """Returns the operands of a value whose chains have to be known first."""
        sources = _sources(value) or ()
        is_decided = any(self._chains.get(source, ()) is None for source in sources)
        return () if is_decided else sources

    def _joined(self, value: ir.Value) -> tuple[ir.Operation, ...] | None:
        """Returns the chain of a value, from those of its operands."""
        sources = _sources(value)
        if sources is None:
            return None
        ops: dict[ir.Operation, None] = {}
        for source in sources:
            part = self._chains.get(source)
            if part is None:
                return None
            ops.update(dict.fromkeys(part))
        op = defining_op(value)
        if op is not None and _is_light(op):
            ops[op] = None
        return tuple(ops) if len(ops) <= LONGEST_CHAIN else None


@dataclass(frozen=True)
class LightChain:
    """Light work that computes a value from few others.

    Attributes:
      ops: the operations, in an order to clone them.
      leaves: the values that they read from others; none for a constant.
    """

    ops: tuple[ir.Operation, ...]
    leaves: tuple[ir.Value, ...] = ()


def chain_of_small(
    value: ir.Value, constants: ConstantValues, leaf_bytes: int
) -> LightChain | None:
    """Returns the light work that makes a value of constants and of values that take so much
    together.

    It begins at the first values that are small enough, and takes 32 operations at most; None where
    it cannot. Optimization barriers are seen through, loops are not.
    """
    ops: dict[ir.Value, ir.Operation] = {}
    leaves: dict[ir.Value, None] = {}
    entered: set[ir.Value] = set()
    waiting = [before_barriers(value)]
    while waiting:
        current = waiting[-1]
        op = defining_op(current)
        size_bytes = tensor_bytes(current.type)
        is_constant = constants.chain(current) is not None
        if current in ops or current in leaves:
            waiting.pop()
        elif size_bytes is None:
            return None
        elif not is_constant and size_bytes <= leaf_bytes:
            leaf_bytes -= size_bytes
            leaves[waiting.pop()] = None
        elif op is None or not _is_light(op):
            return None
        elif current in entered:
            ops[waiting.pop()] = op
        elif len(entered) == LONGEST_CHAIN:
            return None
        else:
            entered.add(current)
            waiting += map(before_barriers, op.operands)
    return LightChain(tuple(ops.values()), tuple(leaves))


def before_barriers(value: ir.Value) -> ir.Value:
    """Returns the value that optimization barriers pass on as this one; mostly this one itself."""
    while not isinstance(value.owner, ir.Block) and (same := equal_value(value)) is not None:
        value = same
    return value


def _sources(value: ir.Value) -> tuple[ir.Value, ...] | None:
    """Returns the operands of a value by light work, or its equal; None for other values."""
    same = equal_value(value)
    if same is not None:
        return (same,)
    op = defining_op(value)
    if op is None or not _is_light(op):
        return None
    return tuple(op.operands)


def _is_light(op: ir.Operation) -> bool:
    """Whether an operation costs nothing in the kernel of each reader, and sends nothing: with
    explicit axes a constraint follows each operation that computes a mask."""
    return facts_of(op.name).light or (op.name == CONSTRAINT and moves_nothing(op))


def equal_value(value: ir.Value) -> ir.Value | None:
    """Returns the value that this one always equals, where it is only passed on; None otherwise.

    An invariant argument of a while loop's body equals the operand it starts as, a result of an
    optimization barrier the operand.
    """
    owner = value.owner
    if isinstance(owner, ir.Block):
        return _initial_value(ir.BlockArgument(value), owner.owner.operation)
    op = owner.operation
    if op.name != BARRIER:
        return None
    return op.operands[ir.OpResult(value).result_number]


def _initial_value(argument: ir.BlockArgument, loop: ir.Operation) -> ir.Value | None:
    if loop.name != "stablehlo.while":
        return None
    number = argument.arg_number
    body = loop.regions[1].blocks[0]
    if walk.terminator(body).operands[number] != body.arguments[number]:
        return None
    return loop.operands[number]


def made_value(value: ir.Value) -> ir.Value:
    """Returns the value that is passed on to this one in the end; mostly this one itself."""
    while (same := equal_value(value)) is not None:
        value = same
    return value


def is_zero_constant(op: ir.Operation) -> bool:
    """Whether a constant is zero everywhere; one that spells out its elements is none."""
    if op.name != "stablehlo.constant":
        return False
    attribute = walk.readable_attributes(op).get("value")
    if attribute is None:  # the bindings cannot read dense elements of complex type
        return _COMPLEX_ZERO in str(op)
    if not isinstance(attribute, ir.DenseElementsAttr) or not attribute.is_splat:
        return False
    element = attribute.get_splat_value()
    return isinstance(element, ir.FloatAttr | ir.IntegerAttr | ir.BoolAttr) and not element.value
