"""Command-line options that `hloom replay` and `hloom bisect` share, and the module they name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from hloom.dumps.read.dump import DumpError, ModuleDump, alike, open_dump
from hloom.passes.framework.text import pluralize


def add_dump(parser: argparse.ArgumentParser) -> None:
    """Adds DIR, which says what to run."""
    parser.add_argument(
        "dump",
        metavar="DIR",
        type=Path,
        help="a module folder, or a dump that holds just one, or one that the passes changed",
    )


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say how far the dump is believed."""
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


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say what to run it with, and what results count as equal."""
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


def not_negative(text: str) -> float:
    """A number of 0 or more, of the text of an option."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    # Not a number is not at least 0 either.
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"a number of 0 or more, got {text}")
    return value


def switch_dumps_off() -> None:
    """What is run again shall not be dumped again, into the folder that it is read from."""
    for name in [name for name in os.environ if name.startswith("HLOOM_DUMP_")]:
        del os.environ[name]


def chosen_module(path: Path) -> ModuleDump:
    """The module that a folder holds; of several, the only one that the passes changed.

    Of several processes' folders of one module it is the first. Raises DumpError where there is
    none, or where it is not clear which is meant.
    """
    dump = open_dump(path)
    if not dump.modules:
        missing = "".join(f"\n  {each}" for each in dump.missing)
        raise DumpError(f"{dump.path} holds no module.{missing}")
    modules = [group[0] for group in alike(dump.modules)]
    changed = [module for module in modules if _is_changed(module)]
    for candidates in (modules, changed):
        if len(candidates) == 1:
            return candidates[0]
    listed = "".join(f"\n  {module.folder}" for module in dump.modules)
    raise DumpError(
        f"{dump.path} holds {pluralize(len(dump.modules), 'module')}; give one of them:{listed}"
    )


def _is_changed(module: ModuleDump) -> bool:
    compiled = module.manifest.get("compile")
    return isinstance(compiled, Mapping) and compiled.get("changed") is True
