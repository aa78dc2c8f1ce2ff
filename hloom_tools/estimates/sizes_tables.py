"""Sizes that fit devices, as tables and as JSON."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from hloom.passes.framework.text import size
from hloom.show.terminal import PlainConsole
from hloom_tools.estimates.sizes import LargestSize, SizedStep

_YES, _NO = "yes", "no"


class _Shown(ABC):
    """Rows that print themselves."""

    note: str

    @property
    @abstractmethod
    def title(self) -> str:
        """Returns the title."""

    @abstractmethod
    def table(self) -> Table:
        """Returns the rows as a table of rich."""

    def __str__(self) -> str:
        with io.StringIO() as file:
            console = PlainConsole(file=file, width=100, color_system=None)
            console.print(self.title, soft_wrap=True)
            console.print(self.table())
            for sentence in self.sentences():
                console.print(sentence, soft_wrap=True)
            return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

    __repr__ = __str__

    def sentences(self) -> Iterator[str]:
        """Yields the remarks below the table."""
        if self.note:
            yield self.note


@dataclass(frozen=True, repr=False)
class SizesTable(_Shown):
    """A program in some sizes, on one target.

    Attributes:
      rows: one for each size.
      note: figures that are known to be wrong; empty where none are.
    """

    rows: tuple[SizedStep, ...]
    note: str = ""

    @property
    def title(self) -> str:
        """Returns the title."""
        if not self.rows:
            return "no sizes"
        first = self.rows[0]
        return f"{first.target}, {size(first.limit_bytes)} for a step: sizes that fit, predicted"

    def table(self) -> Table:
        """Returns the rows as a table of rich."""
        table = _table("size", "as it is", "fits", "with fit", "fits", "added time", "least")
        for row in self.rows:
            table.add_row(
                str(row.size),
                size(row.step_bytes),
                _YES if row.fits else _NO,
                "" if row.fit_bytes is None else size(row.fit_bytes),
                _YES if row.fits_with_fit else _NO,
                _added(row),
                size(row.least_bytes),
            )
        return table

    def to_json(self) -> dict[str, Any]:
        """Everything, as values that `json.dumps` takes."""
        return asdict(self)


@dataclass(frozen=True, repr=False)
class Fits(_Shown):
    """The largest sizes of a program that fit each of some targets.

    Attributes:
      rows: one for each target.
      note: figures that are known to be wrong; empty where none are.
    """

    rows: tuple[LargestSize, ...]
    note: str = ""

    @property
    def title(self) -> str:
        """Returns the title."""
        return "the largest size that fits a device, predicted; nothing is compiled"

    def table(self) -> Table:
        """Returns the rows as a table of rich."""
        table = _table("for a step", "as it is", "takes", "with fit", "takes", "added time")
        for row in self.rows:
            table.add_row(row.target, *cells(row))
        return table

    def to_json(self) -> dict[str, Any]:
        """Everything, as values that `json.dumps` takes."""
        return asdict(self)

    def sentences(self) -> Iterator[str]:
        """Yields the remarks below the table."""
        yield from super().sentences()
        bounded = [row.target for row in self.rows if row.is_bounded]
        if bounded:
            yield f"+ {', '.join(bounded)}: larger sizes were not looked for."


def cells(row: LargestSize) -> tuple[str, ...]:
    """Returns the cells after a target's name."""
    as_it_is, with_fit = row.as_it_is, row.with_fit
    return (
        size(row.limit_bytes),
        "none" if as_it_is is None else str(as_it_is.size),
        "" if as_it_is is None else size(as_it_is.step_bytes),
        "none" if with_fit is None else f"{with_fit.size}{'+' if row.is_bounded else ''}",
        "" if with_fit is None or with_fit.fit_bytes is None else size(with_fit.fit_bytes),
        "" if with_fit is None else _added(with_fit),
    )


def _added(row: SizedStep) -> str:
    if row.fit_bytes is None:
        return ""
    return f"{row.added_share:+.1%}".replace("%", " %")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    if columns[0] != "size":
        table.add_column("target", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table
