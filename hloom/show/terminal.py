"""Prints to the terminal: text from a file or a module is printed as plain text.

Control characters in it never reach the terminal, and none of it is read as rich's markup.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from hloom.show.visible import visible


class PlainConsole(Console):
    """A console of rich that prints strings as text: no markup, emoji codes or control codes."""

    def __init__(self, **options: Any) -> None:
        # In a notebook rich would display each print as an output, whatever the console's file is.
        plain = {"markup": False, "emoji": False, "highlight": False, "force_jupyter": False}
        super().__init__(**{**plain, **options})

    def render_str(self, text: str, **options: Any) -> Text:
        """Renders a string as rich does, hidden characters made visible before it counts widths."""
        return super().render_str(visible(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Renders as rich does; hidden characters that did not come from strings are made visible
        at the end.

        Lines that do not go to a terminal have no blanks at their ends.
        """
        segments = super().render(renderable, options)
        for segment in segments if self.is_terminal else _without_blanks(segments):
            if segment.control:
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)

    def say(self, sentence: str, indent: str = "") -> None:
        """Prints a sentence: on a terminal in lines of whole words, elsewhere as one line.

        A word longer than a line, e.g. a path to copy, stays whole. `indent` is that of the lines
        after the first.
        """
        text = visible(sentence)
        self.print(folded(text, self.width, indent) if self.is_terminal else text, soft_wrap=True)


def _without_blanks(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Yields segments without the blanks that fill a line's width."""
    blanks: list[Segment] = []
    for whole in segments:
        for segment in _lines(whole):
            if segment.control:
                yield segment
            elif segment.text == "\n":
                blanks.clear()
                yield segment
            elif text := segment.text.rstrip(" "):
                yield from blanks
                rest = segment.text[len(text) :]
                blanks = [Segment(rest, segment.style)] if rest else []
                yield Segment(text, segment.style)
            elif segment.text:
                blanks.append(segment)
    yield from blanks


def _lines(segment: Segment) -> Iterator[Segment]:
    """Splits a segment into the parts of lines and the line ends."""
    if segment.control or "\n" not in segment.text:
        yield segment
        return
    for piece in re.split(r"(\n)", segment.text):
        yield Segment(piece, segment.style)


def folded(text: str, width: int, indent: str = "") -> str:
    """Returns text in lines of at most `width`, unless a word is longer; its line breaks stay."""
    lines = (
        textwrap.wrap(
            line,
            width,
            initial_indent=indent if number else "",
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        or [""]
        for number, line in enumerate(text.splitlines())
    )
    return "\n".join(each for wrapped in lines for each in wrapped)
