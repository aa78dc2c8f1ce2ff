"""Command-line options that `hloom replay` and `hloom bisect` share, and how both run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.text import Text

from hloom.dumps.read.dump import DumpError, ModuleDump, alike, open_dump
from hloom.passes.framework.errors import PassError, SpecError
from hloom.passes.framework.text import pluralize
from hloom_tools.complaint import complain
from hloom_tools.replay import ReplayError
from hloom_tools.replay.program import ReplayProgram
from hloom_tools.target_option import add_target

RECORDED = "recorded"


def add_arguments(parser: argparse.ArgumentParser, *, passes: str, target: str) -> None:
    """Adds the shared options; the help texts of two of them depend on the command."""
    parser.add_argument(
        "dump",
        metavar="DIR",
        type=Path,
        help="a module folder, or a dump that holds just one, or one that the passes changed",
    )
    parser.add_argument("-p", "--passes", default=RECORDED, metavar="SPEC", help=passes)
    parser.add_argument(
        "--arguments",
        choices=("dumped", "random"),
        help="what to run it with (default: those of the dump, where it has them)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of random arguments (default: 0)"
    )
    parser.add_argument(
        "--tolerance",
        type=not_negative,
        metavar="X",
        help="largest relative error of floating-point results (default: by dtype, 7e-5 for "
        "float32); 0 asks for equal values",
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run custom calls that may carry machine code: whoever made the dump can then do all "
        "that you can",
    )
    parser.add_argument(
        "--no-options",
        dest="with_options",
        action="store_false",
        help="leave out the options of XLA that the dump's program had set",
    )
    add_target(parser, target, others=False)


def not_negative(text: str) -> float:
    """Parses a number of 0 or more from the text of an option."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    # NaN is not at least 0 either.
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"a number of 0 or more, got {text}")
    return value


def exit_status(command: str, run: Callable[[], int]) -> int:
    """Runs a command, and reports on stderr why it fails. Its own programs are not dumped."""
    for name in [name for name in os.environ if name.startswith("HLOOM_DUMP_")]:
        del os.environ[name]
    try:
        return run()
    except (ReplayError, DumpError, SpecError, PassError, OSError) as error:
        return complain(command, error)


def load(arguments: argparse.Namespace, module: ModuleDump) -> ReplayProgram:
    """Loads the program of a module by the options."""
    return ReplayProgram.load(
        module,
        target=arguments.target,
        with_options=arguments.with_options,
        trusted=arguments.trust,
    )


def tell_program(console: Console, program: ReplayProgram, more: str) -> None:
    """Prints what is replayed, and what differs from the dump."""
    console.print(Text.assemble((program.name, "bold"), more))
    for note in program.notes:
        console.print(Text(f"Note: {note}.", style="yellow"))


def chosen_module(path: Path) -> ModuleDump:
    """Returns the module in a folder; of several, the only one that the passes changed.

    Of several processes' folders of one module the first counts. Raises DumpError where no module
    exists, or the choice is ambiguous.
    """
    dump = open_dump(path)
    if not dump.modules:
        missing = "".join(f"\n  {each}" for each in dump.missing)
        raise DumpError(f"{dump.path} holds no module.{missing}")
    modules = [group[0] for group in alike(dump.modules)]
    for candidates in (modules, [each for each in modules if _is_changed(each)]):
        if len(candidates) == 1:
            return candidates[0]
    listed = "".join(f"\n  {module.folder}" for module in dump.modules)
    raise DumpError(
        f"{dump.path} holds {pluralize(len(dump.modules), 'module')}; give one of them:{listed}"
    )


def _is_changed(module: ModuleDump) -> bool:
    compiled = module.manifest.get("compile")
    return isinstance(compiled, Mapping) and compiled.get("changed") is True
