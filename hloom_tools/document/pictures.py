"""The settings of all of hloom's pictures: matplotlib's own, the colours, plain axes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from typing import Any

COLORS_CSS = resources.files("hloom_tools.document").joinpath("colors.css").read_text("utf-8")
"""The colours as variables of CSS, for light and for dark."""

COLORS, DARK = (
    dict(re.findall(r"--([\w-]+): (#\w{6});", block)) for block in COLORS_CSS.split("@media")
)
"""Colours by CSS variable; a picture uses the light ones. The two curves differ for every kind of
colour vision, and by their marks."""

PNG_DOTS_PER_INCH = 200


class PictureError(RuntimeError):
    """A picture cannot be made; the text says what is missing."""


@contextmanager
def figures(what_needs: str, **settings: object) -> Iterator[Any]:
    """Gives matplotlib's Figure, with hloom's settings and `settings` inside the block.

    Args:
      what_needs: the beginning of the error's text, e.g. "plots need".
      settings: matplotlib's settings, by name.

    Raises PictureError without matplotlib.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PictureError(
            f"{what_needs} {error.name}, which is not installed: pip install 'hloom[report]'"
        ) from error
    # Names may contain a "$" and must not be read as formulas.
    ours = {"svg.hashsalt": "hloom", "font.size": 9.5, "text.parse_math": False}
    with mpl.rc_context({**ours, **settings}):
        yield Figure


def plain_axes(axes: Any, colors: Mapping[str, str]) -> None:
    """Removes matplotlib's frame except the baseline and light horizontal lines.

    It uses the colours "line" and "muted", as "#rrggbb".
    """
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(colors["line"])
    axes.set_facecolor("none")
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=colors["line"], linewidth=0.8)
    axes.tick_params(length=0, labelcolor=colors["muted"])
