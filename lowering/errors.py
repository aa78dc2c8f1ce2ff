"""What can go wrong between marks and kernels."""

from __future__ import annotations


class LoweringError(ValueError):
    """A mark that cannot be lowered; the text names it and says why."""
