"""Loads the program of a command: a module in a file, or the one of a dump."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from jax.extend.mlir import ir

from hloom import targets
from hloom._jax.modules import make_context
from hloom.dumps.read.dump import DumpError, ModuleDump
from hloom.passes.framework.target import Target
from hloom_tools.budgets import dumped
from hloom_tools.opt import source
from hloom_tools.opt.diagnostics import InputError
from hloom_tools.replay.options import chosen_module
from hloom_tools.target_option import add_target

_DEFAULT_TARGET = "h100_sxm"


class ProgramError(ValueError):
    """The program does not exist; the text says what, where, and the remedy."""


@dataclass(frozen=True)
class ToolProgram:
    """A program, and the target that it runs on.

    Attributes:
      module: the module before any pass.
      target: the requested target, else the dump's, else an H100.
      dump: the dump that it comes from; None where it comes from a file.
    """

    module: ir.Module
    target: Target
    dump: ModuleDump | None


def add_program(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments for the program and its target to a parser."""
    parser.add_argument(
        "program",
        type=Path,
        metavar="DIR|FILE",
        help="a dump of hloom.dump or HLOOM_DUMP_TO, or a module of StableHLO, text or bytecode",
    )
    default = f"(default: the dump's; {_DEFAULT_TARGET} for a file)"
    add_target(parser, f"what it is to run on {default}")


def program_of(arguments: argparse.Namespace) -> ToolProgram:
    """Returns the program that the arguments name. Raises ProgramError where none exists."""
    try:
        return _program(arguments.program, arguments.target)
    except DumpError as error:
        raise ProgramError(str(error)) from error
    except InputError as error:
        first = error.diagnostics[0]
        raise ProgramError(f"{first.position}: {first.message}") from error


def _program(file: Path, asked: str | None) -> ToolProgram:
    target = None if asked is None else targets.load(asked)
    dump = None
    if file.is_dir() or (not file.exists() and not file.suffix):
        dump = chosen_module(file)
        if dump.input_file is None:
            raise ProgramError(
                f"{dump.folder} has no 00-input.mlir, the module as it was: dump it again."
            )
        file = dump.input_file
        target = target or dumped.target_of(dump)
        if target is None:
            raise ProgramError(
                f"{dump.folder} does not tell what it was compiled for: name it with --target."
            )
    elif file.suffix == ".py":
        raise ProgramError(
            f"{file} is a program in Python. `JAX_HLOOM=fit HLOOM_DUMP_TO=dumps python {file}` "
            "writes what this command reads; in Python hloom.estimate(step, …) tells the same."
        )
    context = make_context()
    context.enable_multithreading(False)
    [chunk] = source.split(source.read(str(file)), at_markers=False)
    module = source.parse(chunk, context)
    return ToolProgram(module, target or targets.load(_DEFAULT_TARGET), dump)
