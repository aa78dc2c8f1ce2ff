"""The values of a module that are exchanged, and the operations that read the results.

Edits erase operations, and a new value may have the address of an erased one. So exchanges are kept
by values that are only compared, and a value that an edit added is looked up by its original.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from ...ir.shardings import CONSTRAINT, constraint_placement
from ...ir.values import defining_op
from .exchanges import Exchange, exchanges_of

SUMS = ("all-reduce", "reduce-scatter")
"""Kinds of exchanges that sum over devices."""

_LONGEST_ROW = 16
"""The most constraints in a row; JAX writes two where a user's constraint follows its own."""


@dataclass(frozen=True)
class _Uses:
    """The numbers of the exchanges that an operation of this name reads or sends."""

    name: str
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Exchanged:
    """The exchanges of a module.

    Attributes:
      exchanges: in the order of the text; empty for a module for one device.
    """

    exchanges: tuple[Exchange, ...] = ()
    _read: Mapping[ir.Value, _Uses] = field(default_factory=dict)
    """The numbers of exchanges by the first result of an operation that reads their results."""
    _sent: Mapping[ir.Value, _Uses] = field(default_factory=dict)
    """The numbers of exchanges by the value that they send."""

    @classmethod
    def of(cls, module: ir.Module) -> Exchanged:
        """Returns the exchanges of a module; pure. None are known where Shardy's partitioner, which
        is not XLA's, refuses it."""
        try:
            found = exchanges_of(module)
        except ValueError:
            return cls()
        read: dict[ir.Value, _Uses] = {}
        sent: dict[ir.Value, _Uses] = {}
        for number, each in enumerate(found):
            for reader in each.readers:
                if len(reader.results):
                    _note(read, reader.results[0], reader.name, number)
            if each.operand is not None:
                maker = defining_op(each.operand)
                _note(sent, each.operand, "" if maker is None else maker.name, number)
        return cls(tuple(each.exchange for each in found), read, sent)

    def read_by(self, op: ir.Operation) -> tuple[int, ...]:
        """Returns the numbers of the exchanges whose results an operation reads."""
        return self._of(self._read, op.results[0], op.name) if len(op.results) else ()

    def sent(self, value: ir.Value) -> tuple[int, ...]:
        """Returns the numbers of the exchanges that send a value."""
        maker = defining_op(value) if value in self._sent else None
        return self._of(self._sent, value, "" if maker is None else maker.name)

    def accounts_for(self, constraint: ir.Operation) -> bool:
        """Whether `repeated_by` has every exchange of Shardy's partitioner at a sharding
        constraint; False where the exchanges are not known, or the constraint leaves a sum."""
        is_known = bool(self.exchanges) and not constraint_placement(constraint).unreduced
        return is_known and {*self.sent(constraint.operands[0])} <= {*self.repeated_by(constraint)}

    def repeated_by(self, op: ir.Operation) -> tuple[int, ...]:
        """Returns the numbers of the exchanges that are made once more where an operation is
        repeated.

        A sum over devices is repeated with its terms, any other exchange with the readers of its
        result. The data that a sharding constraint moves belongs to the constraint.
        """
        if not self.exchanges:
            return ()
        if op.name == CONSTRAINT:
            given = self._sent_before(op)
            readers = [use.owner.operation for use in op.results[0].uses] if given else []
            return tuple(sorted(given & {n for reader in readers for n in self.read_by(reader)}))
        given = {number for operand in op.operands for number in self.sent(operand)}
        found = [n for n in self.read_by(op) if n in given and self.exchanges[n].kind not in SUMS]
        for result in op.results:
            sums = [n for n in self.sent(result) if self.exchanges[n].kind in SUMS]
            if sums and any(use.owner.operation.name != CONSTRAINT for use in result.uses):
                found += sums
        return tuple(dict.fromkeys(found))

    def _sent_before(self, constraint: ir.Operation) -> set[int]:
        """Returns the exchanges between the value before a row of constraints and their readers:
        the last constraint moves it, as on explicit axes, where each operation has its own."""
        found: set[int] = set()
        op: ir.Operation | None = constraint
        for _ in range(_LONGEST_ROW):
            if op is None or op.name != CONSTRAINT:
                break
            found.update(self.sent(op.operands[0]))
            op = defining_op(op.operands[0])
        return found

    def with_made(self, like: Mapping[ir.Value, ir.Value]) -> Exchanged:
        """Returns the exchanges with values that edits added: clones exchange as originals."""
        read, sent = dict(self._read), dict(self._sent)
        for known, uses in ((read, self._read), (sent, self._sent)):
            for made, old in like.items():
                known.pop(made, None)
                if old in uses:
                    known[made] = uses[old]
        return Exchanged(self.exchanges, read, sent)

    def on(self, counterparts: Mapping[ir.Value, ir.Value]) -> Exchanged:
        """Returns the exchanges of a clone, by the clone's values for the module's."""
        read, sent = (
            {counterparts[value]: uses for value, uses in known.items() if value in counterparts}
            for known in (self._read, self._sent)
        )
        return Exchanged(self.exchanges, read, sent)

    @staticmethod
    def _of(known: Mapping[ir.Value, _Uses], value: ir.Value, name: str) -> tuple[int, ...]:
        # A stack or a slice of a reader's result is like it, but is another operation's.
        uses = known.get(value)
        return uses.numbers if uses is not None and uses.name == name else ()


def _note(known: dict[ir.Value, _Uses], value: ir.Value, name: str, number: int) -> None:
    before = known[value].numbers if value in known else ()
    known[value] = _Uses(name, (*before, number))
