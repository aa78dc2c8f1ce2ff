"""Compiles with the options that passes need, and checks which capture regions became graphs."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jax.extend.mlir import ir

from hloom.lowering.capture import COMMAND_BUFFER_TYPES, DISABLED_PASSES
from hloom.record import Captured, Options
from hloom.xla.thunk_dump import thunk_dump

_log = logging.getLogger("hloom.capture")

CompileFunction = Callable[[ir.Module, Options], Any]
"""Compiles a module with these options beside the program's own."""

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


def compile_captured(
    compile_: CompileFunction, module: ir.Module, wanted: Options, theirs: XlaOptions
) -> tuple[Any, Captured | None]:
    """Returns the executable, and its part that runs in graphs; None where no region needs an
    option.

    An option that the program has set is not changed, and one that this XLA does not know is left
    out; both are noted. Raises what `compile_` raises otherwise.
    """
    if not wanted:
        return compile_(module, {}), None
    options, notes = _beside(wanted, theirs.given)
    if COMMAND_BUFFER_TYPES not in wanted:
        executable = _compile(compile_, module, options, {}, notes)
        _log_all(notes)
        return executable, None
    if theirs.profiled is not None:
        notes.append(theirs.profiled)
    with thunk_dump(theirs.given) as dump:
        executable = _compile(compile_, module, options, dump.options, notes)
        try:
            found = dump.read()
        except (OSError, ValueError) as error:
            found = None
            notes.append(f"XLA's thunk sequence could not be read: {error}")
        else:
            if found is None:
                notes.append("not known: the executable was compiled before, and came from a cache")
    _log_all(notes)
    return executable, Captured(options, found, tuple(notes))


def _compile(
    compile_: CompileFunction,
    module: ir.Module,
    options: dict[str, Any],
    more: Options,
    notes: list[str],
) -> Any:
    """Compiles without those ``options`` that XLA refuses; they are removed, and noted."""
    while True:
        try:
            return compile_(module, {**options, **more})
        except Exception as error:
            refused = _refused(error, options)
            if refused is None:
                raise
            del options[refused]
            notes.append(f"this XLA refuses {refused}: {error}")


def _log_all(notes: list[str]) -> None:
    for note in notes:
        _log.info("%s", note)


def _beside(wanted: Options, given: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Returns the wanted options that do not conflict with the program's, and notes on the
    others."""
    options: dict[str, Any] = {}
    notes: list[str] = []
    for name, value in wanted.items():
        theirs = given.get(name)
        if theirs is None:
            options[name] = value
        elif name == DISABLED_PASSES:
            options[name] = ",".join(filter(None, [theirs, str(value)]))
        elif theirs != str(value):
            notes.append(f"the program sets {name}={theirs}: it is left so, not {value}")
    return options, notes


def _refused(error: Exception, options: Mapping[str, Any]) -> str | None:
    """Returns the option that an error calls unknown; None for another error."""
    match = _UNKNOWN.search(str(error))
    name = next(filter(None, match.groups())) if match else None
    return name if name in options else None
