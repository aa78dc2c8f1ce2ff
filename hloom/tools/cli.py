"""`hloom`: what a person asks hloom for at the command line."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from hloom import __version__
from hloom.passes.framework.errors import did_you_mean
from hloom.visible import visible

_DESCRIPTION = """\
hloom rewrites what jax.jit compiles: passes over StableHLO make a training step fit in memory and
run as CUDA graphs, and show every rewrite they made. Nothing in the program changes; one flag
switches it on."""

_EPILOG = """\
the flag, in its five forms:
  JAX_HLOOM=remat python train.py                          one run of a program
  jax.config.update("jax_hloom", "remat")                  one process
  with hloom.passes("remat"): ...                          one block
  jax.jit(step, compiler_options={"hloom": "remat"})       one function
  lowered.compile(compiler_options={"hloom": "remat"})     one ahead-of-time compile

see also:
  hloom passes             the passes that a spec can name
  hloom-opt --help         the passes on a module in a file, to see or test a rewrite
  HLOOM_DUMP_TO=DIR        writes the IR before and after each pass of every compile
  HLOOM_DUMP_STEPS=3,7     … of the steps 3 and 7 instead: `with hloom.step(n):` names them;
                           also HLOOM_DUMP_PASSES, HLOOM_DUMP_MODULES, HLOOM_DUMP_ARRAYS=1
  hloom report DIR         shows what was written; `hloom replay` and `hloom bisect` run it again
  HLOOM_STRICT=1           a pass that fails stops the program, rather than warn and step aside"""

_EXTRA_MODULES = ("flax", "matplotlib", "optax")
"""What the extra `demo` installs."""


class _UsageError(Exception):
    """A mistake on the command line; the text says what and the remedy."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _UsageError(f"{message}. `{self.prog} --help` shows how it is used.")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `hloom` and gives its exit status: 0, or 1 for a mistake, which is told on stderr.

    Args:
      argv: the command line without the program's name; `sys.argv[1:]` where None.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        status = _run(words)
        sys.stdout.flush()
    except _UsageError as error:
        print(f"hloom: error: {visible(str(error))}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader has gone; Python's flush at exit shall not complain about it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _run(words: list[str]) -> int:
    parser = _Parser(
        prog="hloom",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hloom {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    passes = commands.add_parser(
        "passes",
        help="list the passes, or tell all about one",
        description="Lists every pass with its options, their defaults, and an example.",
    )
    passes.add_argument("name", nargs="?", metavar="NAME", help="tell all about this pass")
    passes.add_argument("--markdown", action="store_true", help="print what docs/passes.md holds")
    capture = commands.add_parser(
        "capture",
        help="show what of a program runs in CUDA graphs, and why not the rest",
        description="Shows how many of a program's kernels, copies and other thunks XLA puts into "
        "CUDA graphs, and each that it leaves out, with its line and the reason. A module is "
        "compiled for the target twice, without hloom and with it; no GPU is needed.",
    )
    capture.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="a StableHLO module, e.g. of HLOOM_DUMP_TO, or a folder that XLA wrote to with "
        "--xla_dump_to",
    )
    capture.add_argument(
        "--target", default="h100_sxm", metavar="NAME", help="the GPU to compile for (h100_sxm)"
    )
    capture.add_argument(
        "-p", "--passes", default="capture", metavar="SPEC", help="what to compile with (capture)"
    )
    # Its options come from the demo itself, which is imported only when it is asked for.
    demo = commands.add_parser(
        "demo", help="train a small GPT twice, hloom off and on, and compare", allow_abbrev=False
    )
    replay = commands.add_parser(
        "replay",
        help="run a dumped module again under any passes, and compare",
        allow_abbrev=False,
    )
    bisect = commands.add_parser(
        "bisect",
        help="find the pass, and its decision, that changes a result or raises the peak",
        allow_abbrev=False,
    )
    report = commands.add_parser(
        "report", help="show a dump as one page, as text or as plots", allow_abbrev=False
    )
    first = next((word for word in words if not word.startswith("-")), None)
    if first is not None and first not in commands.choices:
        close = did_you_mean(first, commands.choices)
        known = ", ".join(commands.choices)
        raise _UsageError(f"unknown command '{first}'.{close} Commands: {known}.")
    if first == "demo":
        return _run_demo(parser, demo, words)
    if first == "replay":
        return _run_command("hloom.tools.replay.command", parser, replay, words)
    if first == "report":
        return _run_command("hloom.tools.report.command", parser, report, words)
    if first == "bisect":
        return _run_command("hloom.tools.bisect.command", parser, bisect, words)
    arguments = parser.parse_args(words)
    if arguments.command == "passes":
        return _show_passes(arguments)
    if arguments.command == "capture":
        return _show_capture(arguments)
    parser.print_help()
    return 0


def _show_passes(arguments: argparse.Namespace) -> int:
    # rich and the MLIR bindings: nothing that `hloom --help` should wait for.
    from hloom.passes.framework import registry
    from hloom.tools import passes_doc

    if arguments.markdown and arguments.name is not None:
        raise _UsageError("--markdown prints every pass; leave out the name.")
    if arguments.markdown:
        sys.stdout.write(passes_doc.markdown())
        return 0
    if arguments.name is None:
        passes_doc.print_to_terminal(passes_doc.overview())
        return 0
    pass_class = registry.lookup(arguments.name)
    if pass_class is None:
        names = [cls.name for cls in registry.all_passes()]
        close = did_you_mean(arguments.name, names)
        raise _UsageError(f"unknown pass '{arguments.name}'.{close} Passes: {', '.join(names)}.")
    passes_doc.print_to_terminal(passes_doc.details(pass_class))
    return 0


def _show_capture(arguments: argparse.Namespace) -> int:
    from hloom.terminal import PlainConsole, complain
    from hloom.tools.capture import command

    try:
        shown = command.report(arguments.file, target=arguments.target, passes=arguments.passes)
    except command.CaptureError as error:
        return complain("hloom capture", error)
    PlainConsole().print(shown)
    return 0


def _run_command(
    name: str, parser: _Parser, command: argparse.ArgumentParser, words: list[str]
) -> int:
    """Runs a command whose options come from the module of that name, imported only now."""
    program = importlib.import_module(name)
    program.add_arguments(command)
    return int(program.run(parser.parse_args(words)))


def _run_demo(parser: _Parser, demo: argparse.ArgumentParser, words: list[str]) -> int:
    try:
        program = importlib.import_module("hloom.tools.demo.main")
        program.add_arguments(demo)
        return int(program.run(parser.parse_args(words)))
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _EXTRA_MODULES:
            raise
        what = f"the demo needs {error.name}, which is not installed: pip install 'hloom[demo]'"
        if {"-h", "--help"}.intersection(words):
            demo.epilog = f"Its options are told once it is complete: {what}."
            parser.parse_args(words)
        raise _UsageError(what) from error
