"""Plans which gathers and scatters of one element a row are rewritten, and in which form."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from jax.extend.mlir import ir

from ..framework.base import ListPlan
from ..framework.errors import NotPossibleError
from ..framework.tables import Described, Kind, Left, Table
from ..framework.text import pluralize
from ..ir.locations import source_line
from ..ir.op_facts import BufferUse
from ..ir.ops import facts_of
from ..ir.types import tensor_bytes
from ..ir.values import defining_op
from .elements import Access, KnownNumbers, RowElement, row_element

_MOST_LINES = 3
"""The most source lines that a summary names."""

_WIDTHS = (8, 16, 32, 64)

_LONGEST_ROW = 2**31
"""Positions in a row are counted in 32 bits."""


class RowForm(enum.StrEnum):
    """The form into which an access is rewritten."""

    SELECT = "select"
    """Work on whole rows."""
    BATCH = "batch"
    """The same access, its rows distinguished by batching dimensions."""


_FORMS = {RowForm.SELECT: "is a select", RowForm.BATCH: "has its rows as batching dimensions"}
_EFFECTS = {RowForm.SELECT: "as a select", RowForm.BATCH: "with batching dimensions"}


@dataclass(frozen=True)
class RowAccess:
    """An access to one element of each row, and its new form.

    Attributes:
      id: the decision's name.
      element: the access.
      form: its new form.
    """

    id: str
    element: RowElement
    form: RowForm

    @property
    def kind(self) -> str:
        return self.element.op.name.partition(".")[2]

    @property
    def line(self) -> str:
        """Returns the user's source line."""
        return source_line(self.element.op.location)

    @property
    def description(self) -> str:
        return f"{self.kind} {_EFFECTS[self.form]}, {self.line}"


def _described(op: ir.Operation) -> Described:
    """Describes an access for users, with its rows."""
    return Described.of(op, typed_as=op.operands[0])


@dataclass(frozen=True)
class OneHotPlan(ListPlan[RowAccess]):
    """The accesses that are rewritten, in the order of the program, and those that stay."""

    def effect(self) -> str:
        counts: dict[tuple[str, RowForm], int] = {}
        for access in self.decided:
            counts[access.kind, access.form] = counts.get((access.kind, access.form), 0) + 1
        return ", ".join(
            f"{pluralize(count, kind)} {_EFFECTS[form]}" for (kind, form), count in counts.items()
        )

    def summary(self) -> str:
        if self.empty:
            reasons = dict.fromkeys(f"{left.value.operation}: {left.reason}" for left in self.left)
            return "; ".join(["no access to one element a row", *list(reasons)[:_MOST_LINES]])
        lines = list(dict.fromkeys(access.line for access in self.decided if access.line))
        more = [f"{len(lines) - _MOST_LINES} more"] if len(lines) > _MOST_LINES else []
        places = ", ".join(lines[:_MOST_LINES] + more)
        return f"{self.effect()} ({places})" if places else self.effect()

    def decided_tables(self) -> tuple[Table, ...]:
        alike = Counter((_described(one.element.op), _FORMS[one.form]) for one in self.decided)
        rows = tuple(
            (value.bytes, form, replace(value, times=times))
            for (value, form), times in alike.items()
        )
        columns = {"rows": Kind.BYTES, "one element a row": Kind.TEXT, "access": Kind.VALUE}
        return (Table("Accesses that are rewritten", columns, rows),)


def plan_accesses(
    ops: Iterable[ir.Operation], *, min_bytes: int = 0, select_reads: bool = False
) -> OneHotPlan:
    """Plans some operations of a module.

    With ``select_reads`` gathers become work on whole rows too.
    """
    known = KnownNumbers()
    accesses: list[RowAccess] = []
    left = []
    for op in ops:
        try:
            element = row_element(op, known)
            if element is None:
                continue
            if (tensor_bytes(element.operand.type) or 0) < min_bytes:
                raise NotPossibleError("its rows are small")
            form = _form(element, select_reads)
        except NotPossibleError as reason:
            left.append(Left(_described(op), str(reason)))
            continue
        if form is not None:
            accesses.append(RowAccess(f"access-{len(accesses)}", element, form))
    return OneHotPlan(tuple(accesses), tuple(left))


def _form(element: RowElement, select_reads: bool) -> RowForm | None:
    """Returns the new form; None where the access needs none.

    Raises NotPossibleError where an access to one element a row stays for another reason.
    """
    if element.access is Access.READ:
        selects = select_reads and _has_integer_bits(element.operand)
    else:
        selects = _is_made_by_readers(element.operand)
    if selects and element.length < _LONGEST_ROW:
        return RowForm.SELECT
    if element.counts_rows:
        return RowForm.BATCH
    if element.access is Access.READ:
        return None
    raise NotPossibleError("what it scatters into is in memory, and updated there")


def _has_integer_bits(value: ir.Value) -> bool:
    """Whether the elements can be read as integers of a byte or more, or are booleans."""
    element = ir.RankedTensorType(value.type).element_type
    if isinstance(element, ir.IntegerType):
        return element.width in (1, *_WIDTHS)
    return isinstance(element, ir.FloatType) and element.width in _WIDTHS


def _is_made_by_readers(value: ir.Value) -> bool:
    """Whether XLA computes the value inside of its readers: it need not be in memory by itself."""
    op = defining_op(value)
    if op is None:
        return False
    facts = facts_of(op.name)
    if facts.use is BufferUse.VIEW or op.name == "stablehlo.transpose":
        return _is_made_by_readers(op.operands[0])
    return facts.is_constant or facts.is_fusible
