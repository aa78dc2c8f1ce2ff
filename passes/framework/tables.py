"""Tables: the form in which a plan states its decisions, so that every reader shows every plan.

A plan states facts (single figures) and tables. Their cells are typed: a plan has bytes and seconds
as numbers, and the reader (a terminal, a page, a comparison) renders them. Dumps contain them
as `Statement` writes and reads them.
"""

from __future__ import annotations

import enum
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeAlias

from jax.extend.mlir import ir

from ..ir.locations import operation_name, source_of
from ..ir.names import SourceLine, split_name
from ..ir.origins import origin_of
from ..ir.types import tensor_bytes
from .structure import Condition, Whole, read, written
from .text import flops, percent, pluralize, seconds, short_type, size

MOST_ROWS = 1000
"""The most rows of a table that its JSON contains; the others are counted."""


class Kind(enum.StrEnum):
    """The type of a cell."""

    TEXT = "text"
    CODE = "code"
    """A text in code form: a spec, the name of a symbol."""
    DRAWING = "drawing"
    """A line of a drawing, in which each space counts."""
    COUNT = "count"
    BYTES = "bytes"
    SECONDS = "seconds"
    FLOPS = "flops"
    SHARE = "share"
    """A number from 0 to 1, shown in percent."""
    CHANGE = "change"
    """A share by which something grows, or shrinks where it is negative, in percent."""
    VALUE = "value"
    """A value or an operation of the program, as `Described`."""

    @property
    def is_number(self) -> bool:
        return self not in (Kind.TEXT, Kind.CODE, Kind.DRAWING, Kind.VALUE)


@dataclass(frozen=True)
class Described:
    """A value or an operation of the user's program, for people.

    Attributes:
      name: JAX's name stack of it; empty where it has none.
      source: the line of the user's program.
      type: that of the value; empty for an operation without results.
      bytes: those of the value on one device; 0 where they are not known.
      operation: the StableHLO operation, or the one that computes the value; empty for an argument.
      times: the number of values or operations of this line that it represents.
      stacked: the number of results of the operation that a loop stacks in the value; 1 without.
    """

    name: str = ""
    source: SourceLine = field(default_factory=SourceLine)
    type: str = ""
    bytes: Whole = 0
    operation: str = ""
    times: Whole = 1
    stacked: Whole = 1

    @classmethod
    def of(
        cls,
        what: ir.Value | ir.Operation,
        bytes: int | None = None,
        *,
        typed_as: ir.Value | None = None,
    ) -> Described:
        """Returns the description of a value or an operation; a loop's result has that of the
        operation that computes it inside.

        Args:
          what: the value or the operation.
          bytes: those of the value on one device; None for those of its type.
          typed_as: another value whose type and bytes the description has, if any.
        """
        origin = None if isinstance(what, ir.Operation) else origin_of(what)
        op = origin.op if origin is not None else what
        operation = op.name if isinstance(op, ir.Operation) else ""
        value = typed_as
        if value is None:
            value = what if isinstance(what, ir.Value) else next(iter(what.results), None)
        type_ = "" if value is None else str(value.type)
        if bytes is None:
            bytes = 0 if value is None else tensor_bytes(value.type) or 0
        name, source = operation_name(op.location), source_of(op.location)
        stacked = 1 if origin is None else origin.stacked
        return cls(name, source, type_, bytes, operation, stacked=stacked)

    @classmethod
    def at(cls, location: ir.Location, operation: str = "") -> Described:
        """Returns the description of an operation by its location, without a type."""
        return cls(operation_name(location), source_of(location), operation=operation)

    def __str__(self) -> str:
        """Returns e.g. "tensor<8x64xf32> of multiply (jit(step)/mul, /home/me/train.py:12)"."""
        made_by = self.operation.rpartition(".")[2]
        made_by = made_by or ("an argument" if self.type else "an operation")
        places = ", ".join(filter(None, (self.name, self.source.line)))
        text = f"{made_by} ({places})" if places else made_by
        return f"{self.type} of {text}" if self.type else text

    @property
    def told(self) -> str:
        """Returns e.g. "2 x f32[8,64] of tanh, stacked over 6 iterations, train.py:12"."""
        times = f"{self.times} x " if self.times > 1 else ""
        stacked = f"stacked over {self.stacked} iterations" if self.stacked > 1 else ""
        made_by = split_name(self.name)[1] or self.operation.rpartition(".")[2] or "an argument"
        value = f"{times}{short_type(self.type)} of {made_by}" if self.type else made_by
        return ", ".join(filter(None, (value, stacked, self.source.short)))

    def called(self, otherwise: str) -> str:
        """Returns e.g. "24.3 MiB of jit(step)/mul (/home/me/train.py:12)"."""
        where = f" ({self.source})" if self.source.line else ""
        return f"{size(self.bytes)} of {self.name or otherwise}{where}"


_Small = Condition("a number below 2^63", lambda number: abs(number) < 2**63)
Number: TypeAlias = Annotated[int, _Small] | Annotated[float, _Small]
Cell: TypeAlias = str | Number | Described | tuple[str | Described, ...] | None
"""The value of a cell: None and an empty tuple are empty; a tuple has a line for each entry."""


@dataclass(frozen=True)
class Fact:
    """A single figure of a plan, e.g. the bytes that are no longer saved."""

    title: str
    value: str | Number
    kind: Kind = Kind.COUNT

    def __str__(self) -> str:
        return f"{self.title}: {shown(self.value, self.kind)}"


@dataclass(frozen=True)
class Table:
    """Rows of a plan's decisions, or of the parts that it left.

    Attributes:
      title: a heading.
      columns: the kind of each column, by its heading.
      rows: a cell for each column.
      text: sentences above the rows; empty for none.
      depths: by row, the indentation of its first cell; empty where none is indented.
      more: the number of rows that are not listed.
    """

    title: str
    columns: Mapping[str, Kind]
    rows: tuple[tuple[Cell, ...], ...]
    text: str = ""
    depths: tuple[Whole, ...] = ()
    more: Whole = 0

    def to_json(self) -> dict[str, Any]:
        """Returns values that `json.dumps` takes: `MOST_ROWS` rows, and the columns in order."""
        more = self.more + len(self.rows[MOST_ROWS:])
        rows, depths = self.rows[:MOST_ROWS], self.depths[:MOST_ROWS] if any(self.depths) else ()
        found: dict[str, Any] = written(replace(self, rows=rows, depths=depths, more=more))
        return found | {"columns": [list(each) for each in found["columns"].items()]}


def _is_of_its_kinds(table: Table) -> bool:
    """Whether the cells of a table that was read match its columns, and all rows have depths."""
    return len(table.depths) in (0, len(table.rows)) and all(
        len(row) == len(table.columns) and all(map(_is_of_kind, row, table.columns.values()))
        for row in table.rows
    )


def _is_of_kind(cell: Cell, kind: Kind) -> bool:
    return cell is None or isinstance(cell, int | float) == kind.is_number


_FACT = Condition("a figure of its kind", lambda fact: _is_of_kind(fact.value, fact.kind))
_TABLE = Condition("a table of cells of its columns' kinds", _is_of_its_kinds)


@dataclass(frozen=True)
class Statement:
    """The facts and tables of a plan; the plan's JSON may contain more."""

    facts: tuple[Annotated[Fact, _FACT], ...] = ()
    tables: tuple[Annotated[Table, _TABLE], ...] = ()

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> Statement:
        """Returns the statement in the JSON of a plan. Raises StructureError for other JSON."""
        return read(cls, plan)

    def to_json(self) -> dict[str, Any]:
        """Returns values that `json.dumps` takes, without tables that lack both rows and text."""
        told = [table.to_json() for table in self.tables if table.rows or table.text]
        return {"facts": written(self.facts), "tables": told}


@dataclass(frozen=True, repr=False)
class Left:
    """A part that a pass left as it was, and why.

    A reason that is not known is found when it is first read. `left_table` reads all reasons: the
    plan of a pass that runs has them before the pass edits the module.
    """

    value: Described
    known: str | Callable[[], str]

    @functools.cached_property
    def reason(self) -> str:
        return self.known if isinstance(self.known, str) else self.known()

    def __repr__(self) -> str:
        taken = f"{size(self.value.bytes)} in " if self.value.bytes else ""
        return f"{taken}{self.value}: {self.reason}"


def reasons_left(left: Iterable[Left], thing: str) -> list[str]:
    """Returns for each reason e.g. "2 loops left: the trip count varies"."""
    counts = Counter(each.reason for each in left)
    return [f"{pluralize(count, thing)} left: {reason}" for reason, count in counts.items()]


def left_table(
    left: Sequence[Left], title: str = "Left as it is", *, most: int = MOST_ROWS
) -> Table:
    """Returns the table of what was left, of which ``most`` rows are listed."""
    rows = [(each.value.bytes or None, each.value, each.reason) for each in left]
    columns = {"takes": Kind.BYTES, "value": Kind.VALUE, "why": Kind.TEXT}
    return Table(title, columns, tuple(rows[:most]), more=max(len(rows) - most, 0))


def facts_of(plan: Mapping[str, Any]) -> dict[str, str | int | float]:
    """Returns the facts of a plan's JSON by title. Raises StructureError if they are malformed."""
    return {fact.title: fact.value for fact in Statement.of(plan).facts}


def rows_of(plan: Mapping[str, Any], title: str) -> list[dict[str, Any]]:
    """Returns the rows of a table of a plan's JSON, by the headings of its columns.

    Empty where it has no such table. Raises StructureError where the tables are malformed.
    """
    found = [each for each in Statement.of(plan).tables if each.title == title]
    return [dict(zip(each.columns, row, strict=True)) for each in found for row in each.rows]


def shown(value: Cell, kind: Kind) -> str:
    """Returns a single figure or text of a cell for people; empty for None."""
    if value is None:
        return ""
    if isinstance(value, int | float):
        match kind:
            case Kind.BYTES:
                return size(value)
            case Kind.SECONDS:
                return seconds(value)
            case Kind.FLOPS:
                return flops(value)
            case Kind.SHARE:
                return percent(value)
            case Kind.CHANGE:
                return f"{value:+.1%}".replace("%", " %")
            case Kind.COUNT:
                return f"{value:,}"
    return str(value)
