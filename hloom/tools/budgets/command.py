"""`hloom budgets`: what each budget gives a program, as a table, a picture and JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from hloom import targets
from hloom._jax.modules import make_context
from hloom.budgets.estimating import frontier_of, parse_budgets
from hloom.budgets.frontier import Frontier
from hloom.dumps.read.dump import DumpError
from hloom.files import FileError, write_whole
from hloom.passes.framework.errors import PassError, SpecError
from hloom.passes.framework.feedback import Attempt
from hloom.passes.planner.record import RematRecord
from hloom.show.pictures import PictureError
from hloom.show.terminal import PlainConsole, complain
from hloom.tools.budgets import dumped
from hloom.tools.opt import source
from hloom.tools.opt.diagnostics import InputError
from hloom.tools.replay.options import chosen_module

_DEFAULT_TARGET = "h100_sxm"


class BudgetsError(ValueError):
    """The question cannot be answered; the text says what, where, and the remedy."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hloom budgets` to a parser."""
    parser.description = (
        "Shows the memory that budgets would give a program against the time that "
        "recomputation and the other moves of `fit` add, by hloom's model of the target, with the "
        "knees marked and a spec to copy for each. Nothing is compiled and nothing runs. Of a dump "
        "with XLA's figures these correct the model."
    )
    parser.add_argument(
        "program",
        type=Path,
        metavar="DIR|FILE",
        help="a dump of hloom.dump or HLOOM_DUMP_TO, or a module of StableHLO, text or bytecode",
    )
    parser.add_argument(
        "--target",
        metavar="NAME",
        help=f"what it is to run on: {', '.join(targets.names())}, or a description's path "
        f"(default: the dump's; {_DEFAULT_TARGET} for a file)",
    )
    parser.add_argument(
        "--budget",
        action="append",
        metavar="BUDGET",
        help="as in a spec: a size such as 60GiB, a share such as 50%%, fit, or min; again for "
        "each further one (default: points along the whole frontier)",
    )
    parser.add_argument("--png", type=Path, metavar="FILE", help="write the picture here")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the picture here, as SVG")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number here")


def run(arguments: argparse.Namespace) -> int:
    """Runs `hloom budgets` and gives its exit status: 0, or 1 for a mistake, told on stderr."""
    try:
        found = _frontier(arguments)
        console = PlainConsole(soft_wrap=True)
        console.print(found.title)
        console.print(found.table())
        for sentence in found.sentences():
            console.print(sentence)
        _write(found, arguments)
    except (BudgetsError, DumpError, PictureError, SpecError, PassError) as error:
        return complain("hloom budgets", error)
    except InputError as error:
        first = error.diagnostics[0]
        return complain("hloom budgets", f"{first.position}: {first.message}")
    except targets.TargetError as error:
        return complain("hloom budgets", f"--target: {error}")
    return 0


def _frontier(arguments: argparse.Namespace) -> Frontier:
    budgets = parse_budgets(arguments.budget, source="--budget")
    target = None if arguments.target is None else targets.load(arguments.target)
    file: Path = arguments.program
    attempts: tuple[Attempt[RematRecord], ...] = ()
    if file.is_dir() or (not file.exists() and not file.suffix):
        dump = chosen_module(file)
        if dump.input_file is None:
            raise BudgetsError(
                f"{dump.folder} has no 00-input.mlir, the module as it was: dump it again."
            )
        file = dump.input_file
        if target is None:
            target = dumped.target_of(dump)
            attempts = tuple(each.attempt for each in dumped.compiled_plans(dump))
        if target is None:
            raise BudgetsError(
                f"{dump.folder} does not tell what it was compiled for: name it with --target."
            )
    context = make_context()
    context.enable_multithreading(False)
    [chunk] = source.split(source.read(str(file)), at_markers=False)
    module = source.parse(chunk, context)
    return frontier_of(module, target or targets.load(_DEFAULT_TARGET), budgets, attempts)


def _write(found: Frontier, arguments: argparse.Namespace) -> None:
    written = []
    if arguments.json is not None:
        written.append((arguments.json, json.dumps(found.to_json(), indent=2).encode() + b"\n"))
    if arguments.png is not None:
        written.append((arguments.png, found.png()))
    if arguments.svg is not None:
        written.append((arguments.svg, found.svg().encode()))
    for file, data in written:
        try:
            write_whole(file, data)
        except FileError as error:
            raise BudgetsError(f"{error}. Remove it, or name another file.") from error
        except OSError as error:
            raise BudgetsError(f"{file} cannot be written: {error.strerror or error}.") from error
        PlainConsole(soft_wrap=True).print(f"wrote {file}")
