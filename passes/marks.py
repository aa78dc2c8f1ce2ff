"""The vocabulary of marks: composites in the IR that passes write and only lowering removes.

A mark is a `stablehlo.composite` whose name starts with "hloom.". Its decomposition is a plain
function that means the same on every backend, so a module with marks always runs.
"""

from __future__ import annotations

PREFIX = "hloom."

VERSION = 1
"""The `version` attribute of every mark that this hloom writes and reads."""
