"""Runs dumped modules again, under any pipeline, and compares what they give."""

from __future__ import annotations

from hloom.replay.comparison import Comparison, Tolerance, ValueComparison, compare
from hloom.replay.errors import ReplayError
from hloom.replay.program import Program
from hloom.replay.run import Runnable
from hloom.replay.signature import Value

__all__ = [
    "Comparison",
    "Program",
    "ReplayError",
    "Runnable",
    "Tolerance",
    "Value",
    "ValueComparison",
    "compare",
]
