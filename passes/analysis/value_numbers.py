"""Value numbering: values with equal numbers are equal to the bit, whenever they are computed.

Equal operations of equal operands are equal. Optimization barriers are ignored, and so is a
``reduce_precision`` to the precision that its operand has. Results of operations that are not known
to be pure, such as custom calls and collectives, equal nothing else; random bits are equal where
their key and counter are. Source: global value numbering (Alpern, Wegman and Zadeck, 1988).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from jax.extend.mlir import ir

from ..ir import walk
from ..ir.op_facts import Category
from ..ir.ops import BARRIER, facts_of
from ..ir.shardings import CONSTRAINT
from ..ir.types import FloatFormat, float_format
from ..ir.values import defining_op, element_of
from .purity import may_go
from .reach import settled


def has_no_effect(op: ir.Operation) -> bool:
    """Whether the operation only computes its results, in the same way each time.

    Barriers in its regions count as nothing.
    """
    if op.name == BARRIER or may_go(op):
        return True
    facts = facts_of(op.name)
    return (facts.branches or facts.category is Category.LOOP) and all(
        has_no_effect(view.operation) or facts_of(view.operation.name).ends_block
        for region in op.regions
        for block in region.blocks
        for view in block.operations
    )


_Made = tuple[ir.Operation | None, ir.Value | None, bool, tuple[ir.Value, ...]]
"""The operation of a value, the value that it passes on, whether the operation counts for the
number, and the values that need a number before."""


class ValueNumbers:
    """Numbers values on demand.

    `equate` states values that are equal for another reason, before a result computed from them is
    numbered. With ``through_constraints`` a sharding constraint's result equals its operand, for
    readers that ignore placements.
    """

    def __init__(self, *, through_barriers: bool = True, through_constraints: bool = False) -> None:
        self._through_barriers = through_barriers
        self._through_constraints = through_constraints
        self._of: dict[ir.Value, int] = {}
        self._made: dict[ir.Value, _Made] = {}
        """The facts of values that are not numbered yet."""
        self._by_key: dict[Hashable, int] = {}
        self._count = 0

    def copy(self) -> ValueNumbers:
        """Returns a copy, in which more values can be equated that are not equal here."""
        copied = ValueNumbers(
            through_barriers=self._through_barriers, through_constraints=self._through_constraints
        )
        copied._of, copied._by_key = dict(self._of), dict(self._by_key)
        copied._count = self._count
        return copied

    def of(self, value: ir.Value) -> int:
        """Returns the number of a value."""
        known = self._of.get(value)
        if known is not None:
            return known
        return settled(self._of, value, self._sources, self._number)

    def equate(self, value: ir.Value, other: ir.Value) -> None:
        """Sets the number of a value without one to that of another value."""
        self._of.setdefault(value, self.of(other))

    def _new(self) -> int:
        self._count += 1
        return self._count

    def same(self, value: ir.Value) -> ir.Value | None:
        """Returns the operand of a barrier, or of another operation that changes no bit; None for
        other values."""
        op = defining_op(value)
        return None if op is None else self._same(value, op)

    def _same(self, value: ir.Value, op: ir.Operation) -> ir.Value | None:
        name = op.name
        if self._through_constraints and name == CONSTRAINT:
            return op.operands[0]
        if not self._through_barriers:
            return None
        if name == BARRIER:
            return op.operands[ir.OpResult(value).result_number]
        is_same = name == "stablehlo.reduce_precision" and keeps_precision(op)
        return op.operands[0] if is_same else None

    def _made_of(self, value: ir.Value) -> _Made:
        found = self._made.get(value)
        if found is None:
            op = defining_op(value)
            same = None if op is None else self._same(value, op)
            is_numbered = op is not None and same is None and _is_numbered(op)
            sources: tuple[ir.Value, ...] = () if same is None else (same,)
            if op is not None and is_numbered:
                sources = tuple(walk.values_read(op))
            found = self._made[value] = op, same, is_numbered, sources
        return found

    def _sources(self, value: ir.Value) -> tuple[ir.Value, ...]:
        """Returns the values that need a number before a value."""
        return self._made_of(value)[-1]

    def _number(self, value: ir.Value) -> int:
        """Returns the number of a value; the other results of its operation get theirs."""
        op, same, is_numbered, _ = self._made_of(value)
        del self._made[value]
        if same is not None:
            return self._of[same]
        if op is None:
            return self._new()
        if not is_numbered:
            for result in op.results:
                self._of.setdefault(result, self._new())
            return self._of[value]
        read = tuple([self._of[operand] for operand in op.operands])
        key = op.name, read, operation_key(op, self._of.__getitem__)
        for number, result in enumerate(op.results):
            if (key, number) not in self._by_key:
                self._by_key[key, number] = self._new()
            self._of.setdefault(result, self._by_key[key, number])
        return self._of[value]


def computed_again(block: ir.Block) -> frozenset[ir.Value]:
    """Returns the values of a block that equal an earlier one, as what a checkpoint repeats."""
    operations = [view.operation for view in block.operations]
    if not any(op.name == BARRIER for op in operations):
        return frozenset()
    numbers = ValueNumbers()
    first: dict[int, ir.Value] = {}
    results = [value for op in operations for value in op.results]
    return frozenset(
        value for value in results if first.setdefault(numbers.of(value), value) != value
    )


def _is_numbered(op: ir.Operation) -> bool:
    return op.name != BARRIER and has_no_effect(op)


def keeps_precision(op: ir.Operation) -> bool:
    """Whether a ``reduce_precision`` is to the precision that its operand has already."""
    exponent, mantissa = (
        ir.IntegerAttr(op.attributes[name]).value for name in ("exponent_bits", "mantissa_bits")
    )
    return float_format(element_of(op.operands[0])) == FloatFormat(exponent, mantissa)


def operation_key(
    op: ir.Operation, number_outside: Callable[[ir.Value], Hashable] | None = None
) -> Hashable:
    """Returns a key that is equal for two operations if nothing but their operands differs.

    What a region reads from outside counts as ``number_outside`` numbers it. Raises KeyError where
    a region does so and nothing numbers it.
    """
    return (
        _attributes_key(op),
        tuple(result.type for result in op.results),
        tuple(_body_key(region.blocks[0], {}, number_outside) for region in op.regions),
    )


def _body_key(
    block: ir.Block,
    number: dict[ir.Value, int],
    number_outside: Callable[[ir.Value], Hashable] | None,
) -> Hashable:
    """Returns a key that is equal for two blocks that compute the same.

    Printing the blocks instead would number the values of the whole function.
    """
    for argument in block.arguments:
        number[argument] = len(number)

    def numbered(value: ir.Value) -> Hashable:
        if number_outside is None or value in number:
            return number[value]
        return "outside", number_outside(value)

    rows: list[Hashable] = [tuple(argument.type for argument in block.arguments)]
    for view in block.operations:
        op = view.operation
        read = tuple(numbered(operand) for operand in op.operands)
        types = tuple(result.type for result in op.results)
        inner = tuple(_body_key(region.blocks[0], number, number_outside) for region in op.regions)
        rows.append((op.name, read, _attributes_key(op), types, inner))
        for result in op.results:
            number[result] = len(number)
    return tuple(rows)


def _attributes_key(op: ir.Operation) -> Hashable:
    """Returns a key that is equal for equal attributes, and unique if one cannot be read."""
    attributes = walk.readable_attributes(op)
    if any(attribute is None for attribute in attributes.values()):
        return object()
    return tuple(attributes.items())
