"""Printing for people: what comes from a file or a module is text and nothing else.

Neither control characters in it reach the terminal nor is any of it taken for rich's markup.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from hloom.visible import visible


class PlainConsole(Console):
    """A console of rich on which strings are text: no markup, no emoji codes, no control codes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """As rich's; hidden characters are made visible before widths are counted."""
        return super().render_str(visible(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As rich's; what it does not render from strings is made visible at the end."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)


def complain(program: str, error: object) -> int:
    """Tells an error on stderr, as "PROGRAM: error: …"; gives the exit status, 1."""
    print(f"{program}: error: {visible(str(error))}", file=sys.stderr)
    return 1
