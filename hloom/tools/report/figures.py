"""The plots of a module, each with a caption and what it says in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloom.tools.report import units
from hloom.tools.report.memory import Memory

if TYPE_CHECKING:
    from hloom.tools.report.plots import Plot


@dataclass(frozen=True)
class Figure:
    """A plot.

    Attributes:
      name: for a file of it.
      title: for a heading.
      wide, phone: the plot for a wide and for a narrow page.
      caption: what to look at.
      alternative: what it shows, for those who do not see it.
    """

    name: str
    title: str
    wide: Plot
    phone: Plot
    caption: str
    alternative: str


def figures_of(memory: Memory) -> Iterator[Figure]:
    """Memory over the program by hloom's model, and over what XLA made of it."""
    from hloom.tools.report import plots

    before, after = memory.before, memory.after
    if before is not None and before.points:
        bound = memory.bound
        budget = None if bound is None or bound.of_temp else bound.bytes
        wide, phone = (
            plots.memory_plot(before, after, width=width, budget_bytes=budget)
            for width in ("wide", "phone")
        )
        text = f"The peak is {units.size(before.step_bytes)} before the passes"
        if after is not None:
            text += f" and {units.size(after.step_bytes)} after them"
        caption = (
            "Memory in use from the first operation of the program to the last, by hloom's model. "
            "A loop is shown by one turn of its body."
        )
        if memory.xla is not None:
            caption += f" XLA's own count of the step is {_xla_count(memory)}."
        yield Figure(
            "memory", "By hloom's model", wide, phone, caption, f"{text}, by hloom's model."
        )
    ranges = memory.live_ranges
    if ranges is not None and ranges.get("curve"):
        wide, phone = (plots.xla_memory_plot(ranges, width=width) for width in ("wide", "phone"))
        count, peak = int(ranges["instructions"]), int(ranges["peak_bytes"])
        caption = (
            f"Temporaries in use over XLA's schedule of {units.counted(count, 'instruction')}: "
            "what really runs."
        )
        text = f"Temporaries take at most {units.size(peak)}, at instruction {ranges['peak_at']}."
        yield Figure("xla-memory", "What XLA made of it", wide, phone, caption, text)


def _xla_count(memory: Memory) -> str:
    after = units.size(memory.xla.step_bytes) if memory.xla else "not known"
    if memory.xla_before is None:
        return after
    return f"{units.size(memory.xla_before.step_bytes)} before the passes and {after} after them"
