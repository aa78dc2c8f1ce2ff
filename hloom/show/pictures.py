"""Settings of all of hloom's pictures: matplotlib and its settings, the colours, quiet axes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from typing import Any

COLORS_CSS = resources.files("hloom.show").joinpath("colors.css").read_text("utf-8")
"""The colours as variables of CSS, for light and for dark."""

COLORS, DARK = (
    dict(re.findall(r"--([\w-]+): (#\w{6});", block)) for block in COLORS_CSS.split("@media")
)
"""By CSS variable; a picture has the light ones. The two curves differ to every kind of eye, and by
their marks too."""

PNG_DOTS_PER_INCH = 200


class PictureError(RuntimeError):
    """A picture cannot be made; the text says what is missing."""


@contextmanager
def figures(what_needs: str, **settings: object) -> Iterator[Any]:
    """matplotlib's Figure, with hloom's settings and these for as long as one is drawn.

    Args:
      what_needs: the beginning of the error's text, e.g. "plots need".
      settings: of matplotlib, by name.

    Raises PictureError without matplotlib.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PictureError(
            f"{what_needs} {error.name}, which is not installed: pip install 'hloom[report]'"
        ) from error
    # Names may have a "$" in them, and are no formulas.
    ours = {"svg.hashsalt": "hloom", "font.size": 9.5, "text.parse_math": False}
    with mpl.rc_context({**ours, **settings}):
        yield Figure


def plain_axes(axes: Any, colors: Mapping[str, str]) -> None:
    """Leaves no more of matplotlib's frame than the ground and quiet lines across.

    Of the colours, as "#rrggbb", it takes "line" and "muted".
    """
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(colors["line"])
    axes.set_facecolor("none")
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=colors["line"], linewidth=0.8)
    axes.tick_params(length=0, labelcolor=colors["muted"])
