"""Modules of the folder `tests`, which is no package: what launches the kernels is there."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from benchmarks.gpu.items import ROOT

TESTS = ROOT / "tests"


def of_tests(name: str) -> Any:
    """Imports a module of the tests. Raises ModuleNotFoundError for what that needs, too."""
    if str(TESTS) not in sys.path:
        sys.path.append(str(TESTS))
    return importlib.import_module(name)
