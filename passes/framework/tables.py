"""Tables: how a plan says what it decided, so that every reader shows every pass's plan.

A plan states facts (single figures) and tables. Their cells are typed: a plan gives bytes and
seconds as numbers, and the reader (a terminal, a page, a comparison) renders them. The JSON form is
what dumps hold; `from_json` reads it back.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from jax.extend.mlir import ir

from ..ir.locations import operation_name, source_of
from ..ir.names import SourceLine, split_name
from ..ir.origins import origin_of
from ..ir.types import tensor_bytes
from .text import flops, percent, seconds, short_type, size

MOST_ROWS = 1000
"""The rows of a table that its JSON holds; the others are counted."""


class Kind(enum.StrEnum):
    """The type of a cell."""

    TEXT = "text"
    CODE = "code"
    """A text as a program has it: a spec, the name of a symbol."""
    DRAWING = "drawing"
    """A line of a drawing, in which each space counts."""
    COUNT = "count"
    BYTES = "bytes"
    SECONDS = "seconds"
    FLOPS = "flops"
    SHARE = "share"
    """A number from 0 to 1, shown in percent."""
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
      type: of the value; empty for an operation without results.
      bytes: of the value on one device; 0 where they are not known.
      operation: what it is, or is made by, in StableHLO; empty for an argument.
      times: how many values or operations of this line it stands for.
      stacked: how many results of the operation a loop stacks in the value; 1 where none does.
    """

    name: str = ""
    source: SourceLine = field(default_factory=SourceLine)
    type: str = ""
    bytes: int = 0
    operation: str = ""
    times: int = 1
    stacked: int = 1

    @classmethod
    def of(
        cls,
        what: ir.Value | ir.Operation,
        bytes: int | None = None,
        *,
        typed_as: ir.Value | None = None,
    ) -> Described:
        """The description of a value or an operation; of a loop's result by what makes it inside.

        Args:
          what: the value or the operation.
          bytes: of the value on one device; None for those of its type.
          typed_as: the value whose type and bytes stand in the description, where it is another.
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
        """The description of an operation by its location, without a type."""
        return cls(operation_name(location), source_of(location), operation=operation)

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Described:
        """Raises TypeError where an entry is no description."""
        texts = [_text(entry.get(key, "")) for key in ("name", "source", "library", "type")]
        name, line, library, type_ = texts
        return cls(
            name=name,
            source=SourceLine(line, library),
            type=type_,
            bytes=_whole(entry.get("bytes", 0)),
            operation=_text(entry.get("operation", "")),
            times=_whole(entry.get("times", 1)),
            stacked=_whole(entry.get("stacked", 1)),
        )

    def to_json(self) -> dict[str, object]:
        """What is not known is left out."""
        found: dict[str, object] = {"name": self.name, **self.source.to_json(), "type": self.type}
        found |= {"bytes": self.bytes, "operation": self.operation}
        found |= {"times": self.times} if self.times != 1 else {}
        found |= {"stacked": self.stacked} if self.stacked != 1 else {}
        return {key: value for key, value in found.items() if value}

    def __str__(self) -> str:
        """E.g. "tensor<8x64xf32> of multiply (jit(step)/mul, /home/me/train.py:12)"."""
        made_by = self.operation.rpartition(".")[2]
        made_by = made_by or ("an argument" if self.type else "an operation")
        places = ", ".join(filter(None, (self.name, self.source.line)))
        text = f"{made_by} ({places})" if places else made_by
        return f"{self.type} of {text}" if self.type else text

    @property
    def told(self) -> str:
        """E.g. "2 x f32[8,64] of tanh, stacked over 6 iterations, train.py:12"."""
        times = f"{self.times} x " if self.times > 1 else ""
        stacked = f"stacked over {self.stacked} iterations" if self.stacked > 1 else ""
        made_by = split_name(self.name)[1] or self.operation.rpartition(".")[2] or "an argument"
        value = f"{times}{short_type(self.type)} of {made_by}" if self.type else made_by
        return ", ".join(filter(None, (value, stacked, self.source.short)))

    def called(self, otherwise: str) -> str:
        """E.g. "24.3 MiB of jit(step)/mul (/home/me/train.py:12)"."""
        where = f" ({self.source})" if self.source.line else ""
        return f"{size(self.bytes)} of {self.name or otherwise}{where}"


Cell: TypeAlias = str | int | float | Described | tuple[str | Described, ...] | None
"""None and an empty tuple are empty cells; a tuple has a line for each of its entries."""


@dataclass(frozen=True)
class Fact:
    """A single figure of a plan, e.g. the bytes that are no longer saved."""

    title: str
    value: str | int | float
    kind: Kind = Kind.COUNT

    def __str__(self) -> str:
        return f"{self.title}: {shown(self.value, self.kind)}"

    def to_json(self) -> dict[str, object]:
        return {"title": self.title, "kind": str(self.kind), "value": self.value}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Fact:
        """Raises KeyError, TypeError or ValueError where an entry is no fact."""
        kind = Kind(entry["kind"])
        found = _cell(entry["value"], kind)
        if not isinstance(found, str | int | float):
            raise TypeError(f"expected a single figure, got {str(entry['value'])[:40]}")
        return cls(_text(entry["title"]), found, kind)


@dataclass(frozen=True)
class Table:
    """Rows of what a plan decided, or left.

    Attributes:
      title: a heading.
      columns: the kind of each column, by its heading.
      rows: a cell for each column.
      text: sentences above the rows; empty for none.
      depths: by row, how deep its first cell is indented; empty where none is.
      more: rows that are counted only.
    """

    title: str
    columns: Mapping[str, Kind]
    rows: tuple[tuple[Cell, ...], ...]
    text: str = ""
    depths: tuple[int, ...] = ()
    more: int = 0

    def to_json(self) -> dict[str, object]:
        found: dict[str, object] = {
            "title": self.title,
            "columns": [[title, str(kind)] for title, kind in self.columns.items()],
            "rows": [list(map(_cell_json, row)) for row in self.rows[:MOST_ROWS]],
        }
        more = self.more + len(self.rows[MOST_ROWS:])
        found |= {"text": self.text} if self.text else {}
        found |= {"depths": list(self.depths[:MOST_ROWS])} if any(self.depths) else {}
        return found | ({"more": more} if more else {})

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Table:
        """Raises KeyError, TypeError or ValueError where an entry is no table."""
        columns = {_text(title): Kind(kind) for title, kind in entry["columns"]}
        rows = [
            tuple(_cell(cell, kind) for cell, kind in zip(row, columns.values(), strict=True))
            for row in entry["rows"]
        ]
        depths = tuple(map(_whole, entry.get("depths", ())))
        if depths and len(depths) != len(rows):
            raise ValueError(f"{len(depths)} depths for {len(rows)} rows")
        text, more = _text(entry.get("text", "")), _whole(entry.get("more", 0))
        return cls(_text(entry["title"]), columns, tuple(rows), text, depths, more)


@dataclass(frozen=True)
class Left:
    """What a pass looked at and left as it was, and why."""

    value: Described
    reason: str

    def __str__(self) -> str:
        taken = f"{size(self.value.bytes)} in " if self.value.bytes else ""
        return f"{taken}{self.value}: {self.reason}"


def left_table(
    left: Iterable[Left], title: str = "Left as it is", *, most: int = MOST_ROWS
) -> Table:
    """The table of what was left, of which ``most`` rows are listed."""
    rows = [(each.value.bytes or None, each.value, each.reason) for each in left]
    columns = {"takes": Kind.BYTES, "value": Kind.VALUE, "why": Kind.TEXT}
    return Table(title, columns, tuple(rows[:most]), more=max(len(rows) - most, 0))


def facts_of(plan: Mapping[str, Any]) -> dict[str, str | int | float]:
    """The facts of a plan's JSON by their titles. Raises what `Fact.from_json` does."""
    facts = map(Fact.from_json, plan.get("facts", ()))
    return {fact.title: fact.value for fact in facts}


def rows_of(plan: Mapping[str, Any], title: str) -> list[dict[str, Any]]:
    """The rows of a table of a plan's JSON, by the headings of its columns.

    None where it has no such table. Raises what `Table.from_json` does.
    """
    found = [Table.from_json(each) for each in plan.get("tables", ()) if each["title"] == title]
    return [dict(zip(each.columns, row, strict=True)) for each in found for row in each.rows]


def shown(value: Cell, kind: Kind) -> str:
    """A single figure or text of a cell for people; empty for None."""
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
            case Kind.COUNT:
                return f"{value:,}"
    return str(value)


def _cell_json(cell: Cell) -> object:
    if isinstance(cell, Described):
        return cell.to_json()
    return list(map(_cell_json, cell)) if isinstance(cell, tuple) else cell


def _cell(cell: object, kind: Kind) -> Cell:
    if cell is None:
        return None
    if kind.is_number:
        if isinstance(cell, bool) or not isinstance(cell, int | float) or abs(cell) >= 2**63:
            raise TypeError(f"expected a number, got {str(cell)[:40]}")
        return cell
    if isinstance(cell, Sequence) and not isinstance(cell, str):
        return tuple(map(_entry, cell))
    return _entry(cell)


def _entry(cell: object) -> str | Described:
    return Described.from_json(cell) if isinstance(cell, Mapping) else _text(cell)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {str(value)[:40]}")
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise TypeError(f"expected a whole number of 0 or more, got {str(value)[:40]}")
    return value
