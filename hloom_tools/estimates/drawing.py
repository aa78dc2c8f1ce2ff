"""Draws a frontier by matplotlib: step memory on the horizontal axis, added time on the vertical
one."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hloom.passes.framework.text import size
from hloom_tools.document.pictures import COLORS, PNG_DOTS_PER_INCH, figures, plain_axes

_NEAR = 1.25
"""A device's memory is drawn where it is at most this many times the largest point."""


@dataclass(frozen=True)
class Mark:
    """A marked point: `kind` is one of _SHAPES; the label is placed beside it."""

    bytes: int
    seconds: float
    kind: str
    label: str = ""


@dataclass(frozen=True)
class Level:
    """A bound on memory, drawn as a vertical line."""

    bytes: int
    label: str


_SHAPES = {
    # marker, colour, size, filled, name in the legend
    "considered": (".", "muted", 4, True, "considered"),
    "budget": ("o", "after", 6, True, "by budget, predicted"),
    "knee": ("D", "budget", 8, True, "knee"),
    "attempt": ("s", "before", 7, False, "compiled: XLA's figure"),
    "used": ("s", "before", 9, True, "the one used"),
}


@dataclass(frozen=True)
class Scene:
    """The content of a picture.

    Attributes:
      title: the title; empty where it is shown elsewhere.
      line: the frontier, as pairs of bytes and added seconds.
      marks: single points.
      levels: bounds on memory.
      step_seconds: the time of the original step, for the axis in percent; 0 where unknown.
      axis: the label of the memory axis.
    """

    title: str
    line: Sequence[tuple[int, float]]
    marks: Sequence[Mark]
    levels: Sequence[Level] = ()
    step_seconds: float = 0.0
    axis: str = "memory of a step on each device"

    def draw(self, figure: Any, colors: Mapping[str, str], *, legend_columns: int = 4) -> None:
        """Draws the scene into a figure of matplotlib."""
        figure.set_layout_engine("constrained")
        axes = figure.subplots()
        most = max([1, *(bytes_ for bytes_, _ in self.line), *(mark.bytes for mark in self.marks)])
        levels = [level for level in self.levels if level.bytes <= most * _NEAR]
        unit_bytes = 1024 ** max(0, (most.bit_length() - 1) // 10)
        plain_axes(axes, colors)
        ordered = sorted(self.line)
        axes.plot(
            [bytes_ / unit_bytes for bytes_, _ in ordered],
            [1e3 * seconds for _, seconds in ordered],
            color=colors["after"],
            linewidth=1.5,
            alpha=0.7,
        )
        for kind, (shape, color, points, filled, name) in _SHAPES.items():
            marks = [mark for mark in self.marks if mark.kind == kind]
            if not marks:
                continue
            axes.plot(
                [mark.bytes / unit_bytes for mark in marks],
                [1e3 * mark.seconds for mark in marks],
                shape,
                color=colors[color],
                markersize=points,
                markerfacecolor=colors[color] if filled else colors["surface"],
                label=name,
                clip_on=False,
                zorder=3,
            )
            for mark in marks:
                place = {"xytext": (8, 6), "textcoords": "offset points"}
                at = mark.bytes / unit_bytes, 1e3 * mark.seconds
                axes.annotate(mark.label, at, **place, color=colors["text"])
        for level in levels:
            label = f"{level.label}: {size(level.bytes)}"
            dashed = {"color": colors["budget"], "linewidth": 1.4, "linestyle": (0, (5, 3))}
            axes.axvline(level.bytes / unit_bytes, label=label, **dashed)
        unit = size(unit_bytes).rpartition(" ")[2]
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} {unit}" if value else "0")
        axes.locator_params(axis="x", nbins=8 if legend_columns > 1 else 4)
        axes.set_xlim(left=0)
        times = [0.0, *(s for _, s in self.line), *(mark.seconds for mark in self.marks)]
        axes.set_ylim(bottom=1e3 * min(times))  # below zero where a checkpoint is undone
        axes.set_xlabel(self.axis, color=colors["muted"])
        axes.set_ylabel("added time, ms", color=colors["muted"])
        if self.step_seconds:
            share = 1e-3 / self.step_seconds
            there, back = (lambda ms: ms * share), (lambda part: part / share)
            right = axes.secondary_yaxis("right", functions=(there, back))
            right.yaxis.set_major_formatter(lambda value, _: f"{value:.1%}")
            right.tick_params(length=0, labelcolor=colors["muted"])
            right.spines["right"].set_visible(False)
        if not axes.get_legend_handles_labels()[0]:
            return
        looks = {"frameon": False, "labelcolor": colors["text"], "handletextpad": 0.5}
        figure.legend(loc="outside lower left", ncols=legend_columns, **looks)

    def picture(self, format_: Literal["svg", "png"]) -> bytes:
        """Returns a file with the picture on a light background. Raises PictureError without
        matplotlib."""
        options = {"metadata": {"Date": None}} if format_ == "svg" else {"dpi": PNG_DOTS_PER_INCH}
        with figures("the picture needs") as new_figure, io.BytesIO() as file:
            figure = new_figure(figsize=(8.0, 4.6))
            figure.patch.set_facecolor(COLORS["surface"])
            self.draw(figure, COLORS)
            figure.suptitle(self.title, color=COLORS["text"], weight="bold", x=0.01, ha="left")
            figure.savefig(file, format=format_, **options)
            return file.getvalue()
