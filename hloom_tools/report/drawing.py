"""Draws plots by matplotlib on demand, as SVG for the page or as a PNG file.

Colours in the SVG are CSS variables, which the page sets for light and for dark; text stays text,
in the page's font.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hloom.files import write_whole
from hloom_tools.document.pictures import COLORS, PNG_DOTS_PER_INCH, figures

Width = Literal["wide", "phone"]
"""The width of a page: about 1,000 px, or about 360."""

WIDTH_INCHES = {"wide": 10.0, "phone": 4.0}
_TITLE_INCHES = 0.4


@dataclass(frozen=True)
class Drawing:
    """A plot as an `<svg>` element, and the bounds of its axes as shares of its size."""

    svg: str
    left: float
    right: float
    top: float
    bottom: float


@dataclass(frozen=True)
class Plot:
    """A plot that is drawn on demand, by `draw` into a figure of the given size.

    The figure, or its part, has matplotlib's constrained layout.
    """

    width_inches: float
    height_inches: float
    draw: Callable[[Any], None]

    def svg(self) -> str:
        """Returns the plot as an `<svg>` element. Raises PictureError without matplotlib."""
        return self.drawing().svg

    def drawing(self) -> Drawing:
        """Draws the plot for a page. Raises PictureError without matplotlib."""
        content, figure = self._render("svg", metadata={"Date": None})
        box = figure.axes[0].get_position()
        svg = for_page(content.decode(), COLORS)
        return Drawing(svg, left=box.x0, right=box.x1, top=1 - box.y1, bottom=1 - box.y0)

    def save_png(self, path: Path, title: str = "") -> None:
        """Writes the plot to a file, with a title above it. Raises PictureError without matplotlib,
        and OSError."""
        write_whole(path, self._render("png", title=title, dpi=PNG_DOTS_PER_INCH)[0])

    def _render(self, format_: str, *, title: str = "", **options: Any) -> tuple[bytes, Any]:
        """Returns the rendered bytes, and the result of `draw`."""
        with (
            figures("plots need", **{"svg.fonttype": "none"}) as new_figure,
            io.BytesIO() as file,
        ):
            height_inches = self.height_inches + (_TITLE_INCHES if title else 0)
            figure = new_figure(figsize=(self.width_inches, height_inches), layout="constrained")
            figure.patch.set_facecolor(COLORS["surface"] if format_ == "png" else "none")
            if title:
                # The title is above the drawing: a page has its own headings, a file has none.
                heights = (_TITLE_INCHES, self.height_inches)
                parts: Any = figure.subfigures(2, 1, height_ratios=heights)
                style = {"va": "center", "color": COLORS["text"], "weight": "bold"}
                parts[0].text(0.01, 0.5, title, **style)
                self.draw(parts[1])
            else:
                self.draw(figure)
            figure.savefig(file, format=format_, **options)
            return file.getvalue(), figure


_ELEMENT = re.compile(r"<svg\b.*</svg>", re.DOTALL)
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_SIZE = re.compile(r'(<svg\b[^>]*?) (?:width|height)="[^"]*"')
_STYLE = re.compile(r"\s*<defs>\s*<style.*?</style>\s*</defs>", re.DOTALL)
_COUNTED_ID = re.compile(r' id="[a-zA-Z0-9.]+_[0-9_]+"')
_ID = re.compile(r'(\bid="|xlink:href="#|url\(#)([\w-]+)')
_FONT = re.compile(r"font-family: [^;\"]*")
_PATH = re.compile(r'(?<= d=")[^"]*')
_NUMBER = re.compile(r"-?\d+\.\d+")
_NO_TURN = re.compile(r' transform="rotate\(-?0 [^"]*"')
_JOINS = "stroke-linejoin: round; stroke-linecap: butt"


def for_page(text: str, colors: Mapping[str, str]) -> str:
    """Returns the `<svg>` element of a file that matplotlib wrote, to be placed inside a page.

    It has proportions but no size of its own, and may be beside others. `colors` maps each CSS
    variable to its colour in the file, as "#rrggbb".
    """
    found = _ELEMENT.search(text)
    if found is None:
        raise ValueError("no <svg> element")
    element = _METADATA.sub("", found[0])
    while _SIZE.search(element):
        element = _SIZE.sub(r"\1", element)
    # A style here would apply to the whole page.
    element = _STYLE.sub("", element).replace("<svg ", f'<svg style="{_JOINS}" ', 1)
    element = _PATH.sub(lambda match: _shortened(match[0]), _NO_TURN.sub("", element))
    # Nothing refers to these ids, and each plot would repeat them.
    element = _COUNTED_ID.sub("", element)
    own = hashlib.sha256(element.encode()).hexdigest()[:8]
    element = _ID.sub(lambda match: f"{match[1]}{own}-{match[2]}", element)
    element = _FONT.sub("font-family: inherit", element)
    for name, color in colors.items():
        element = re.sub(re.escape(color), f"var(--{name}, {color})", element, flags=re.IGNORECASE)
    return element


def _shortened(path: str) -> str:
    """Rounds the numbers of a path to a tenth of a point, which no screen resolves."""
    path = _NUMBER.sub(lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), path)
    return " ".join(path.split())
