"""Runs dumped modules again, under any pipeline, and compares what they give."""

from __future__ import annotations


class ReplayError(ValueError):
    """A dump cannot be replayed as asked; the text says what, where, and the remedy."""


class DoesNotFitError(ReplayError):
    """A program takes more of the device than there is: its compiler refuses it."""
