"""Compiles a module with the options of XLA that its passes need, beside the program's own."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from jax.extend.mlir import ir

from hloom.passes.framework.errors import PassError, reason_of
from hloom.passes.framework.pipeline import Pipeline
from hloom.record import Captured, Options

LOG = logging.getLogger("hloom.xla_options")

CompileFunction = Callable[[ir.Module, Options], Any]
"""Compiles a module with these options beside the program's own."""

_DISABLED_PASSES = "xla_disable_hlo_passes"
"""XLA's option for disabled passes, a list, so that it is added to the user's."""

_UNKNOWN = re.compile(r"No such compile option: '(\w+)'|While setting option (\w+),")
"""XLA's error for an unknown option, raised before it compiles anything."""


@dataclass(frozen=True)
class XlaOptions:
    """Options of XLA that a program has set for itself.

    Attributes:
      given: options of XLA from its compiler options or from XLA_FLAGS, by name. They win.
      profiled: the profiler that switches graphs off while it runs, as text for the user; None
        where none runs.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    profiled: str | None = None


PassCompile = Callable[
    [CompileFunction, ir.Module, Options, XlaOptions], tuple[Any, Captured | None]
]
"""Returns the executable, and its part that runs in CUDA graphs; `Pass.compiled_by` names one."""


def options_of(pipeline: Pipeline, module: ir.Module, platform: str) -> dict[str, Any]:
    """Returns the options of XLA that a pipeline's passes ask for. Passes of XLA to leave out are
    joined; of other options the last pass's counts. Raises PassError where a pass fails to say."""
    options: dict[str, Any] = {}
    for step in pipeline.steps():
        try:
            for name, value in step.xla_options(module, platform).items():
                before = options.get(name) if name == _DISABLED_PASSES else None
                options[name] = value if before is None else f"{before},{value}"
        except Exception as error:
            raise PassError(step.name, "xla_options", reason_of(error)) from error
    return options


def compile_of(pipeline: Pipeline) -> PassCompile:
    """Returns what the first pass with a `compiled_by` names. Raises PassError where there is no
    such function."""
    for step in pipeline.steps():
        if step.compiled_by:
            module, _, name = step.compiled_by.partition(":")
            try:
                found: PassCompile = getattr(importlib.import_module(module), name)
            except Exception as error:
                raise PassError(step.name, "compiled_by", reason_of(error)) from error
            return found
    return compile_plainly


def compile_plainly(
    compile_: CompileFunction, module: ir.Module, wanted: Options, theirs: XlaOptions
) -> tuple[Any, None]:
    """Returns the executable of a module whose passes read nothing of the compile."""
    return compile_with(compile_, module, wanted, theirs)[0], None


def compile_with(
    compile_: CompileFunction,
    module: ir.Module,
    wanted: Options,
    theirs: XlaOptions,
    more: Options = MappingProxyType({}),
) -> tuple[Any, Options, list[str]]:
    """Compiles with the wanted options, and ``more`` that nothing is noted of.

    An option that the program has set is not changed, and one that this XLA does not know is left
    out; both are noted and logged. Returns the executable, the wanted options that it was compiled
    with, and the notes. Raises what `compile_` raises otherwise.
    """
    options, notes = _beside(wanted, theirs.given)
    while True:
        try:
            executable = compile_(module, {**options, **more})
            break
        except Exception as error:
            refused = _refused(error, options)
            if refused is None:
                raise
            del options[refused]
            notes.append(f"this XLA refuses {refused}: {error}")
    for note in notes:
        LOG.info("%s", note)
    return executable, options, notes


def _beside(wanted: Options, given: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Returns the wanted options that do not conflict with the program's, and notes on others."""
    options: dict[str, Any] = {}
    notes: list[str] = []
    for name, value in wanted.items():
        theirs = given.get(name)
        if theirs is None:
            options[name] = value
        elif name == _DISABLED_PASSES:
            options[name] = ",".join(filter(None, [theirs, str(value)]))
        elif theirs != str(value):
            notes.append(f"the program sets {name}={theirs}: it is left so, not {value}")
    return options, notes


def _refused(error: Exception, options: Mapping[str, Any]) -> str | None:
    """Returns the option that an error calls unknown; None for another error."""
    match = _UNKNOWN.search(str(error))
    name = next(filter(None, match.groups())) if match else None
    return name if name in options else None
