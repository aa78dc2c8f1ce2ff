"""StableHLO to StableHLO: the passes of hloom. `hloom.passes(spec)` switches them on for a block.

    with hloom.passes("remat{budget=50%},barriers"):
        step(state, batch)

A spec names passes in the order in which they run, separated by commas, each with its options in
braces, separated by spaces: `name{option=value option=value},name`. "default" stands for the
recommended passes, "off" for none. `hloom passes` in a shell lists the passes and their options;
docs/passes.md has the same list. A mistaken spec raises `hloom.SpecError` at once.

The same spec goes into `JAX_HLOOM=...`, `jax.config.update("jax_hloom", ...)`, and
`jax.jit(..., compiler_options={"hloom": ...})`, which wins over the others.

The names that the author of a pass needs are here too, e.g. `hloom.passes.Pass` and
`hloom.passes.option`:
docs/write-a-pass.md makes one.
"""

# Loaded on demand: `import hloom` loads this package, and a process that sets no flag must not pay
# for the MLIR bindings, numpy or scipy.

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .framework.base import Decision as Decision
    from .framework.base import DivisiblePlan as DivisiblePlan
    from .framework.base import ListPlan as ListPlan
    from .framework.base import Pass as Pass
    from .framework.base import Plan as Plan
    from .framework.base import PlanBase as PlanBase
    from .framework.options import Budget as Budget
    from .framework.options import Bytes as Bytes
    from .framework.options import Duration as Duration
    from .framework.options import option as option
    from .framework.tables import Described as Described
    from .framework.tables import Fact as Fact
    from .framework.tables import Kind as Kind
    from .framework.tables import Left as Left
    from .framework.tables import Table as Table
    from .framework.target import Target as Target

_PUBLIC = {
    "Budget": "framework.options",
    "Bytes": "framework.options",
    "Decision": "framework.base",
    "Described": "framework.tables",
    "DivisiblePlan": "framework.base",
    "Duration": "framework.options",
    "Fact": "framework.tables",
    "Kind": "framework.tables",
    "Left": "framework.tables",
    "ListPlan": "framework.base",
    "Pass": "framework.base",
    "Plan": "framework.base",
    "PlanBase": "framework.base",
    "Table": "framework.tables",
    "Target": "framework.target",
    "option": "framework.options",
}


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
