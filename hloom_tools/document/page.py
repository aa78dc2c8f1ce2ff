"""Renders a document as one HTML file that opens from disk, without scripts or external files."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape

from hloom.passes.framework.tables import shown
from hloom.passes.framework.text import pluralize
from hloom.show import units
from hloom.show.visible import visible
from hloom_tools.document.content import Document, RowView, Section, TableView
from hloom_tools.document.pictures import COLORS_CSS

_PILLS = {"ok": "ok", "error": "over", "plain": "plain"}
"""The look of a remark of a headline, by its tone."""


def page(document: Document, *, folder: Path) -> str:
    """Renders the page, to be written into `folder`: links to files start there."""
    # With a single program the page's title names it.
    alone = [section.title for section in document.sections] == [document.title]
    return _rendered("document", document, folder=folder, alone=alone)


def fragment(document: Document, picture: str = "") -> str:
    """Renders a document for a place in another page, such as a notebook; `picture` is HTML."""
    return _rendered("fragment", document, picture=Markup(picture))


def _rendered(template: str, document: Document, **values: object) -> str:
    found = _environment().get_template(f"{template}.html.jinja")
    sections = tuple(
        _anchored(each, f"part-{n}") for n, each in enumerate(document.sections, start=1)
    )
    document = replace(document, sections=sections)
    return found.render(values, document=document, version=version("hloom"))


def _anchored(section: Section, otherwise: str) -> Section:
    """Returns a section whose parts, too, have anchors of their own."""
    anchor = section.anchor or otherwise
    parts = (
        _anchored(replace(part, anchor=f"{anchor}-{part.anchor or n}"), "")
        for n, part in enumerate(section.parts, start=1)
    )
    return replace(section, anchor=anchor, parts=tuple(parts))


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
    environment.filters.update(_FILTERS, link=_link)
    environment.globals.update(colors=Markup(COLORS_CSS.rstrip()), pills=_PILLS)  # our own, too
    return environment


@jinja2.pass_context
def _link(context: jinja2.runtime.Context, path: Path | str) -> str:
    """Returns a path as a URL from the page's folder, where folders are the user's; an anchor as it
    is."""
    if isinstance(path, str):
        return path
    return quote(os.fsencode(os.path.relpath(path, context["folder"])))


def _shown(value: object) -> object:
    """Makes control characters of a plain string visible; other values, e.g. markup, are returned
    unchanged."""
    return visible(value) if type(value) is str else value


def _parted(table: TableView) -> list[Sequence[RowView]]:
    """Returns the first rows and the others; all together where only a few would be left."""
    rows, most = table.rows, table.most or len(table.rows)
    if len(rows) <= most + 3:
        return [rows] if rows else []
    return [rows[:most], rows[most:]]


def _share(part: float) -> str:
    """Returns a share as a CSS length, clipped to 0 to 100 %."""
    return f"{min(max(part, 0), 1) * 100:.2f}%"


def _sentence(text: str) -> str:
    """Adds a capital and a full stop to a text; code at its start does not change."""
    text = text.strip()
    if text[:1].islower() and not text.startswith(("hloom ", "pip ")):
        text = text[0].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


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
    "figure": lambda fact: shown(fact.value, fact.kind),
    "parted": _parted,
    "pluralize": pluralize,
    "sentence": _sentence,
    "share": _share,
    "size": units.size,
    "svg": lambda drawing: Markup(drawing.svg),  # our own, and not escaped
    "ticked": _ticked,
}
