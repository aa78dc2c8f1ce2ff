"""hloom: MLIR passes over StableHLO inside jax.jit.

JAX finds the installed package without an import: `JAX_HLOOM=fit python train.py`. A program that
compiles for devices that are only described, before any backend has started, imports hloom first:
JAX has not looked for plugins then. The package has functions that set the passes from a program,
and return what they did:

    with hloom.passes("fit"): ...            # also jax.config.update("jax_hloom", "fit")
    hloom.records("train_step")

and that write the programs of chosen steps to disk:

    with hloom.dump(to="dumps", steps="3,7"):
        for n, batch in enumerate(data):
            with hloom.step(n):
                state = train_step(state, batch)

The import is light: it loads none of the passes.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import hloom.passes as _passes_package
from hloom.dumps.collect.step import step
from hloom.dumps.select.settings import dump
from hloom.passes.framework.errors import PassError, SpecError
from hloom.plugin import initialize
from hloom.plugin import scope as _scope
from hloom.policy import HloomWarning, strict
from hloom.record import CompileAttempt, CompileRecord, records

__version__ = "0.1.0"

__all__ = [
    "CompileAttempt",
    "CompileRecord",
    "HloomWarning",
    "PassError",
    "SpecError",
    "StagesError",
    "SyncRequirement",
    "declare_collective",
    "declare_kernel",
    "dump",
    "estimate",
    "fits",
    "initialize",
    "log_to",
    "passes",
    "print_summary",
    "records",
    "split",
    "stages",
    "step",
    "strict",
]


class _PassesPackage(types.ModuleType):
    """The type of the package `hloom.passes`, which makes it callable.

    `hloom.passes("remat")` is the context manager of the flag, and `hloom.passes` also the package
    of the passes: the import system binds the name to the package, so the package gets a type with
    a call. This module sets the type, since nothing in the package may import the plugin.
    """

    def __call__(self, spec: str) -> AbstractContextManager[None]:
        return _scope(spec)


_passes_package.__class__ = _PassesPackage

_LAZY = {
    "StagesError": ("hloom_steps.mpmd.liveness", "StagesError"),
    "SyncRequirement": ("hloom.passes.ir.collectives", "SyncRequirement"),
    "declare_collective": ("hloom.passes.ir.collectives", "declare"),
    "declare_kernel": ("hloom.passes.analysis.kernels", "declare"),
    "estimate": ("hloom_tools.estimates.ask", "estimate"),
    "fits": ("hloom_tools.estimates.ask", "fits"),
    "log_to": ("hloom.log.trackers", "log_to"),
    "print_summary": ("hloom.log.summary", "print_summary"),
    "split": ("hloom_steps.halves.splitting", "split"),
    "stages": ("hloom_steps.mpmd.stages", "stages"),
}
"""Public names, their modules and names there, imported at first use because they are heavy."""

if TYPE_CHECKING:
    from hloom.log.summary import print_summary as print_summary
    from hloom.log.trackers import log_to as log_to
    from hloom.passes.analysis.kernels import declare as declare_kernel
    from hloom.passes.ir.collectives import SyncRequirement as SyncRequirement
    from hloom.passes.ir.collectives import declare as declare_collective
    from hloom_steps.halves.splitting import split as split
    from hloom_steps.mpmd.liveness import StagesError as StagesError
    from hloom_steps.mpmd.stages import stages as stages
    from hloom_tools.estimates.ask import estimate as estimate
    from hloom_tools.estimates.ask import fits as fits
else:

    def __getattr__(name: str) -> object:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, attribute = _LAZY[name]
        return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)


# A program may compile before JAX looks for its plugins.
initialize()

if TYPE_CHECKING:
    passes: Callable[[str], AbstractContextManager[None]]
