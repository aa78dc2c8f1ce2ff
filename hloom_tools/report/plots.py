"""Draws the report's plots: memory over the program, in two widths each, with captions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hloom.passes.analysis.memory_model.profile import MemoryProfile
from hloom.passes.framework.text import pluralize
from hloom.show import units
from hloom.xla.live_ranges import LiveRanges
from hloom_tools.document.pictures import COLORS, plain_axes
from hloom_tools.report.drawing import WIDTH_INCHES, Plot, Width
from hloom_tools.report.memory import MemoryView
from hloom_tools.report.tips.alive import Tip, spikes, tips_of_model, tips_of_two

_MOST_STEPS = 600
"""The most steps of a curve: more are finer than a screen."""

_SCHEDULE = "instructions, in the order of XLA's schedule"

_HIGHEST_LEVEL = 3
"""The highest horizontal line relative to the curves, which would be flat below a higher one."""


@dataclass(frozen=True)
class Figure:
    """A plot for wide and narrow pages, with a file name, a heading, and captions.

    The caption says what to look at; the alternative text describes the plot. `tips` list the live
    values in each stretch.
    """

    name: str
    title: str
    wide: Plot
    phone: Plot
    caption: str
    alternative: str
    tips: tuple[Tip, ...] = ()

    @property
    def highest(self) -> tuple[Tip, ...]:
        """Returns the tips of the highest places."""
        return tuple(spikes(self.tips))


def figures_of(memory: MemoryView) -> Iterator[Figure]:
    """Yields the figures of memory over XLA's schedule, and over the program by hloom's model."""
    ranges = memory.live_ranges
    if ranges is not None and ranges.curve:
        length, peak = ranges.instructions, ranges.peak_bytes
        caption = (
            f"Temporaries in use over XLA's schedule of {pluralize(length, 'instruction')}: "
            "what really runs."
        )
        was = memory.live_ranges_before
        if was is not None:
            caption += " The schedule before the passes is drawn to the same length."
        elif memory.xla_before is not None:
            set_aside = units.size(memory.xla_before.temp_bytes)
            caption += f" Before the passes XLA set {set_aside} aside for temporaries."
        text = f"Temporaries take at most {units.size(peak)}, at instruction {ranges.peak_at}."
        before_bytes = None if memory.xla_before is None else memory.xla_before.temp_bytes
        bound = memory.bound.bytes if memory.bound is not None and memory.bound.of_temp else None
        draw = partial(xla_memory_plot, ranges, was, before_bytes=before_bytes, budget_bytes=bound)
        wide, phone = draw(), draw(width="phone")
        title, tips = "By XLA: the temporaries of what runs", memory.xla_tips
        if was is not None:
            title = "By XLA: temporaries before the passes and after them"
            text += f" Before the passes they took {units.size(was.peak_bytes)}."
        yield Figure("xla-memory", title, wide, phone, caption, text, tips)
    before, after = memory.before, memory.after
    if before is not None and before.points:
        budget = None if memory.bound is None or memory.bound.of_temp else memory.bound.bytes
        wide = memory_plot(before, after, budget_bytes=budget)
        phone = memory_plot(before, after, budget_bytes=budget, width="phone")
        text = f"The peak is {units.size(before.step_bytes)} before the passes"
        if after is not None:
            text += f" and {units.size(after.step_bytes)} after them"
        text += ", by hloom's model."
        caption = (
            "Memory in use from the first operation of the program to the last, as hloom's model "
            "counts it before anything is compiled. A loop is shown by one turn of its body."
        )
        if memory.xla is not None:
            count = units.size(memory.xla.step_bytes)
            if memory.xla_before is not None:
                before_it = units.size(memory.xla_before.step_bytes)
                count = f"{before_it} before the passes and {count} after them"
            caption += f" XLA's own count of the step is {count}."
        title = "By hloom's model" + (": before the passes and after them" if after else "")
        tips = tips_of_model(before, after)
        yield Figure("memory", title, wide, phone, caption, text, tips)


def figure_of_two(first: MemoryView, second: MemoryView) -> Figure | None:
    """The temporaries of two compiles over XLA's schedules; None where not both are known."""
    one, two = first.live_ranges, second.live_ranges
    if one is None or two is None or not (one.curve and two.curve):
        return None
    peaks = [units.size(each.peak_bytes) for each in (one, two)]
    text = f"Temporaries take at most {peaks[0]} in A and {peaks[1]} in B."
    draw = partial(two_memory_plot, one, two)
    tips = tips_of_two(one, two) if first.xla_tips and second.xla_tips else ()
    caption = "Temporaries in use over XLA's schedules of both: what really runs."
    return Figure("two", "By XLA", draw(), draw(width="phone"), caption, text, tips)


def memory_plot(
    before: MemoryProfile,
    after: MemoryProfile | None = None,
    *,
    width: Width = "wide",
    budget_bytes: int | None = None,
) -> Plot:
    """Plots memory over the program before and after the passes, by hloom's model, with peaks
    marked.

    A budget is a bound on the whole step, drawn as a line.
    """
    lines = [_Line("before" if after else "memory", "before", "o", *_steps(before))]
    if after is not None:
        lines.append(_Line("after", "after", "D", *_steps(after)))
    levels = [] if budget_bytes is None else [_Level("budget", "budget", budget_bytes)]
    label = "kernels, in the order in which they run"
    base_bytes = max(before.base_bytes, after.base_bytes if after else 0)
    return _curves(lines, levels, label, width, base=("arguments and results", base_bytes))


def xla_memory_plot(
    live_ranges: LiveRanges,
    was: LiveRanges | None = None,
    *,
    width: Width = "wide",
    before_bytes: int | None = None,
    budget_bytes: int | None = None,
) -> Plot:
    """Plots temporary memory over XLA's schedule, from `xla/live_ranges.json`.

    `was` has the live ranges of the original program, over its own schedule. Lines show XLA's
    temporary memory of the original, where its schedule is unknown, and a budget of temporaries.
    """
    lines = [_line_of_xla("temporaries" if was is None else "after", "after", "o", live_ranges)]
    levels = []
    if was is not None:
        before = _line_of_xla("before", "before", "D", was)
        stretch = lines[0].places[-1] / max(before.places[-1], 1)
        places = [round(place * stretch) for place in before.places]
        lines.insert(0, replace(before, places=places))
    else:
        levels.append(_Level("set aside by XLA", "muted", live_ranges.temp_bytes))
    if was is None and before_bytes is not None:
        levels.append(_Level("set aside before the passes", "before", before_bytes))
    if budget_bytes is not None:
        levels.append(_Level("budget", "budget", budget_bytes))
    return _curves(lines, levels, _SCHEDULE, width)


def two_memory_plot(first: LiveRanges, second: LiveRanges, *, width: Width = "wide") -> Plot:
    """Temporary memory over XLA's schedules of two compiles, "A" and "B"."""
    lines = [_line_of_xla("A", "before", "o", first), _line_of_xla("B", "after", "D", second)]
    return _curves(lines, [], _SCHEDULE, width)


def _line_of_xla(label: str, color: str, mark: str, live_ranges: LiveRanges) -> _Line:
    times = [time for time, _ in live_ranges.curve]
    sizes = [size for _, size in live_ranges.curve]
    return _Line(label, color, mark, [*times, live_ranges.instructions], [*sizes, *sizes[-1:]])


@dataclass(frozen=True)
class _Line:
    """A step curve: each size holds from its place to the next one; the last place is the end."""

    label: str
    color: str
    mark: str
    places: Sequence[int]
    sizes: Sequence[int]


@dataclass(frozen=True)
class _Level:
    label: str
    color: str
    bytes: int


def _steps(curve: MemoryProfile) -> tuple[Sequence[int], Sequence[int]]:
    sizes = [curve.base_bytes + point.bytes for point in curve.points]
    return range(len(sizes) + 1), [*sizes, *sizes[-1:]]


def _thinned(line: _Line) -> tuple[list[int], list[int]]:
    """Returns the places where a curve changes; of very many, the maximum of each stretch."""
    end = line.places[-1]
    stretch = max(1, math.ceil(end / _MOST_STEPS))
    most: dict[int, int] = {}
    for place, size in zip(line.places, line.sizes, strict=True):
        begin = place - place % stretch
        most[begin] = max(size, most.get(begin, 0))
    changed: dict[int, int] = {}
    for place, size in most.items():
        if not changed or size != next(reversed(changed.values())):
            changed[place] = size
    return [*changed, end], [*changed.values(), line.sizes[-1]]


def _curves(
    lines: Sequence[_Line],
    levels: Sequence[_Level],
    label: str,
    width: Width,
    base: tuple[str, int] | None = None,
) -> Plot:
    highest = max([1, *(max(line.sizes, default=0) for line in lines)])
    levels = [level for level in levels if level.bytes <= _HIGHEST_LEVEL * highest]
    most = max([highest, *(level.bytes for level in levels)])
    unit_bytes = 1024 ** max(0, (most.bit_length() - 1) // 10)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        plain_axes(axes, COLORS)
        ground = base[1] / unit_bytes if base else 0
        for line in lines:
            if not line.sizes:
                continue
            places, sizes_bytes = _thinned(line)
            sizes = [size / unit_bytes for size in sizes_bytes]
            color = COLORS[line.color]
            filled = {"step": "post", "color": color, "alpha": 0.13, "linewidth": 0}
            axes.fill_between(places, sizes, ground, **filled)
            axes.step(places, sizes, where="post", color=color, linewidth=1.5)
            peak = max(range(len(line.sizes)), key=line.sizes.__getitem__)
            at = [line.places[peak] + 0.5], [line.sizes[peak] / unit_bytes]
            mark = {"markersize": 7, "markeredgecolor": COLORS["surface"], "markeredgewidth": 1.2}
            label_ = f"{line.label}: peak {units.size(line.sizes[peak])}"
            axes.plot(*at, line.mark, color=color, clip_on=False, zorder=4, label=label_, **mark)
        if base is not None and base[1]:
            quiet = {"color": COLORS["muted"], "alpha": 0.22, "linewidth": 0}
            axes.axhspan(0, ground, label=f"{base[0]}: {units.size(base[1])}", **quiet)
        for level in levels:
            dashed = {"color": COLORS[level.color], "linewidth": 1.4, "linestyle": (0, (5, 3))}
            label_ = f"{level.label}: {units.size(level.bytes)}"
            axes.axhline(level.bytes / unit_bytes, label=label_, **dashed)
        axes.set_xlim(0, max([1, *(place for line in lines for place in line.places)]))
        axes.set_ylim(0, most / unit_bytes * 1.06)
        axes.set_xlabel(label, color=COLORS["muted"])
        unit = units.size(unit_bytes).rpartition(" ")[2]
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} {unit}" if value else "0")
        axes.locator_params(axis="y", nbins=6)
        axes.locator_params(axis="x", integer=True, nbins=10 if width == "wide" else 5)
        if axes.get_legend_handles_labels()[0]:
            shape = {"ncols": 4 if width == "wide" else 1, "columnspacing": 1.8}
            looks = {"frameon": False, "labelcolor": COLORS["text"], "handletextpad": 0.5}
            figure.legend(loc="outside upper left", **shape, **looks)

    return Plot(WIDTH_INCHES[width], 3.9 if width == "wide" else 3.7, draw)
