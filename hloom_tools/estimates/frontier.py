"""The frontier of a program as a document, as a picture, as JSON."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape

from hloom.passes.framework.tables import Described, Kind
from hloom.passes.framework.text import size
from hloom.show.visible import visible
from hloom_tools.document.content import Document, Section, Value, one_table, table_of
from hloom_tools.document.pictures import PictureError
from hloom_tools.document.shown import Shown
from hloom_tools.estimates.drawing import Level, Mark, Scene

_COLUMNS = (
    ("step", Kind.BYTES),
    ("temporaries", Kind.BYTES),
    ("added time", Kind.SECONDS),
    ("of step", Kind.CHANGE),
    ("added work", Kind.FLOPS),
    ("", Kind.TEXT),
    ("spec", Kind.CODE),
)
_PEAK_COLUMNS = (("takes", Kind.BYTES), ("of all", Kind.SHARE), ("value", Kind.VALUE))

_OPTIONS = re.compile(r"\{[^}]*\}")


@dataclass(frozen=True)
class BudgetPoint:
    """The predicted effect of one budget on each device.

    Attributes:
      spec: the spec to use, e.g. "remat{budget=60GiB}"; "off" for the original program.
      step_bytes: arguments, results and temporary memory.
      temp_bytes: the temporary memory of it.
      added_seconds: the time that recomputation and moves add to a step.
      added_share: `added_seconds` as a share of the step's own time.
      added_flops: the added floating-point operations.
      holds: whether the budget is predicted to be met.
      knee: whether each byte below this memory costs more time than above.
      moves: the passes that `fit` runs beside recomputation, as a spec, e.g. "chunk".
    """

    spec: str
    step_bytes: int
    temp_bytes: int
    added_seconds: float
    added_share: float
    added_flops: float
    holds: bool = True
    knee: bool = False
    moves: str = ""


@dataclass(frozen=True, repr=False)
class Frontier(Shown):
    """A program's memory against added time, predicted; most memory first.

    Attributes:
      module: the program's name.
      target: the device that it runs on.
      points: one for each requested budget; or some along the whole frontier.
      step_seconds: the time of the original step, by rooflines.
      unmodified_bytes, floor_bytes: the memory of the original step, and the least that a budget
        can reach.
      device_bytes: the memory that a step may take of a device of the target; None where unknown.
      limit: the reason for `device_bytes`, in a sentence; empty where unknown.
      peak: the largest values in temporary memory at the original step's peak.
      note: why the program has no choice of budgets, or a limited one; empty without a remark.
    """

    module: str
    target: str
    points: tuple[BudgetPoint, ...]
    step_seconds: float
    unmodified_bytes: int
    floor_bytes: int
    device_bytes: int | None
    note: str = ""
    limit: str = ""
    peak: tuple[Described, ...] = ()

    @property
    def knees(self) -> tuple[BudgetPoint, ...]:
        """Returns the points below which each byte costs more time."""
        return tuple(point for point in self.points if point.knee)

    @property
    def document(self) -> Document:
        """Returns the points with the remarks, and the largest values at the peak."""
        rows = map(self._cells, self.points)
        points = one_table(self.title, _COLUMNS, rows, self._remarks())
        if not self.peak:
            return points
        values = [(one.bytes * one.times, self._share(one), one) for one in self.peak]
        head = "What the step as it is has in temporary memory when it takes most"
        peak = Section(head, tables=(table_of("", _PEAK_COLUMNS, values),))
        return replace(points, sections=(*points.sections, peak))

    def _cells(self, point: BudgetPoint) -> tuple[Value, ...]:
        added: tuple[Value, ...] = (None, None, None)
        if point.spec != "off":
            added = (point.added_seconds, point.added_share, point.added_flops)
        mark = "◆" if point.knee else "" if point.holds else "✗"
        moves = _OPTIONS.sub("", point.moves).replace(",", ", ")
        spec = (point.spec, f"with {moves}") if moves else point.spec
        return point.step_bytes, point.temp_bytes, *added, mark, spec

    def _share(self, value: Described) -> float | None:
        temp_bytes = self.points[0].temp_bytes if self.points else 0
        return value.bytes * value.times / temp_bytes if temp_bytes else None

    @property
    def title(self) -> str:
        """Returns the title."""
        return f"{self.module} on {self.target}: memory of a step against added time, predicted"

    def _remarks(self) -> Iterator[str]:
        if self.note:
            yield self.note
        missed = [point for point in self.points if not point.holds]
        if missed:
            specs = ", ".join(point.spec for point in missed)
            yield f"✗ {specs}: the least that a step can be held to is {size(self.floor_bytes)}."
        if self.device_bytes is not None:
            fits = "fits in" if self.unmodified_bytes <= self.device_bytes else "is more than"
            yield (
                f"As it is the step takes {size(self.unmodified_bytes)}, which {fits} the "
                f"{size(self.device_bytes)} that {self.target} has for it."
            )
            if self.limit:
                yield self.limit
        if self.knees:
            yield "◆ A knee: below this, each byte costs more time than above it."

    def svg(self) -> str:
        """Returns the picture as SVG. Raises PictureError without matplotlib."""
        return self._scene().picture("svg").decode()

    def png(self) -> bytes:
        """Returns the picture as PNG. Raises PictureError without matplotlib."""
        return self._scene().picture("png")

    def picture(self) -> str:
        """Returns the picture for a notebook; empty without matplotlib."""
        try:
            source = f"data:image/svg+xml;base64,{base64.b64encode(self.svg().encode()).decode()}"
        except PictureError:
            return ""
        looks = 'style="max-width:100%;height:auto"'
        return f'<img {looks} alt="{escape(visible(self.title))}" src="{source}">'

    def _scene(self) -> Scene:
        return Scene(
            title=self.title,
            line=tuple((point.step_bytes, point.added_seconds) for point in self.points),
            marks=tuple(
                Mark(
                    point.step_bytes,
                    point.added_seconds,
                    "knee" if point.knee else "budget",
                    point.spec if point.knee else "",
                )
                for point in self.points
            ),
            levels=()
            if self.device_bytes is None
            else (Level(self.device_bytes, f"usable memory of {self.target}"),),
            step_seconds=self.step_seconds,
        )
