"""Errors of the lowering of marks."""

from __future__ import annotations


class LoweringError(ValueError):
    """A mark that cannot be lowered; the text names it and says why."""
