"""Renders a report as one HTML file that opens from disk, without scripts or external files."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape

from hloom import __version__
from hloom.passes.framework.tables import shown
from hloom.passes.framework.text import pluralize
from hloom.show import units
from hloom.show.pictures import COLORS_CSS
from hloom.show.visible import visible
from hloom_tools.report.drawing import Drawing
from hloom_tools.report.gather import ModuleReport, Report
from hloom_tools.report.plots import Figure, figure_of_two, figures_of
from hloom_tools.report.several.index import Index
from hloom_tools.report.several.pair import TwoDumps, same_program
from hloom_tools.report.tips.alive import spikes

_T = TypeVar("_T")


def page(report: Report, *, folder: Path) -> str:
    """Renders the page, to be written into `folder`: links to files of the dump start there."""
    # With a single program the page's title names it, not the dump.
    one = report.modules[0].name if len(report.modules) == 1 else ""
    return _rendered("report", folder, title=one or report.title, report=report, one=one)


def index_page(found: Index, pages: Mapping[Path, Path], *, folder: Path) -> str:
    """Renders the page of several dumps, given the pages of some of them."""
    return _rendered("index", folder, title=found.path.resolve().name, index=found, pages=pages)


def compare_page(both: TwoDumps, *, folder: Path) -> str:
    """Renders the page of two dumps side by side."""
    return _rendered("compare", folder, title=both.title, both=both)


def _rendered(template: str, folder: Path, **values: object) -> str:
    found = _environment().get_template(f"{template}.html.jinja")
    return found.render(values, version=__version__, folder=folder)


@functools.cache
def _environment() -> jinja2.Environment:
    """Returns one environment for all pages, since it caches compiled templates."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(_FILTERS, link=_link, drawn=lambda plot: Markup(plot.svg()))
    environment.globals.update(
        colors=Markup(COLORS_CSS.rstrip()),  # our own, too
        inlined=_inlined,
        figure_of_two=figure_of_two,
        same_program=same_program,
    )
    return environment


@jinja2.pass_context
def _link(context: jinja2.runtime.Context, path: Path) -> str:
    """Returns a path as a URL from the page's folder: module names are plain, but folders are the
    user's."""
    return quote(os.fsencode(os.path.relpath(path, context["folder"])))


def _shown(value: object) -> object:
    """Makes control characters of a plain string visible; other values, e.g. markup, are returned
    unchanged."""
    return visible(value) if type(value) is str else value


def _inlined(module: ModuleReport) -> Iterator[tuple[Figure, Drawing, Drawing]]:
    """Yields a module's figures, each with its two drawings."""
    if module.in_full:
        for figure in figures_of(module.memory):
            yield figure, figure.wide.drawing(), figure.phone.drawing()


def _sections(module: ModuleReport) -> list[tuple[str, str]]:
    """Returns the anchors and titles of a module's sections."""
    memory = module.memory
    has_curve = module.in_full and (memory.before is not None or memory.live_ranges is not None)
    found = (
        ("memory", "Memory", True),
        ("curve", "Over the program", has_curve),
        ("owners", "The peak's owners", memory.owners),
        *((each.anchor, each.name, True) for each in module.sections),
        ("frontier", "Budgets", module.frontier),
        ("times", "Passes and compile", module.times.known),
        ("missing", f"Missing ({len(module.missing)})", module.missing),
        ("next", "Replay and bisect", True),
        ("states", "Files", True),
    )
    return [(anchor, title) for anchor, title, there in found if there]


def _parted(rows: Sequence[_T], most: int) -> list[Sequence[_T]]:
    """Returns the first rows and the others; all together where only a few would be left."""
    if len(rows) <= most + 3:
        return [rows] if rows else []
    return [rows[:most], rows[most:]]


def _ranges(numbers: Sequence[int]) -> str:
    """Formats number ranges, "0-7, 9" for 0 to 7 and 9."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _of(part: float, whole: float) -> str:
    """Returns a share as a CSS length, clipped to 0 to 100 %."""
    return f"{min(max(part / whole, 0), 1) * 100:.2f}%" if whole else "0%"


def _sentence(text: str) -> str:
    """Adds a capital and a full stop to a text; code at its start does not change."""
    text = text.strip()
    if text[:1].islower() and not text.startswith(("hloom ", "pip ")):
        text = text[0].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _moment(text: str) -> str:
    """Formats an ISO time for reading; any other text is returned unchanged."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{moment.day} {moment:%B %Y, %H:%M:%S %Z}".strip()


def _ticked(text: str) -> Markup:
    """Returns markup of a text, with text between backticks as code."""
    parts = (escape(part) for part in visible(text).split("`"))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else part
        for number, part in enumerate(parts)
    )


def _breakable(spec: str) -> Markup:
    """Returns a spec that may wrap before its options."""
    return Markup("<wbr>{").join(escape(part) for part in visible(spec).split("{"))


_FILTERS = {
    "breakable": _breakable,
    "change": lambda ends: units.change(*ends),
    "pluralize": pluralize,
    "figure": lambda fact: shown(fact.value, fact.kind),
    "flops": units.flops,
    "heads": lambda table: [(t, "number" * k.is_number) for t, k in table.columns.items()],
    "lower_first": units.lower_first,
    "moment": _moment,
    "of": _of,
    "parted": _parted,
    "percent": units.percent,
    "ranges": _ranges,
    "seconds": units.seconds,
    "sections": _sections,
    "sentence": _sentence,
    "size": units.size,
    "spikes": spikes,
    "svg": lambda drawing: Markup(drawing.svg),  # our own, and not escaped
    "ticked": _ticked,
    "size_or_dash": lambda size_bytes: "–" if size_bytes is None else units.size(size_bytes),  # noqa: RUF001
}
