"""Where in a text MLIR's reader dies: the first operation without which it lives."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_TOKEN = re.compile(rb'"(?:[^"\\\n]|\\.)*"|//[^\n]*|[{}()\[\]]|\n')
_ALIAS = re.compile(rb"^[#!][\w.$-]+ = .*\n?", re.MULTILINE)
_STATEMENT = re.compile(rb'\s*(?:%|\}|"|//|[a-z_]\w*\.|return\b|call\b|module\b)')
_NOTHING = re.compile(rb"(?:[ \t\r]*(?://[^\n]*)?\n)*")

_END = {b"module": b"}\n", b"func.func": b"func.return\n}\n"}
"""How to end what these open; nothing but these two is cut in two."""

_OPENS = re.compile(rb"\s*(?:builtin\.)?(module|func\.func)\b")


@dataclass(frozen=True)
class _Cut:
    """A place between two operations.

    Attributes:
      at: the offset of the line after it.
      ends: what ends the regions that are open there.
    """

    at: int
    ends: bytes


def find_crash(text: bytes, kills: Callable[[bytes], bool]) -> int | None:
    """The line, from 1, of the operation at which the reader dies; None where that is not told.

    Args:
      text: a module that kills the reader.
      kills: whether a text kills it; called some ten times, on beginnings of the module, the
        functions that are open there ended without results.
    """
    cuts = _cuts(text)
    alive, dead = -1, len(cuts)
    while dead - alive > 1:
        middle = (alive + dead) // 2
        cut = cuts[middle]
        aliases = b"".join(_ALIAS.findall(text, cut.at))
        if kills(text[: cut.at] + cut.ends + aliases):
            dead = middle
        else:
            alive = middle
    if dead == len(cuts):
        return None
    start = cuts[alive].at if alive >= 0 else 0
    skipped = _NOTHING.match(text, start)
    assert skipped is not None
    return text.count(b"\n", 0, skipped.end()) + 1


def _cuts(text: bytes) -> list[_Cut]:
    """The places between operations of the module, and of its functions' bodies."""
    cuts: list[_Cut] = []
    opened: list[bytes] = []
    start = 0  # of the operation that is being read
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word in (b"{", b"(", b"["):
            opened.append(_opens(text[start : token.start()]) if word == b"{" else word)
        elif word in (b"}", b")", b"]") and opened:
            opened.pop()
        ended = word == b"\n" or opened[-1:] in ([b"module"], [b"func.func"])
        if ended and all(each in _END for each in opened):
            if word == b"{":
                start = token.end()
            elif word == b"\n" and _STATEMENT.match(text, token.end()):
                start = token.end()
                cuts.append(_Cut(start, b"".join(_END[each] for each in reversed(opened))))
    return cuts


def _opens(before: bytes) -> bytes:
    """What a brace opens that stands behind this beginning of an operation."""
    found = _OPENS.match(before)
    if found is None or before.rstrip().endswith(b"attributes"):
        return b"{"
    open_brackets = (
        before.count(b"(") + before.count(b"{") - before.count(b")") - before.count(b"}")
    )
    return found[1] if open_brackets == 0 else b"{"
