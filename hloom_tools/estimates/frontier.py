"""The frontier of a program as a table, as a picture, as JSON."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from html import escape

from rich.table import Table

from hloom.passes.framework.tables import Described
from hloom.passes.framework.text import size
from hloom.show.pictures import PictureError
from hloom.show.terminal import Breakable, PlainConsole
from hloom.show.visible import visible
from hloom_tools.estimates.drawing import Level, Mark, Scene

_COLUMNS = (
    ("step", True),
    ("temporaries", True),
    ("added time", True),
    ("of step", True),
    ("added work", True),
    ("", False),
    ("spec", False),
)
"""The columns of a table, and which of them are figures."""

_MOVES = ("moves", False)
"""The column of the moves beside recomputation, where any point has some."""

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


@dataclass(frozen=True)
class Frontier:
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

    def to_json(self) -> dict[str, object]:
        """Everything, as values that `json.dumps` takes."""
        return asdict(self)

    @property
    def columns(self) -> tuple[tuple[str, bool], ...]:
        """Returns the columns of the table, and which of them are figures."""
        return (*_COLUMNS[:-1], _MOVES, _COLUMNS[-1]) if self._has_moves else _COLUMNS

    @property
    def _has_moves(self) -> bool:
        return any(point.moves for point in self.points)

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yields the points as texts, in the order of `columns`."""
        for point in self.points:
            added = ("", "", "")
            if point.spec != "off":
                added = (
                    f"{1e3 * point.added_seconds:.3g} ms",
                    f"{point.added_share:+.1%}".replace("%", " %"),
                    _flops(point.added_flops),
                )
            mark = "◆" if point.knee else "" if point.holds else "✗"
            sizes = (size(point.step_bytes), size(point.temp_bytes))
            moves = (_OPTIONS.sub("", point.moves),) if self._has_moves else ()
            yield *sizes, *added, mark, *moves, point.spec

    def table(self) -> Table:
        """Returns the points as a table of rich; moves are below the spec, so that 80 columns are
        enough."""
        table = Table(box=None, pad_edge=False)
        specs = max((len(point.spec) for point in self.points), default=0)
        for name, is_number in _COLUMNS:
            table.add_column(
                name,
                justify="right" if is_number else "left",
                no_wrap=name != "spec",
                min_width=specs if name == "spec" else None,
                overflow="fold",
            )
        for row in self.rows():
            moves, spec = row[-2] if self._has_moves else "", row[-1]
            below = f"\nwith {moves.replace(',', ', ')}" if moves else ""
            table.add_row(*row[: len(_COLUMNS) - 1], f"{spec}{below}")
        return table

    def peak_table(self) -> Table | None:
        """Returns the largest values at the peak as a table of rich; None where none are known."""
        if not self.peak:
            return None
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(overflow="fold")
        temp_bytes = self.points[0].temp_bytes if self.points else 0
        for value in self.peak:
            all_bytes = value.bytes * value.times
            share = f"{all_bytes / temp_bytes:.0%}".replace("%", " %") if temp_bytes else ""
            table.add_row(size(all_bytes), share, Breakable(value.told))
        return table

    @property
    def title(self) -> str:
        """Returns the title."""
        return f"{self.module} on {self.target}: memory of a step against added time, predicted"

    def sentences(self) -> Iterator[str]:
        """Yields the remarks below the table."""
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

    def show(self, console: PlainConsole) -> None:
        """Prints the table with the remarks, and the largest values at the peak."""
        console.say(self.title)
        console.show(self.table())
        for sentence in self.sentences():
            console.say(sentence)
        if (table := self.peak_table()) is not None:
            console.say("What the step as it is has in temporary memory when it takes most:")
            console.show(table)

    def __str__(self) -> str:
        with io.StringIO() as file:
            console = PlainConsole(file=file, width=120, color_system=None)
            self.show(console)
            return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

    __repr__ = __str__

    def svg(self) -> str:
        """Returns the picture as SVG. Raises PictureError without matplotlib."""
        return self._scene().picture("svg").decode()

    def png(self) -> bytes:
        """Returns the picture as PNG. Raises PictureError without matplotlib."""
        return self._scene().picture("png")

    def _repr_html_(self) -> str:
        """Returns HTML for a notebook: the picture, where matplotlib is installed, and the
        table."""
        try:
            picture = base64.b64encode(self.svg().encode()).decode()
        except PictureError:
            picture = ""
        title = escape(visible(self.title))
        source = f"data:image/svg+xml;base64,{picture}"
        looks = 'style="max-width:100%;height:auto"'
        image = f'<img {looks} alt="{title}" src="{source}">' if picture else f"<p>{title}</p>"
        head = "".join(f"<th>{name}</th>" for name, _ in self.columns)
        cell = '<td style="white-space:nowrap">'
        rows = (
            "".join(f"{cell}{escape(visible(each))}</td>" for each in row) for row in self.rows()
        )
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        notes = "".join(f"<p>{escape(visible(each))}</p>" for each in self.sentences())
        return (
            f'<div style="overflow-x:auto">{image}<table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table>{notes}</div>"
        )

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


def _flops(count: float) -> str:
    """Formats a number of floating-point operations, e.g. "8.1 GFLOP"."""
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}FLOP"
    return f"{count:.0f} FLOP"
