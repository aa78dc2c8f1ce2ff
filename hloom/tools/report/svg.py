"""Makes matplotlib's SVG fit for a page: colours as CSS variables, the page's font, own ids."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

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
    """The `<svg>` element of a file that matplotlib wrote, for the inside of a page.

    Args:
      text: the file.
      colors: by name of a CSS variable, the colour that stands for it in the file, as "#rrggbb".

    It has no size of its own but its proportions, takes the width it is given, and may stand
    beside others.
    """
    found = _ELEMENT.search(text)
    if found is None:
        raise ValueError("no <svg> element")
    element = _METADATA.sub("", found[0])
    while _SIZE.search(element):
        element = _SIZE.sub(r"\1", element)
    # It would hold for the whole page.
    element = _STYLE.sub("", element).replace("<svg ", f'<svg style="{_JOINS}" ', 1)
    element = _PATH.sub(lambda match: _shortened(match[0]), _NO_TURN.sub("", element))
    # These name nothing that is referred to, and would be there once for each plot.
    element = _COUNTED_ID.sub("", element)
    own = hashlib.sha256(element.encode()).hexdigest()[:8]
    element = _ID.sub(lambda match: f"{match[1]}{own}-{match[2]}", element)
    element = _FONT.sub("font-family: inherit", element)
    for name, color in colors.items():
        element = re.sub(re.escape(color), f"var(--{name}, {color})", element, flags=re.IGNORECASE)
    return element


def _shortened(path: str) -> str:
    """A path with its numbers to a tenth of a point, which is less than what a screen shows."""
    path = _NUMBER.sub(lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), path)
    return " ".join(path.split())
