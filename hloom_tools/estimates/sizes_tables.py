"""Sizes that fit devices, as documents and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hloom.passes.framework.tables import Kind
from hloom.passes.framework.text import size
from hloom_tools.document.content import Document, Value, one_table
from hloom_tools.document.shown import Shown
from hloom_tools.estimates.sizes import LargestSize, SizedStep

_FITS = {True: "yes", False: "no"}


@dataclass(frozen=True, repr=False)
class SizesTable(Shown):
    """A program in some sizes, on one target.

    Attributes:
      rows: one for each size.
      note: figures that are known to be wrong; empty where none are.
      limit: the reason for what a step may take, in a sentence; empty where unknown.
    """

    rows: tuple[SizedStep, ...]
    note: str = ""
    limit: str = ""

    @property
    def document(self) -> Document:
        """Returns the sizes as a document."""
        columns = (
            ("size", Kind.COUNT),
            ("as it is", Kind.BYTES),
            ("fits", Kind.COUNT),
            ("with fit", Kind.BYTES),
            ("fits", Kind.COUNT),
            ("added time", Kind.CHANGE),
            ("least", Kind.BYTES),
        )
        title = "no sizes"
        for row in self.rows[:1]:
            title = f"{row.target}, {size(row.limit_bytes)} for a step: sizes that fit, predicted"
        rows = [
            (
                str(row.size),
                row.step_bytes,
                _FITS[row.fits],
                row.fit_bytes,
                _FITS[row.fits_with_fit],
                _added(row),
                row.least_bytes,
            )
            for row in self.rows
        ]
        notes = [self.note, _why_faster(self.rows), self.limit]
        return one_table(title, columns, rows, notes)


@dataclass(frozen=True, repr=False)
class Fits(Shown):
    """The largest sizes of a program that fit each of some targets.

    Attributes:
      rows: one for each target.
      note: figures that are known to be wrong; empty where none are.
      limit: the share of a GPU that a step may take, in a sentence; empty where there is none.
    """

    rows: tuple[LargestSize, ...]
    note: str = ""
    limit: str = ""

    @property
    def document(self) -> Document:
        """Returns the targets as a document."""
        columns = (
            ("target", Kind.CODE),
            ("for a step", Kind.BYTES),
            ("as it is", Kind.COUNT),
            ("takes", Kind.BYTES),
            ("with fit", Kind.COUNT),
            ("takes", Kind.BYTES),
            ("added time", Kind.CHANGE),
        )
        bounded = ", ".join(row.target for row in self.rows if row.is_bounded)
        more = f"+ {bounded}: larger sizes were not looked for." if bounded else ""
        title = "the largest size that fits a device, predicted; nothing is compiled"
        faster = _why_faster([row.with_fit for row in self.rows if row.with_fit is not None])
        notes = [self.note, faster, self.limit, more]
        return one_table(title, columns, map(_cells, self.rows), notes)


def _cells(row: LargestSize) -> tuple[Value, ...]:
    one, two = row.as_it_is, row.with_fit
    return (
        row.target,
        row.limit_bytes,
        "none" if one is None else str(one.size),
        None if one is None else one.step_bytes,
        "none" if two is None else f"{two.size}{'+' if row.is_bounded else ''}",
        None if two is None else two.fit_bytes,
        None if two is None else _added(two),
    )


def _why_faster(rows: Sequence[SizedStep]) -> str:
    """Returns what an added time below zero means; empty where no row has one."""
    if not any((_added(row) or 0) < -_SHOWN for row in rows):
        return ""
    return (
        "Added time is beside the same step as it is, whether that fits or not. It is below zero "
        "where a move writes and reads less memory, or computes less, than the step as it is; "
        "FLOPs may rise all the same."
    )


_SHOWN = 0.0005
"""The least share of a step that is shown as other than zero."""


def _added(row: SizedStep) -> float | None:
    return None if row.fit_bytes is None else row.added_share
