"""Finds the tables of positions that a value is computed from: an evaluation at samples may miss
one.

A table is a value that follows from iotas and constants alone, and varies. Between two values that
are compared at samples neither may have a table that the other lacks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from jax.extend.mlir import ir

from ...ir.values import shape_of
from ..reach import settled
from .derivation import Derivation
from .evaluator import Points, Scope, unraveled
from .operations import How, is_of_booleans, is_splat

_MOST_ELEMENTS = 1 << 22
"""The most elements of a table that are looked at."""

_MULTIPLIES = frozenset({"stablehlo.dot_general", "stablehlo.multiply"})
_PRODUCTS = _MULTIPLIES | {"stablehlo.divide", "stablehlo.power"}

_VARIES, _EVEN, _DATA = "varies", "even", "data"


class Positions:
    """The tables of values of a scope.

    Attributes:
      numbers: the numbers of the scores, and of others that count as data.
    """

    def __init__(self, derivation: Derivation, *numbers: int) -> None:
        self.derivation, self.numbers = derivation, numbers
        self.scope = derivation.scope
        self._kinds: dict[ir.Value, str] = {}

    def tables(self, value: ir.Value) -> frozenset[int]:
        """Returns the numbers of the tables that a value's computation reads beside data, and of
        the data that it takes apart or joins."""
        return frozenset(self.scope.number(table) for _, table in self.read(value))

    def read(self, value: ir.Value) -> Iterator[tuple[ir.Value, ir.Value]]:
        """Yields these tables, each behind a value that is computed from it and data."""
        for each in self.derivation.region(value, *self.numbers):
            made = self.scope.made_by(each)
            if made is None or self.scope.number(each) in self.numbers or self._kind(each) != _DATA:
                continue
            op, how = made
            if how is How.PART:
                yield each, each
            yield from (
                (each, operand) for operand in op.operands if self._kind(operand) == _VARIES
            )

    def multiplies_unevenly(self, value: ir.Value) -> bool:
        """Whether scores are multiplied by a table on their way to a value, other than by zeros and
        one number: such a table may be a mask."""
        for each in self.derivation.region(value, *self.numbers):
            made = self.scope.made_by(each)
            if made is None or made[0].name not in _PRODUCTS:
                continue
            kinds = [self._kind(operand) for operand in made[0].operands]
            if _DATA in kinds and _VARIES in kinds:
                table = made[0].operands[kinds.index(_VARIES)]
                if made[0].name not in _MULTIPLIES or not self._is_mask(table):
                    return True
        return False

    def _is_mask(self, table: ir.Value) -> bool:
        table = source_of_elements(self.scope, table)
        made = self.scope.made_by(table)
        is_converted = made is not None and made[0].name == "stablehlo.convert"
        if made is not None and is_converted and is_of_booleans(made[0].operands[0]):
            return True
        shape = shape_of(table)
        count = math.prod(shape)
        if count > _MOST_ELEMENTS:
            return False
        elements = Points(self.scope).at(table, unraveled(np.arange(count), shape))
        return len(np.unique(elements[elements != 0])) <= 1

    def _kind(self, value: ir.Value) -> str:
        return settled(self._kinds, self.scope.resolve(value), self._operands, self._found)

    def _operands(self, value: ir.Value) -> Iterable[ir.Value]:
        made = self.scope.made_by(value)
        if made is None or self.scope.number(value) in self.numbers:
            return ()
        return (self.scope.resolve(operand) for operand in made[0].operands)

    def _found(self, value: ir.Value) -> str:
        made = self.scope.made_by(value)
        if made is None or self.scope.number(value) in self.numbers:
            return _DATA
        op, how = made
        if how is How.IOTA or (how is How.CONSTANT and not is_splat(op)):
            return _VARIES
        kinds = {self._kinds[each] for each in self._operands(value)}
        return _DATA if _DATA in kinds else _VARIES if _VARIES in kinds else _EVEN


def source_of_elements(scope: Scope, value: ir.Value) -> ir.Value:
    """Returns the value whose elements a value has, each at one or several places."""
    value = scope.resolve(value)
    while (made := scope.made_by(value)) is not None and made[1] is How.SPREAD:
        value = scope.resolve(made[0].operands[0])
    return value
