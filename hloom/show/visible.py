"""Makes text of unknown origin safe for a terminal."""

from __future__ import annotations

import re

_HIDDEN = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 and C1 but tab and newline: escape sequences begin so
    "\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # bidi, no width
    "\ud800-\udfff"  # halves of pairs, which no encoding can write
    "\U000e0000-\U000e007f"  # tags
    "]"
)


def visible(text: str) -> str:
    """Returns the text with control characters written out, e.g. ESC as "\\x1b"; lines and tabs
    stay.

    So a name in a file can neither control the reader's terminal nor reorder a line.
    """
    return _HIDDEN.sub(lambda match: ascii(match[0])[1:-1], text)


def in_columns(text: str) -> str:
    """Returns the text with one replacement character for each control character: columns stay."""
    return _HIDDEN.sub("\ufffd", text)
