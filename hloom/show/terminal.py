"""Printing for people: what comes from a file or a module is text and nothing else.

Neither control characters in it reach the terminal nor is any of it taken for rich's markup.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from hloom.show.visible import visible


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
        """As rich's; what it does not render from strings is made visible at the end.

        Lines that are not for a terminal have no blanks at their ends.
        """
        segments = super().render(renderable, options)
        for segment in segments if self.is_terminal else _without_blanks(segments):
            if segment.control:
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)

    def say(self, sentence: str, indent: str = "") -> None:
        """Prints a sentence: on a terminal in lines of whole words, elsewhere as one line.

        What is longer than a line, as a path to copy, stays whole. `indent` is of the lines after
        the first.
        """
        text = visible(sentence)
        self.print(folded(text, self.width, indent) if self.is_terminal else text, soft_wrap=True)

    def show(self, table: Table) -> None:
        """Prints a table for 80 columns: a narrower terminal breaks its lines and loses nothing."""
        console = PlainConsole(file=self.file, width=max(self.width, _NARROWEST), soft_wrap=True)
        console.print(table)


def _without_blanks(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Segments without the blanks before each new line, which fill a line's width."""
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
    """A segment in pieces: what is in a line, and the ends of lines."""
    if segment.control or "\n" not in segment.text:
        yield segment
        return
    for piece in re.split(r"(\n)", segment.text):
        yield Segment(piece, segment.style)


_NARROWEST = 80


class Breakable:
    """A path, a name or a source line, which is broken behind its separators where it must be."""

    def __init__(self, text: str, style: str = "") -> None:
        self._text, self._style = visible(text), style

    def __rich_measure__(self, _console: Console, options: ConsoleOptions) -> Measurement:
        longest = max((cell_len(piece) for piece in _SEPARATORS[-1].split(self._text)), default=0)
        whole = max(map(cell_len, self._text.splitlines()), default=0)
        return Measurement(min(longest, options.max_width), min(whole, options.max_width))

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [
            line.rstrip()
            for each in self._text.splitlines()
            for line in _packed(each, options.max_width, _SEPARATORS)
        ]
        yield Text("\n".join(lines), style=self._style)


_SEPARATORS = [re.compile(each) for each in (r"(?<= )", r"(?<=/)", r"(?<=[ /._])|(?=\{)")]
"""Where a name may be broken, each only where the parts are still too long by those before it."""


def _packed(text: str, width: int, separators: Sequence[re.Pattern[str]]) -> list[str]:
    """The text as lines of at most a width, if its parts are no longer."""
    lines: list[str] = []
    for piece in separators[0].split(text) if separators else [text]:
        if lines and cell_len(lines[-1] + piece.rstrip()) <= width:
            lines[-1] += piece
        elif separators and cell_len(piece.rstrip()) > width:
            lines += _packed(piece, width, separators[1:])
        else:
            lines.append(piece)
    return lines


def folded(text: str, width: int, indent: str = "") -> str:
    """The text in lines of at most a width, where its words are no longer; its own lines stay."""
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


def complain(program: str, error: object) -> int:
    """Tells an error on stderr, as "PROGRAM: error: …"; gives the exit status, 1.

    On a terminal in lines of whole words; elsewhere, where it may be searched, in one.
    """
    text = f"{program}: error: {visible(str(error))}"
    stream = sys.stderr
    if stream is not None and stream.isatty():
        text = folded(text, shutil.get_terminal_size().columns, "  ")
    print(text, file=stream)
    return 1
