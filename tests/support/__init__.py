"""Programs, passes and tools that several tests use; no tests."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
