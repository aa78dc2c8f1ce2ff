"""Wording of messages."""

from __future__ import annotations


def pluralize(number: int, thing: str) -> str:
    """A count with its noun, whose plural ends in s: "1 byte", "2 bytes", "0 bytes"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
