"""Runs dumped modules again, under any pipeline, and compares their results."""

from __future__ import annotations


class ReplayError(ValueError):
    """A dump cannot be replayed as requested; the text says what, where, and the remedy."""


class DoesNotFitError(ReplayError):
    """A program takes more memory than the device has: its compiler refuses it."""
