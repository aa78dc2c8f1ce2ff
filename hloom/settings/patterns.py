"""Shell patterns of module names: "jit_train*,jit_loss"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase


def words(value: str | Iterable[str]) -> tuple[str, ...]:
    """Returns the words of a comma-separated list, or of several strings."""
    found = value.split(",") if isinstance(value, str) else value
    return tuple(word.strip() for word in found)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns matches; without any, every name does."""
    return not patterns or any(fnmatchcase(name, each) for each in patterns)
