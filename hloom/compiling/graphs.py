"""Compiles a module with capture regions, and checks which of them became CUDA graphs."""

from __future__ import annotations

from typing import Any

from jax.extend.mlir import ir

from hloom.compiling.xla_options import (
    LOG,
    CompileFunction,
    XlaOptions,
    compile_plainly,
    compile_with,
)
from hloom.passes.capture.xla_options import COMMAND_BUFFER_TYPES
from hloom.record import Captured, Options
from hloom.xla.thunk_dump import thunk_dump


def compile_captured(
    compile_: CompileFunction, module: ir.Module, wanted: Options, theirs: XlaOptions
) -> tuple[Any, Captured | None]:
    """Returns the executable, and its part that runs in graphs; None where no region needs an
    option.

    It takes options as `compile_plainly` does, and raises what that raises.
    """
    if COMMAND_BUFFER_TYPES not in wanted:
        return compile_plainly(compile_, module, wanted, theirs)
    more = [] if theirs.profiled is None else [theirs.profiled]
    with thunk_dump(theirs.given) as dump:
        executable, options, notes = compile_with(compile_, module, wanted, theirs, dump.options)
        try:
            found = dump.read()
        except (OSError, ValueError) as error:
            found = None
            more.append(f"XLA's thunk sequence could not be read: {error}")
        else:
            if found is None:
                more.append("not known: the executable was compiled before, and came from a cache")
    for note in more:
        LOG.info("%s", note)
    return executable, Captured(options, found, (*notes, *more))
