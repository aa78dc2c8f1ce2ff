"""Runs dumped modules again, under any pipeline, and compares what they give."""

from __future__ import annotations

from hloom.tools.replay.comparison import Comparison, Tolerance, ValueComparison, compare
from hloom.tools.replay.errors import ReplayError
from hloom.tools.replay.program import ReplayProgram
from hloom.tools.replay.run import Runnable
from hloom.tools.replay.signature import Value

__all__ = [
    "Comparison",
    "ReplayError",
    "ReplayProgram",
    "Runnable",
    "Tolerance",
    "Value",
    "ValueComparison",
    "compare",
]
