"""StableHLO to StableHLO: the passes of hloom, and what runs them.

What the author of a pass needs is here, and loaded when it is asked for: `import hloom` loads this
package, and a process that sets no flag must not pay for the MLIR bindings, numpy or scipy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloom.passes.framework.base import Decision as Decision
    from hloom.passes.framework.base import DivisiblePlan as DivisiblePlan
    from hloom.passes.framework.base import Pass as Pass
    from hloom.passes.framework.base import Plan as Plan
    from hloom.passes.framework.base import Target as Target
    from hloom.passes.framework.options import Budget as Budget
    from hloom.passes.framework.options import Bytes as Bytes
    from hloom.passes.framework.options import Duration as Duration
    from hloom.passes.framework.options import option as option

_PUBLIC = {
    "Budget": "framework.options",
    "Bytes": "framework.options",
    "Decision": "framework.base",
    "DivisiblePlan": "framework.base",
    "Duration": "framework.options",
    "Pass": "framework.base",
    "Plan": "framework.base",
    "Target": "framework.base",
    "option": "framework.options",
}


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
